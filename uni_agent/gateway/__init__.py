"""The HTTP face of the session graph: any agent, three protocols, token-exact trajectories.

`RolloutGateway` serves from a thread of a trainer, `GatewayNode` with `uni_agent.gateway.http.server.GatewayServer` in
an event loop of one's own, and `uni-agent gateway` from the shell. What is named here is loaded on use.

- A request: `protocols/` reads it into a `canonical` ModelRequest, `scenario/` tags it, `turns` takes the turn, `codec`
  makes text of its tokens (`stops`: strings that end it). `pace` and `metrics` serve `turns`.
- A session: `session` is one, `sessions` are all of a process, `keys` open them, `finished` is what one leaves.
- Durability: `journal/` is the file, `replay` makes sessions of it, `archive` reads it without a gateway.
- Forms: `node` is one process without a network, `http/` puts it on the network, `rollout_gateway` into a thread,
  `ray/` on a cluster. `sharding` says who owns a session.
- Settings: `config` is the block `gateway`, `app_config` the whole YAML; `renderers` serves its template variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uni_agent.gateway.config import GatewayConfig, SessionSettings
    from uni_agent.gateway.keys import signed_key
    from uni_agent.gateway.node import GatewayNode
    from uni_agent.gateway.rollout_gateway import GatewaySession, RolloutGateway
    from uni_agent.gateway.sessions import FinishedSession

_HOME = {
    "FinishedSession": "sessions",
    "GatewayConfig": "config",
    "GatewayNode": "node",
    "GatewaySession": "rollout_gateway",
    "RolloutGateway": "rollout_gateway",
    "SessionSettings": "config",
    "signed_key": "keys",
}

__all__ = [
    "FinishedSession",
    "GatewayConfig",
    "GatewayNode",
    "GatewaySession",
    "RolloutGateway",
    "SessionSettings",
    "signed_key",
]


def __getattr__(name: str) -> Any:
    """Load a public name where it is used: a configuration costs no engine."""
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"uni_agent.gateway.{_HOME[name]}"), name)
