"""A gateway inside a trainer's own process: it serves from a thread, and the trainer reads trajectories directly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from uni_agent.engine.base import SamplingBackend, SamplingParams
from uni_agent.errors import ConfigError, UniAgentError
from uni_agent.gateway.config import GatewayConfig
from uni_agent.gateway.node import GatewayNode
from uni_agent.gateway.sessions import FinishedSession, OpenedSession, Sessions
from uni_agent.tokens.base import Renderer
from uni_agent.tokens.config import RendererConfig
from uni_agent.tokens.graph.session import RendererFor

_T = TypeVar("_T")

_START_SECONDS = 600.0
_CALL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class GatewaySession:
    """What an agent is given: `base_url` for Anthropic's clients, `base_url + "/v1"` for OpenAI's, and `api_key`.

    `reward_key` belongs to the grader, never to the agent.
    """

    session_id: str
    base_url: str
    api_key: str
    reward_key: str

    @classmethod
    def of(cls, opened: OpenedSession, url: str) -> GatewaySession:
        """A session of the gateway at `url`."""
        return cls(opened.session_id, f"{url}/sessions/{opened.session_id}", opened.api_key, opened.reward_key)


class RolloutGateway:
    """A gateway over an engine.

        with RolloutGateway.from_engine(engine_url="http://127.0.0.1:8000", model=folder) as gateway:
            session = gateway.create_session(metadata={"task": "t1"})
            ...  # an agent works at session.base_url with session.api_key
            trajectories = gateway.finalize(session.session_id).trajectories

    `renderer` knows the model's template; without one it is made from the folder `tokenizer`. `admin_token` and
    `secret`, with which session keys are signed, come from the variables that `config` names when they are not given.
    All methods may be called from any thread but the gateway's own; inside an event loop, through `asyncio.to_thread`.
    """

    def __init__(
        self,
        *,
        backend: SamplingBackend,
        renderer: Renderer | None = None,
        tokenizer: str | Path | None = None,
        config: GatewayConfig | None = None,
        model_name: str = "model",
        sampling: SamplingParams | None = None,
        renderer_for: RendererFor | None = None,
        admin_token: str | None = None,
        secret: bytes | None = None,
    ) -> None:
        if renderer is None:
            if tokenizer is None:
                raise ConfigError("give a renderer, or the folder of a tokenizer")
            renderer = RendererConfig(tokenizer=Path(tokenizer)).build(None)
        self._backend = backend
        self._renderer = renderer
        self._config = config or GatewayConfig()
        if self._config.processes != 1:
            raise ConfigError(
                "gateway.processes: a RolloutGateway is a thread; for more than 1 use `uni-agent gateway`"
            )
        self._options: dict[str, Any] = {
            "model_name": model_name,
            "sampling": sampling,
            "renderer_for": renderer_for,
            "secret": self._config.secret() if secret is None else secret,
        }
        self._admin_token = admin_token or self._config.admin_token()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._node: GatewayNode | None = None
        self.url = ""
        self.admin_token = ""

    @classmethod
    def from_engine(
        cls,
        *,
        engine_url: str | list[str],
        model: str,
        engine: Literal["vllm", "sglang"] = "vllm",
        tokenizer: str | Path | None = None,
        config: GatewayConfig | None = None,
        **options: Any,
    ) -> Self:
        """A gateway over one or several engine servers of the same model.

        `model` is the name that the server knows, or the folder of the model. `tokenizer` is the folder with tokenizer
        and chat template; None when `model` is one.
        `options` go to the constructor. Raises ConfigError.
        """
        from uni_agent.engine.config import SglangEngineConfig, VllmEngineConfig

        urls = [engine_url] if isinstance(engine_url, str) else engine_url
        folder = Path(tokenizer or model)
        if not folder.is_dir():
            raise ConfigError(f"{folder} is no folder: name the folder of the model's tokenizer with `tokenizer`")
        if engine == "vllm":
            served = None if Path(model).is_dir() else model
            backend = VllmEngineConfig(type="vllm", urls=urls, model=served).build()
        elif engine == "sglang":
            backend = SglangEngineConfig(type="sglang", urls=urls).build()
        else:
            raise ConfigError(f"engine: {engine!r} is none of vllm, sglang")
        return cls(backend=backend, tokenizer=folder, config=config, model_name=model, **options)

    # ------------------------------------------------------------------------------------------ life

    def start(self) -> Self:
        """Serve. Returns when the address is open. Raises what the engine or the address has against it."""
        if self._thread is not None:
            raise UniAgentError("this gateway was started already")
        self._thread = threading.Thread(target=self._run, name="rollout gateway", daemon=True)
        self._thread.start()
        if not self._started.wait(_START_SECONDS):
            raise UniAgentError(f"the gateway did not start within {_START_SECONDS:g} s")
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def close(self) -> None:
        """Stop serving and free the engine. Sessions that are not finalized are lost, unless there is a journal."""
        if self._loop is not None and self._stop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join(_CALL_SECONDS)

    def __enter__(self) -> Self:
        """Serve for the length of a block."""
        return self if self._thread is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop serving."""
        self.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        from uni_agent.gateway.http.server import GatewayServer

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        journal = self._config.journal.open()
        self._node = GatewayNode(self._backend, self._renderer, self._config, journal=journal, **self._options)
        server = GatewayServer(self._node, admin_token=self._admin_token)
        await server.start()
        self.url, self.admin_token = server.url, server.admin_token
        self._started.set()
        try:
            await self._stop.wait()
        finally:
            await server.close()

    # ------------------------------------------------------------------------------------------ sessions

    def create_session(self, session_id: str | None = None, **settings: Any) -> GatewaySession:
        """A new session; `settings` are those of SessionSettings. Raises GatewayError for ones that cannot be."""

        async def create() -> GatewaySession:
            return GatewaySession.of(self._sessions.open(session_id, settings), self.url)

        return self._call(create())

    def finalize(self, session_id: str) -> FinishedSession:
        """End a session and read its trajectories. Raises GatewayError for an unknown or aborted one."""

        async def finalize() -> FinishedSession:
            session = self._sessions.get(session_id)
            await self._sessions.finalize(session)
            return self._sessions.export(session)

        return self._call(finalize())

    def abort(self, session_id: str, reason: str = "aborted") -> FinishedSession:
        """Give a session up; what it holds comes back all the same."""

        async def abort() -> FinishedSession:
            session = self._sessions.get(session_id)
            await self._sessions.abort(session, reason)
            return self._sessions.export(session)

        return self._call(abort())

    def set_reward(self, session_id: str, info: Mapping[str, Any]) -> None:
        """Keep what the grader says; a number under `reward` or `score` is the main trajectories' reward."""

        async def keep() -> None:
            self._sessions.set_reward(self._sessions.get(session_id), info)

        self._call(keep())

    def info(self, session_id: str) -> dict[str, Any]:
        """What can be told of a session, as `GET /sessions/{id}` does."""

        async def tell() -> dict[str, Any]:
            return self._sessions.get(session_id).info()

        return self._call(tell())

    def forget(self, session_id: str) -> None:
        """Free what an ended session holds."""

        async def forget() -> None:
            self._sessions.forget(self._sessions.get(session_id))

        self._call(forget())

    @property
    def _sessions(self) -> Sessions:
        if self._node is None:
            raise UniAgentError("the gateway is not started: use it as a context manager, or call start()")
        return self._node.sessions

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._loop is None or not self._loop.is_running():
            work.close()
            raise UniAgentError("the gateway is not running: use it as a context manager, or call start()")
        call = asyncio.run_coroutine_threadsafe(work, self._loop)
        if not wait([call], _CALL_SECONDS).done:
            raise UniAgentError(
                f"the gateway's thread did not answer within {_CALL_SECONDS:g} s; the call may still be carried out. "
                "Its event loop is busy, or this call was made on it"
            )
        return call.result()
