"""Strict parsing of one HTTP/1.1 request head, for a proxy that must not be talked into anything."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from uni_agent.errors import ConfigError

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REQUEST_LINE = re.compile(rb"([A-Z]{1,32}) ([\x21-\x7e]+) HTTP/1\.([01])")
_HOST = re.compile(r"[0-9A-Za-z._-]+|\[[0-9A-Fa-f:.]+\]")
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"host", b"transfer-encoding", b"content-length")
)
_DEFAULT_PORTS = {"http": 80, "https": 443}


class BadRequestError(ValueError):
    """The head is not one that can be forwarded; the message tells the client why."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host (lower case, IPv6 without brackets) and port."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        """`host:port` as a Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @classmethod
    def parse(cls, scheme: str, authority: str) -> Origin:
        """The origin of `host[:port]`. Raises ValueError."""
        host, colon, port = authority.rpartition(":") if re.search(r":\d+$", authority) else (authority, "", "")
        if not _HOST.fullmatch(host) or scheme not in _DEFAULT_PORTS:
            raise ValueError(f"{scheme}://{authority} is no origin")
        number = int(port) if colon else _DEFAULT_PORTS[scheme]
        if not 0 < number < 65536:
            raise ValueError(f"{number} is no port")
        return cls(scheme, host.strip("[]").lower().rstrip("."), number)


def parse_origin(text: str) -> Origin:
    """An entry of the allow-list, `http://host:port`. Raises ConfigError."""
    parts = urlsplit(text)
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ConfigError(f"{text!r} is not an origin: leave out everything after the port")
    try:
        return Origin.parse(parts.scheme, parts.netloc)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not an origin like http://host:port: {error}") from error


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What is asked of which origin. `length` is the body's, None for a chunked one. A tunnel has an empty path."""

    method: bytes
    origin: Origin
    path: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    length: int | None

    @property
    def tunnel(self) -> bool:
        """Whether this is CONNECT."""
        return self.method == b"CONNECT"

    def encode(self) -> bytes:
        """The head as the origin gets it: its own Host, one framing header, nothing meant for a proxy."""
        lines = [b"%s %s HTTP/1.1" % (self.method, self.path), b"Host: " + self.origin.authority.encode()]
        lines += [b"%s: %s" % header for header in self.headers]
        if self.length is None:
            lines.append(b"Transfer-Encoding: chunked")
        elif self.length or self.method not in (b"GET", b"HEAD"):
            lines.append(b"Content-Length: %d" % self.length)
        return b"\r\n".join([*lines, b"Connection: close", b"", b""])


def parse_head(data: bytes) -> RequestHead:
    """The request whose head, empty line included, is `data`. Raises BadRequestError."""
    first, *lines = data.removesuffix(b"\r\n\r\n").split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise BadRequestError("malformed request line")
    method, target = line[1], line[2].decode("ascii")
    headers = [_header(each) for each in lines]
    origin, path = _target(method, target, headers)
    dropped = set(_HOP_BY_HOP)
    for name, value in headers:
        if name.lower() == b"connection":
            dropped |= {token.strip().lower() for token in value.split(b",")}
    kept = tuple(h for h in headers if h[0].lower() not in dropped and not h[0].lower().startswith(b"proxy-"))
    return RequestHead(method, origin, path.encode("ascii"), kept, _body_length(headers))


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not _TOKEN.fullmatch(name):
        raise BadRequestError("malformed header")
    if any((byte < 32 and byte != 9) or byte == 127 for byte in value):
        raise BadRequestError("control character in a header")
    return name, value.strip(b" \t")


def _target(method: bytes, target: str, headers: list[tuple[bytes, bytes]]) -> tuple[Origin, str]:
    try:
        if method == b"CONNECT":
            if not re.search(r":\d+$", target):
                raise BadRequestError("CONNECT needs host:port")
            return Origin.parse("https", target), ""
        if target.startswith("/"):
            hosts = [value for name, value in headers if name.lower() == b"host"]
            if len(hosts) != 1:
                raise BadRequestError("a request without an absolute URL needs exactly one Host header")
            return Origin.parse("http", hosts[0].decode("ascii")), target
        scheme, found, rest = target.partition("://")
        cut = re.search(r"[/?#]", rest)
        authority, path = (rest[: cut.start()], rest[cut.start() :]) if cut else (rest, "/")
        if not found or scheme.lower() != "http":
            raise BadRequestError("only http:// URLs can be asked for directly; use CONNECT for https")
        return Origin.parse("http", authority), path if path.startswith("/") else "/" + path
    except BadRequestError:
        raise
    except ValueError as error:
        raise BadRequestError("malformed target") from error


def _body_length(headers: list[tuple[bytes, bytes]]) -> int | None:
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    codings = [value.lower() for name, value in headers if name.lower() == b"transfer-encoding"]
    if codings:
        if lengths or codings != [b"chunked"]:
            raise BadRequestError("ambiguous body length")
        return None
    if len(lengths) > 1 or any(not value.isdigit() or len(value) > 15 for value in lengths):
        raise BadRequestError("ambiguous body length")
    return int(lengths[0]) if lengths else 0
