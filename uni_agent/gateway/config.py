"""The `gateway` block, and what one session may set for itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from uni_agent.config.base import Config, ConfigPath
from uni_agent.config.secrets import secret
from uni_agent.gateway.scenario.config import ScenarioConfig

if TYPE_CHECKING:
    from uni_agent.gateway.journal import Journal

SESSION_ID = r"^[A-Za-z0-9][A-Za-z0-9._:#@=+~-]{0,199}$"
"""What a session id may be: it stands in URLs and file names."""


class SamplingOverrides(Config):
    """What the trainer fixes, whatever the client asks for. None leaves the client its choice."""

    temperature: float | None = Field(default=None, ge=0)
    """Softmax temperature; 0 is greedy."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus mass kept."""
    top_k: int | None = Field(default=None, ge=-1)
    """Most likely tokens kept; -1 keeps all."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Tokens less likely than this share of the likeliest are dropped."""
    repetition_penalty: float | None = Field(default=None, gt=0)
    """Penalty on tokens already in the context; 1.0 is none."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most new tokens of one turn; a client's smaller cap holds."""
    seed: int | None = None
    """Root of the seeds of all turns of a session."""


class SessionSettings(Config):
    """One session: what is fixed for it and what it may use up. The defaults stand in `gateway.session`."""

    sampling: SamplingOverrides = SamplingOverrides()
    """Sampling that the trainer fixes."""
    max_turns: int | None = Field(default=None, ge=1)
    """Turns after which the session is used up."""
    max_sampled_tokens: int | None = Field(default=None, ge=1)
    """Sampled tokens after which the session is used up."""
    max_concurrent: int = Field(default=64, ge=1)
    """Requests of one session in flight; more are answered with 429."""
    ttl: float = Field(default=86_400.0, gt=0)
    """Seconds without a request after which an active session is aborted."""
    thinking: Literal["keep", "template"] = "keep"
    """Whether the thinking of earlier turns stays in the prompt, or follows the chat template."""
    matcher: Literal["strict", "masked"] = "strict"
    """`masked`: what the client shows as `***` stands for any text."""
    abandoned: Literal["keep", "drop"] = "keep"
    """Whether a turn that a retry replaced is exported as a chain of its own or dropped."""
    metadata: dict[str, Any] = {}
    """Anything; it comes back with the trajectories."""


class JournalConfig(Config):
    """Where committed turns are kept, so that a gateway that was killed goes on."""

    folder: ConfigPath | None = None
    """Folder of the journals, one per process; null keeps sessions in memory alone."""
    fsync: bool = False
    """Wait for the disk at each turn: needed against a power cut, not against a killed process."""

    def open(self, number: int = 0) -> Journal | None:
        """The journal of process `number`, opened and locked; None without a folder. Raises StoreError."""
        from uni_agent.gateway.journal import Journal

        return None if self.folder is None else Journal(self.folder / f"gateway-{number}.journal", fsync=self.fsync)


class GatewayConfig(Config):
    """An address at which agents find the model."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    public_url: str | None = None
    """How agents reach the gateway, when that is not `http://host:port`."""
    admin_token_env: str | None = "UNI_AGENT_ADMIN_TOKEN"  # noqa: S105 - a variable's name
    """Environment variable with the token of the admin API; one that is not set: a random token."""
    session_secret_env: str | None = None
    """Environment variable with a secret that session keys are signed with: then a session opens at its first request,
    without being created."""
    processes: int = Field(default=1, ge=1, le=256)
    """Processes that share the sessions behind the one address."""
    session: SessionSettings = SessionSettings()
    """What sessions start with."""
    max_sessions: int = Field(default=100_000, ge=1)
    """Sessions that are kept. When there are as many, those that ended are let go of, whether or not their `retention`
    is over; while all are active, a new one is answered with 429."""
    max_in_flight: int = Field(default=4096, ge=1)
    """Turns of all sessions that are under way; more are answered with 429."""
    max_body_mib: float = Field(default=32.0, gt=0)
    """Largest request, in MiB."""
    max_json_values: int = Field(default=500_000, ge=1000)
    """Most commas and brackets of a request: small bodies can be large once they are read."""
    max_context: int | None = Field(default=None, ge=2)
    """Tokens of prompt and answer together; null: the engine's own window."""
    timeout: float = Field(default=1800.0, gt=0)
    """Seconds for one turn."""
    retries: int = Field(default=2, ge=0)
    """Further tries of a turn that the engine failed before it showed a token."""
    on_abort: Literal["continue", "restart"] = "continue"
    """What becomes of a turn that the engine aborts in its middle (weights changed): go on from its tokens, each with
    its weight version, or sample it anew."""
    heartbeat: float = Field(default=15.0, gt=0)
    """Seconds of silence after which a streaming client hears that the turn is alive."""
    retention: float = Field(default=3600.0, ge=0)
    """Seconds that a finished session is kept for its trajectories to be read."""
    media: Literal["refuse", "placeholder"] = "refuse"
    """What becomes of images when model or engine reads none: an error, or the text `[image]`."""
    scenarios: ScenarioConfig = ScenarioConfig()
    """How requests are told apart: main conversation, sub-agents, titles, compactions."""
    journal: JournalConfig = JournalConfig()
    """Durability."""

    def secret(self) -> bytes | None:
        """What session keys are signed with; None for random keys. Raises ConfigError when the variable is not set."""
        name = self.session_secret_env
        return None if name is None else secret(name, "gateway.session_secret_env").encode()

    def admin_token(self) -> str | None:
        """The token that the environment names; None when it names none."""
        name = self.admin_token_env
        return (os.environ.get(name, "").strip() or None) if name is not None else None

    @field_validator("public_url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError(f"{value!r} is no http:// or https:// address")
        return None if value is None else value.rstrip("/")
