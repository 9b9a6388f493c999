"""Request bodies, within their limits."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn, cast

from aiohttp import web

from uni_agent.gateway.config import GatewayConfig
from uni_agent.gateway.errors import ErrorKind, GatewayError, invalid


async def read_body(request: web.Request, config: GatewayConfig) -> bytes:
    """The whole body. Raises GatewayError for one that is too large, in bytes or in JSON values."""
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise GatewayError(
            ErrorKind.TOO_LARGE, f"the request is larger than {config.max_body_mib:g} MiB, the most that is read"
        ) from error
    except web.RequestPayloadError as error:
        raise invalid(f"the body does not come as its headers say: {error}") from error
    # Each of these may become an object of some 60 bytes: a small body of brackets fills the memory.
    values = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    if values > config.max_json_values:
        raise GatewayError(
            ErrorKind.TOO_LARGE,
            f"the request has more than {config.max_json_values} JSON values, the most that is read",
        )
    return raw


def decoded(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`. Raises GatewayError."""
    try:
        value: Any = json.loads(raw, parse_constant=_no_number, parse_float=_finite)
    except RecursionError as error:
        raise invalid("the body is nested too deeply") from error
    except ValueError as error:
        raise invalid(f"the body is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise invalid(f"the body is a JSON {type(value).__name__}, an object is needed")
    return cast("dict[str, Any]", value)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is out of range")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")
