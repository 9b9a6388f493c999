"""Gateways as Ray actors, one or several on the nodes of a cluster, behind one manager."""

from uni_agent.gateway.ray.errors import GatewayLostError
from uni_agent.gateway.ray.manager import GatewayManager
from uni_agent.gateway.ray.placement import Placement
from uni_agent.gateway.ray.source import GatewayFactory, GatewayParts

__all__ = ["GatewayFactory", "GatewayLostError", "GatewayManager", "GatewayParts", "Placement"]
