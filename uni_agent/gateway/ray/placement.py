"""On which nodes of a cluster the gateways run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from uni_agent.errors import ConfigError

Placement = Literal["each_node", "this_node"] | Sequence[str]
"""`each_node`: the nodes of the cluster in turn; `this_node`: where the manager is; or the nodes to use in turn, each
by its id, name, or IP address."""


def nodes_for(placement: Placement, count: int | None, nodes: Sequence[Mapping[str, Any]], here: str) -> list[str]:
    """The node id of each gateway. `nodes` is what `ray.nodes()` gives, `here` the id of this node.

    `count` None: one for each node that is eligible. Raises ConfigError for a node that is not there or not alive.
    """
    eligible = eligible_nodes(placement, nodes, here)
    if not eligible:
        raise ConfigError("placement: no node of the cluster is alive")
    count = len(eligible) if count is None else count
    if count < 1:
        raise ConfigError(f"count: expected at least 1, got {count}")
    return [eligible[number % len(eligible)] for number in range(count)]


def eligible_nodes(placement: Placement, nodes: Sequence[Mapping[str, Any]], here: str) -> list[str]:
    """The ids of the living nodes that a gateway may run on. Raises ConfigError as `nodes_for`."""
    alive = sorted((node for node in nodes if node["Alive"]), key=lambda node: cast(str, node["NodeID"]))
    if placement == "this_node":
        return [here]
    if placement == "each_node":
        return [node["NodeID"] for node in alive]
    if isinstance(placement, str):
        raise ConfigError(f"placement: {placement!r} is none of each_node, this_node; a node is named in a list")
    return [_named(name, alive) for name in placement]


def _named(name: str, alive: Sequence[Mapping[str, Any]]) -> str:
    for key in ("NodeID", "NodeName", "NodeManagerHostname", "NodeManagerAddress"):
        found = [node["NodeID"] for node in alive if node.get(key) == name]
        if len(found) > 1:
            raise ConfigError(f"placement: {name!r} names {len(found)} nodes; use their ids: {', '.join(found)}")
        if found:
            return found[0]
    known = ", ".join(f"{node.get('NodeName') or node['NodeManagerAddress']}" for node in alive)
    raise ConfigError(f"placement: no living node of the cluster is called {name!r}; there are {known}")
