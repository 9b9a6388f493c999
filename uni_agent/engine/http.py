"""The wire to engine servers: one pooled HTTP client over several replicas, and what each failure means."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from uni_agent.engine.checked import mapping
from uni_agent.engine.streaming import EventReader
from uni_agent.errors import ConfigError, ContextLengthError, ModelError, TurnTooLongError, boundary

if TYPE_CHECKING:
    import aiohttp

_CONTEXT_WORDS = (
    "context length",
    "context_length",
    "context window",
    "max_model_len",
    "longer than the model",
    "maximum input length",
    "maximum model length",
    "maximum allowed length",
    "too many tokens",
    "max_tokens must be at least 1, got 0",  # vLLM, for a prompt that fills the window
)
Take = Callable[[dict[str, Any]], "float | None"]
"""Takes an event of a stream; see `ReplicaPool.stream`."""
_KEEPALIVE_SECONDS = 3.0
"""Below the 5 s after which uvicorn drops an idle connection: a reused one must not be dying."""
_MOST_TEXT = 500


@dataclass(slots=True, eq=False)
class Replica:
    """One server; `down_until` is the time of the pool's clock before which others are asked first."""

    url: str
    down_until: float = float("-inf")


class ReplicaFault(ModelError):
    """A replica failed before it returned anything, or in the middle of a stream: another may be asked.

    Whoever has handed out a part of the stream must not ask again.

    `wait` is the server's own wish in seconds (`Retry-After`). `down` says that the replica is to be avoided for a
    while; one that only has too much to do is not.
    """

    def __init__(self, message: str, *, wait: float = 0.0, down: bool = True) -> None:
        super().__init__(message)
        self.wait = wait
        self.down = down


class RefusedError(ModelError):
    """The server answered with the HTTP status `status` and a reason; asking again changes nothing."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ReplicaPool:
    """Servers that hold the same model.

    `session_header` carries the request id, for routers that keep a conversation on one worker. `connect_timeout` and
    `read_timeout` are seconds; the second covers a whole answer. A replica that failed is asked last for `cooldown`
    seconds. The client belongs to the event loop that it is first used in.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        api_key_env: str | None = None,
        session_header: str | None = None,
        connect_timeout: float = 10.0,
        read_timeout: float = 600.0,
        cooldown: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.replicas = [Replica(url.rstrip("/").removesuffix("/v1")) for url in urls]
        self._api_key_env = api_key_env
        self._session_header = session_header
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._cooldown = cooldown
        self._clock = clock
        self._headers: dict[str, str] = {}
        self._client: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = False

    def open(self) -> None:
        """Accept requests. Raises ConfigError when the API key's variable is not set."""
        name = self._api_key_env
        if name is not None:
            key = os.environ.get(name, "")
            if not key:
                raise ConfigError(f"engine.api_key_env names {name}, which is not set: export {name}=…")
            self._headers["Authorization"] = f"Bearer {key}"
        self._open = True

    async def close(self) -> None:
        """Close the connections; what is under way fails."""
        client, self._client, self._open = self._client, None, False
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()

    def ranked(self, key: str) -> list[Replica]:
        """All replicas, those to ask first in front: healthy before failed ones, each by rendezvous hash of `key`."""
        now = self._clock()

        def rank(replica: Replica) -> tuple[bool, bytes]:
            weight = hashlib.blake2b(f"{replica.url}\0{key}".encode(errors="replace"), digest_size=8).digest()
            return replica.down_until <= now, weight

        return sorted(self.replicas, key=rank, reverse=True)

    def mark(self, replica: Replica, *, down: bool) -> None:
        """Remember whether the replica just failed."""
        replica.down_until = self._clock() + self._cooldown if down else float("-inf")

    async def get(self, replica: Replica, path: str) -> dict[str, Any]:
        """The JSON object at `path`. Raises ReplicaFault, RefusedError or ModelError."""
        return await self._json("GET", replica, path, None, {}, self._connect_timeout)

    async def post(self, replica: Replica, path: str, body: Mapping[str, Any], *, session: str = "") -> dict[str, Any]:
        """The JSON object that answers `body`. `session` goes into the session header.

        Raises ReplicaFault (nothing came back), TurnTooLongError (the read timeout has passed),
        ContextLengthError, RefusedError (4xx), and ModelError for an answer that broke off or is no JSON object.
        """
        data = _encoded(body)
        return await self._json("POST", replica, path, data, self._headers_for(session), self._read_timeout)

    async def stream(
        self, replica: Replica, path: str, body: Mapping[str, Any], take: Take, *, session: str = ""
    ) -> bool:
        """Give each event of the stream that answers `body` to `take`; whether the stream came to its end.

        `take` returns None to go on, or the seconds that the rest may take (0: none is wanted). Raises as `post` does;
        ReplicaFault also for a stream that breaks off or ends without `[DONE]`.
        """
        import aiohttp

        where = f"{replica.url}{path}"
        client, data, headers = self._session(), _encoded(body), self._headers_for(session)
        events = _Events(where, take)
        deadline = asyncio.timeout(self._read_timeout)
        try:
            async with (
                deadline,
                client.request("POST", where, data=data, headers=headers, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    wait = _seconds(response.headers.get("Retry-After"))
                    raise failure(where, response.status, wait, _error_text(await response.read()))
                if response.content_type != "text/event-stream":
                    raise ModelError(f"{where} answers no event stream but {_text(await response.read())[:200]!r}")
                return await events.read(response.content.iter_any(), deadline)
        except aiohttp.ConnectionTimeoutError as error:
            raise ReplicaFault(f"{where}: no connection within {self._connect_timeout:g} s") from error
        except TimeoutError as error:
            if events.enough:
                return False
            raise TurnTooLongError(f"{where}: no answer within {self._read_timeout:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            if events.enough:
                return False
            raise ReplicaFault(f"{where}: {type(error).__name__}: {error}") from error

    def _headers_for(self, session: str) -> dict[str, str]:
        headers: dict[str, str] = {"Content-Type": "application/json"}
        if self._session_header is not None and session:
            # An id is free text; a header is not.
            headers[self._session_header] = quote(session, safe="/#:@+=,.~-_", errors="replace")
        return headers

    async def tell(self, replica: Replica, path: str, body: Mapping[str, Any]) -> None:
        """Send `body`; the answer is not read. Raises ModelError when the replica cannot be reached."""
        headers = {"Content-Type": "application/json"}
        await self._send("POST", replica, path, _encoded(body), headers, self._connect_timeout)

    async def _json(
        self, method: str, replica: Replica, path: str, data: bytes | None, headers: dict[str, str], seconds: float
    ) -> dict[str, Any]:
        status, wait, raw = await self._send(method, replica, path, data, headers, seconds)
        where = f"{replica.url}{path}"
        if status != 200:
            raise failure(where, status, wait, _error_text(raw))
        try:
            value: Any = json.loads(raw)
        except ValueError as error:  # a page of a proxy, mostly
            raise ModelError(f"{where} answers no JSON but {_text(raw)[:200]!r}") from error
        if not isinstance(value, dict):
            raise ModelError(f"{where} answers no JSON object but {_text(raw)[:200]!r}")
        return cast("dict[str, Any]", value)

    async def _send(
        self, method: str, replica: Replica, path: str, data: bytes | None, headers: dict[str, str], seconds: float
    ) -> tuple[int, float, bytes]:
        import aiohttp

        where = f"{replica.url}{path}"
        client = self._session()
        begun = False
        try:
            async with (
                asyncio.timeout(seconds),
                client.request(method, where, data=data, headers=headers, allow_redirects=False) as response,
            ):
                begun = response.status < 500
                return response.status, _seconds(response.headers.get("Retry-After")), await response.read()
        except aiohttp.ConnectionTimeoutError as error:
            raise ReplicaFault(f"{where}: no connection within {self._connect_timeout:g} s") from error
        except TimeoutError as error:
            raise TurnTooLongError(f"{where}: no answer within {seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            reason = f"{where}: {type(error).__name__}: {error}"
            raise ModelError(f"{reason} (the answer broke off)") if begun else ReplicaFault(reason) from error

    def _session(self) -> aiohttp.ClientSession:
        import aiohttp

        if not self._open:
            raise ModelError("the engine is not started")
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            # No limit on connections: how many calls run is the caller's decision, and the server queues.
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout),
                headers=self._headers,
            )
            self._loop = loop
        return self._client


@dataclass(slots=True)
class _Events:
    """The events of one answer on their way to `take`; `enough` once it wants no more."""

    where: str
    take: Take
    enough: bool = False

    async def read(self, chunks: AsyncIterable[bytes], deadline: asyncio.Timeout) -> bool:
        """Whether `[DONE]` came; False when `take` wanted no more before."""
        reader = EventReader()
        async for chunk in chunks:
            for raw in reader.feed(chunk):
                if raw == b"[DONE]":
                    return True
                wanted = self.take(self._event(raw))
                if wanted is not None and not self.enough:
                    self.enough = True
                    deadline.reschedule(asyncio.get_running_loop().time() + wanted)
                if wanted == 0:
                    return False
        if self.enough:
            return False
        raise ReplicaFault(f"{self.where}: the stream ended without its last event")

    def _event(self, raw: bytes) -> dict[str, Any]:
        try:
            value: Any = json.loads(raw)
        except ValueError as error:
            raise ModelError(f"{self.where} streams no JSON but {_text(raw)[:200]!r}") from error
        if not isinstance(value, dict):
            raise ModelError(f"{self.where} streams no JSON object but {_text(raw)[:200]!r}")
        event = cast("dict[str, Any]", value)
        if event.get("error"):
            # The status line was sent before the server knew; its code stands in the event.
            code = mapping(event["error"]).get("code")
            raise failure(self.where, code if type(code) is int else 500, 0.0, _error_text(raw))
        return event


def is_context_error(text: str) -> bool:
    """Whether a server's message says that prompt or answer do not fit its window."""
    lower = text.lower()
    return any(word in lower for word in _CONTEXT_WORDS)


def _encoded(body: Mapping[str, Any]) -> bytes:
    with boundary(ModelError, "the request cannot be written as JSON"):
        return json.dumps(body, allow_nan=False).encode()


def failure(where: str, status: int, wait: float, text: str) -> ModelError:
    """The error that an HTTP status stands for; `wait` is the server's wish in seconds, `text` its words."""
    message = f"{where} answers HTTP {status}: {text}"
    if status in (400, 413, 422) and is_context_error(text):
        return ContextLengthError(message)
    if status == 429:
        return ReplicaFault(message, wait=wait, down=False)
    if status >= 500:
        return ReplicaFault(message, wait=wait)
    return RefusedError(message, status)


def _error_text(raw: bytes) -> str:
    """The server's own words: `error.message`, `message` or `detail`, else the body."""
    try:
        value: Any = json.loads(raw)
    except ValueError:
        return _text(raw)[:_MOST_TEXT]
    for key in ("error", "message", "detail"):
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        value = fields.get(key, cast("Any", value))
    return str(value)[:_MOST_TEXT]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _seconds(header: str | None) -> float:
    try:
        return max(0.0, float(header or 0))
    except ValueError:  # a date, as HTTP allows
        return 0.0
