"""The way out of a sandbox: allowed origins and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.deployment.conftest import Start
from uni_agent.deployment.forwarder import Forwarder
from uni_agent.deployment.http_head import BadRequestError, parse_head, parse_origin
from uni_agent.errors import ConfigError


class Origin:
    """A real HTTP server that remembers what it was sent and answers with the request's path and body."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.hung_up = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            body = b""
            if b"chunked" in head:
                body = await reader.readuntil(b"0\r\n\r\n")
            elif b"Content-Length: " in head:
                body = await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
            path = head.split(b" ")[1]
            if path == b"/wait":
                await reader.read()
                self.hung_up.set()
            elif path == b"/stream":
                writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
                for i in range(3):
                    writer.write(b"data: %d\n\n" % i)
                    await writer.drain()
                    await asyncio.sleep(0.1)
            else:
                text = path + b"|" + body
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(text), text)
                )
        writer.close()


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    origin = Origin()
    server = await asyncio.start_server(origin.serve, "127.0.0.1", 0)
    origin.port = server.sockets[0].getsockname()[1]
    yield origin
    server.close()
    await server.wait_closed()


Ask = Callable[[bytes], Awaitable[bytes]]


@pytest.fixture
async def ask(origin: Origin, tmp_path: Path) -> AsyncIterator[Ask]:
    """Send raw bytes to a forwarder that allows the origin, and read all that comes back."""
    path = tmp_path / ("long" * 20) / ("path" * 20) / "net.sock"
    path.parent.mkdir(parents=True)
    forwarder = Forwarder([f"http://127.0.0.1:{origin.port}", f"https://127.0.0.1:{origin.port}"], head_timeout=20)
    await forwarder.start(path)
    short = tmp_path / "s"
    short.symlink_to(path.parent)

    async def send(data: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(short / "net.sock")
        writer.write(data)
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
        return answer

    yield send
    await forwarder.close()
    await forwarder.close()


async def test_absolute_and_plain_requests_reach_the_origin(ask: Ask, origin: Origin) -> None:
    where = b"127.0.0.1:%d" % origin.port
    for data in (
        b"GET http://%s/a?b=c HTTP/1.1\r\nHost: other\r\nProxy-Authorization: x\r\n"
        b"Connection: x-drop\r\nX-Drop: 1\r\nX-Keep: 1\r\n\r\n",
        b"GET /a?b=c HTTP/1.1\r\nHost: %s\r\nX-Keep: 1\r\n\r\n",
    ):
        assert (await ask(data % where)).endswith(b"/a?b=c|")
        head = origin.heads[-1]
        assert head.startswith(b"GET /a?b=c HTTP/1.1\r\nHost: " + where) and head.count(b"Host") == 1
        assert b"X-Keep: 1" in head and b"Proxy" not in head and b"X-Drop" not in head


async def test_bodies_pass_with_a_length_and_in_chunks(ask: Ask, origin: Origin) -> None:
    base = b"POST http://127.0.0.1:%d/p HTTP/1.1\r\n" % origin.port
    assert (await ask(base + b"Content-Length: 5\r\n\r\nhello")).endswith(b"/p|hello")
    big = b"x" * 300_000
    assert (await ask(base + b"Content-Length: %d\r\n\r\n" % len(big) + big)).endswith(big)
    chunks = b"3;ext=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
    assert (await ask(base + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)).endswith(
        b"3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n"
    )


async def test_answers_stream(ask: Ask, origin: Origin) -> None:
    answer = await ask(b"GET http://127.0.0.1:%d/stream HTTP/1.1\r\n\r\n" % origin.port)
    assert answer.endswith(b"data: 0\n\ndata: 1\n\ndata: 2\n\n")


async def test_connect_tunnels(ask: Ask, origin: Origin) -> None:
    where = b"127.0.0.1:%d" % origin.port
    answer = await ask(b"CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\nGET /inner HTTP/1.1\r\nHost: y\r\n\r\n" % where)
    assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"/inner|")


async def test_everything_else_is_refused_with_a_reason(ask: Ask, origin: Origin) -> None:
    port = origin.port
    for target in (
        b"GET http://127.0.0.1:%d/ HTTP/1.1" % (port + 1 if port < 65535 else port - 1),
        b"GET http://localhost:%d/ HTTP/1.1" % port,
        b"GET http://127.0.0.1/ HTTP/1.1",
        b"CONNECT 127.0.0.1:22 HTTP/1.1",
        b"CONNECT example.org:443 HTTP/1.1",
    ):
        answer = await ask(target + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403") and b"may not reach" in answer and str(port).encode() in answer
    assert origin.heads == []


@pytest.mark.parametrize(
    "data",
    [
        b"GET http://127.0.0.1:PORT@evil.example/ HTTP/1.1\r\n\r\n",
        b"GET http://user:pw@127.0.0.1:PORT/ HTTP/1.1\r\n\r\n",
        b"GET https://127.0.0.1:PORT/ HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nHost: evil\r\n\r\n",
        b"GET http://127.0.0.1:PORT/ HTTP/2.0\r\n\r\n",
        b"GET http://127.0.0.1:PORT/ a HTTP/1.1\r\n\r\n",
        b"POST http://127.0.0.1:PORT/ HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"POST http://127.0.0.1:PORT/ HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST http://127.0.0.1:PORT/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"POST http://127.0.0.1:PORT/ HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc",
        b"GET http://127.0.0.1:PORT/ HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        b"GET http://127.0.0.1:PORT/ HTTP/1.1\r\nA : b\r\n\r\n",
        b"GET http://127.0.0.1:PORT/ HTTP/1.1\r\nA: b\nC: d\r\n\r\n",
        b"GET http://127.0.0.1:PORT/ HTTP/1.1\r\nA: b\x00c\r\n\r\n",
        b"CONNECT 127.0.0.1 HTTP/1.1\r\n\r\n",
    ],
)
async def test_malformed_requests_never_reach_the_origin(ask: Ask, origin: Origin, data: bytes) -> None:
    answer = await ask(data.replace(b"PORT", b"%d" % origin.port))
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403")) and origin.heads == []


async def test_a_second_request_behind_the_first_is_not_forwarded(ask: Ask, origin: Origin) -> None:
    where = b"127.0.0.1:%d" % origin.port
    hidden = b"GET http://%s/hidden HTTP/1.1\r\n\r\n" % where
    await ask(b"POST http://%s/first HTTP/1.1\r\nContent-Length: 2\r\n\r\nab" % where + hidden)
    await ask(b"GET http://%s/first HTTP/1.1\r\n\r\n" % where + hidden)
    assert [head.split(b" ")[1] for head in origin.heads] == [b"/first", b"/first"]


async def test_heads_are_bounded_and_an_origin_that_is_down_is_named(ask: Ask, tmp_path: Path) -> None:
    assert (await ask(b"GET / HTTP/1.1\r\nA: " + b"x" * 100_000 + b"\r\n\r\n")).startswith(b"HTTP/1.1 431")
    forwarder = Forwarder(["http://127.0.0.1:1"], head_timeout=0.3)
    await forwarder.start(tmp_path / "f")
    reader, writer = await asyncio.open_unix_connection(tmp_path / "f")
    writer.write(b"GET http://127.0.0.1:1/ HTTP/1.1\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 502")
    writer.close()
    reader, writer = await asyncio.open_unix_connection(tmp_path / "f")
    writer.write(b"GET http")
    assert await reader.read() == b""  # cut after the deadline
    writer.close()
    await forwarder.close()


async def test_a_client_that_goes_away_is_noticed_by_the_origin(origin: Origin, tmp_path: Path) -> None:
    forwarder = Forwarder([f"http://127.0.0.1:{origin.port}"])
    await forwarder.start(tmp_path / "f")
    _, writer = await asyncio.open_unix_connection(tmp_path / "f")
    writer.write(b"GET http://127.0.0.1:%d/wait HTTP/1.1\r\n\r\n" % origin.port)
    while not origin.heads:
        await asyncio.sleep(0.02)
    writer.close()
    async with asyncio.timeout(30):
        await origin.hung_up.wait()
    await forwarder.close()


CLIENT = """
import os, socket
def ask(url):
    s = socket.socket(socket.AF_UNIX); s.connect(os.environ["UNI_AGENT_NET_SOCKET"])
    s.sendall(f"GET {url} HTTP/1.1\\r\\n\\r\\n".encode())
    data = b""
    while part := s.recv(4096): data += part
    return data.split(b"\\r\\n")[0].decode() + " " + data.rpartition(b"\\r\\n\\r\\n")[2].decode()
"""


async def test_a_sandbox_reaches_an_allowed_server_and_no_other(isolation: str, start: Start, origin: Origin) -> None:
    sandbox = await start(isolation, spec={"allow": [f"http://127.0.0.1:{origin.port}"]})
    await sandbox.write_bytes("client.py", CLIENT.encode())
    url = f"http://127.0.0.1:{origin.port}/hello"
    result = await sandbox.run(f"python3 -c \"from client import ask; print(ask('{url}'))\"", timeout=60)
    assert result.output == "HTTP/1.1 200 OK /hello|\n"
    other = url.replace(str(origin.port), "1")
    result = await sandbox.execute(f"python3 -c \"from client import ask; print(ask('{other}'))\"", timeout=60)
    assert result.output.startswith("HTTP/1.1 403 Forbidden") and "may not reach" in result.output
    assert (await sandbox.run(f"curl -s --unix-socket $UNI_AGENT_NET_SOCKET {url}", timeout=60)).output == "/hello|"
    if isolation == "bwrap":
        assert (
            await sandbox.run("rm $UNI_AGENT_NET_SOCKET; touch ${UNI_AGENT_NET_SOCKET}x", timeout=60)
        ).exit_code != 0


async def test_without_an_allow_list_there_is_no_socket(start: Start) -> None:
    sandbox = await start("bwrap")
    assert (await sandbox.run('echo "[$UNI_AGENT_NET_SOCKET]"; ls -A /run/uni-agent', timeout=60)).output == "[]\n"


@pytest.mark.parametrize(
    "text", ["host:80", "http://host/path", "ftp://host", "http://", "http://h:0", "http://h:99999", "http://a b"]
)
def test_entries_that_are_no_origins_are_configuration_errors(text: str) -> None:
    with pytest.raises(ConfigError, match="not an origin"):
        parse_origin(text)


def test_origins_compare_by_scheme_host_and_port() -> None:
    assert parse_origin("http://Host") == parse_origin("http://host:80/")
    assert parse_origin("https://host") != parse_origin("http://host:443")
    assert str(parse_origin("http://[::1]:8000")) == "http://[::1]:8000"
    with pytest.raises(BadRequestError):
        parse_head(b"\r\n\r\n")
