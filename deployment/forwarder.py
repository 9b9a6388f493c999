"""The only way out of a sandbox without a network: an HTTP proxy on a Unix socket, with a list of allowed origins.

Absolute URLs (`GET http://host:port/path`), plain requests with a Host header (`curl --unix-socket`) and CONNECT for
https are understood. Each connection carries one request; nothing after it is read, so no second request can hide in
the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
from collections.abc import Sequence
from pathlib import Path

from uni_agent.deployment.http_head import BadRequestError, Origin, RequestHead, parse_head, parse_origin

logger = logging.getLogger(__name__)

_MAX_HEAD = 64 << 10
_CHUNK = 64 << 10
_MAX_CONNECTIONS = 256


class Forwarder:
    """Serves the proxy at a socket path between `start` and `close`.

    `allow` holds origins like `http://host:port`; scheme, host and port must be equal. All else is answered 403.
    Deadlines in seconds: `head_timeout` for a request head and for connecting, `idle_timeout` without a byte in
    either direction. Raises ConfigError for an entry that is no origin.
    """

    def __init__(self, allow: Sequence[str], *, head_timeout: float = 30.0, idle_timeout: float = 1800.0) -> None:
        self._allow = frozenset(map(parse_origin, allow))
        self._head_timeout = head_timeout
        self._idle_timeout = idle_timeout
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, path: Path) -> None:
        """Listen at `path`, of any length. Raises OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The kernel takes 107 bytes; by way of a descriptor the folder's own path does not count.
            folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
            try:
                listener.bind(f"/proc/self/fd/{folder}/{path.name}")
            finally:
                os.close(folder)
            self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=_MAX_HEAD)
        except BaseException:
            listener.close()
            raise

    async def close(self) -> None:
        """Stop listening and cut every connection; idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio runs handlers in tasks
        self._tasks.add(task)
        try:
            await self._handle(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            logger.debug("a forwarded connection ended: %r", error)
        except asyncio.CancelledError:
            logger.debug("a forwarded connection was cut")  # by close(); asyncio would log a traceback otherwise
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) > _MAX_CONNECTIONS:
            return await _answer(writer, "503 Service Unavailable", "too many connections at once")
        try:
            async with asyncio.timeout(self._head_timeout):
                head = parse_head(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            return await _answer(
                writer, "431 Request Header Fields Too Large", f"the head is larger than {_MAX_HEAD} bytes"
            )
        except BadRequestError as error:
            return await _answer(writer, "400 Bad Request", str(error))
        if head.origin not in self._allow:
            return await _answer(writer, "403 Forbidden", self._refusal(head.origin))
        try:
            async with asyncio.timeout(self._head_timeout):
                upstream_reader, upstream = await asyncio.open_connection(head.origin.host, head.origin.port)
        except (OSError, TimeoutError) as error:
            return await _answer(writer, "502 Bad Gateway", f"{head.origin} cannot be reached: {error or 'timed out'}")
        try:
            await self._exchange(head, reader, writer, upstream_reader, upstream)
        finally:
            upstream.close()

    def _refusal(self, origin: Origin) -> str:
        allowed = ", ".join(sorted(map(str, self._allow)))
        return f"this sandbox may not reach {origin}; allowed: {allowed}"

    async def _exchange(
        self,
        head: RequestHead,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream_reader: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> None:
        if head.tunnel:
            writer.write(b"HTTP/1.1 200 Connection Established\r\n\r\n")
            outward = self._pump(reader, upstream, None)
        else:
            upstream.write(head.encode())
            outward = self._request(head, reader, writer, upstream)
        inward = asyncio.ensure_future(self._pump(upstream_reader, writer, None))
        sending = asyncio.ensure_future(outward)
        try:
            # The answer's end ends the exchange, also when the origin did not want the rest of the body; the end of
            # what the client sends does not.
            done, _ = await asyncio.wait([inward, sending], return_when=asyncio.FIRST_COMPLETED)
            if inward not in done and sending.exception() is None:
                await inward
        finally:
            for task in (inward, sending):
                task.cancel()
            await asyncio.gather(inward, sending, return_exceptions=True)

    async def _request(
        self,
        head: RequestHead,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: asyncio.StreamWriter,
    ) -> None:
        """Send the body, then look out for a client that goes away: its origin shall not work on for nobody."""
        if head.length is None:
            await self._chunks(reader, upstream)
        else:
            await self._pump(reader, upstream, head.length)
        if not await reader.read(1) and _has_hung_up(writer):
            raise ConnectionError("the client is gone")

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, length: int | None) -> None:
        """Copy `length` bytes, or all until the end, which is passed on."""
        left = length
        while left is None or left > 0:
            async with asyncio.timeout(self._idle_timeout):
                data = await reader.read(_CHUNK if left is None else min(left, _CHUNK))
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            left = None if left is None else left - len(data)
        if length is None:
            with contextlib.suppress(OSError):
                writer.write_eof()

    async def _chunks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy a chunked body, written anew; extensions and trailers are dropped."""
        while True:
            async with asyncio.timeout(self._idle_timeout):
                size_text = (await reader.readuntil(b"\r\n"))[:-2].partition(b";")[0].strip()
                if not 0 < len(size_text) <= 8 or size_text.strip(b"0123456789abcdefABCDEF"):
                    raise ConnectionError("malformed chunk")
                size = int(size_text, 16)
                if size == 0:
                    while await reader.readuntil(b"\r\n") != b"\r\n":
                        pass
                    writer.write(b"0\r\n\r\n")
                    await writer.drain()
                    return
            writer.write(b"%x\r\n" % size)
            await self._pump(reader, writer, size)
            async with asyncio.timeout(self._idle_timeout):
                if await reader.readexactly(2) != b"\r\n":
                    raise ConnectionError("malformed chunk")
            writer.write(b"\r\n")


def _has_hung_up(writer: asyncio.StreamWriter) -> bool:
    """Whether the peer closed its socket, and did not just end its own direction."""
    poll = select.poll()
    poll.register(writer.get_extra_info("socket").fileno(), 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


async def _answer(writer: asyncio.StreamWriter, status: str, text: str) -> None:
    body = f"uni-agent forwarder: {text}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
    await writer.drain()
