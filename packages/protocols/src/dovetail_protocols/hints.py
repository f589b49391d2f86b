"""Scheduling hints and options of a harness: `nvext` and related headers."""

import re
from typing import Any, Literal, get_args

import msgspec

from dovetail_model import Hints, InvalidRequest, ReasoningRetention
from dovetail_protocols.codec import Headers

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_MAX_FLOAT = 1e18  # larger hints are meaningless
_MAX_INTEGER = 2**31 - 1
DispatchChannel = Literal["tools", "reasoning"]
_CHANNELS: dict[str, frozenset[DispatchChannel]] = {
    "tools": frozenset({"tools"}),
    "reasoning": frozenset({"reasoning"}),
    "all": frozenset({"tools", "reasoning"}),
}


class NvextOptions(msgspec.Struct, frozen=True):
    """The options in `nvext`."""

    hints: Hints
    extra_fields: frozenset[str] = frozenset()
    max_thinking_tokens: int | None = None
    reasoning_retention: ReasoningRetention | None = None


def read_nvext(nvext: object, headers: Headers) -> NvextOptions:
    """Read hints and options.

    Only `reasoning_retention` is rejected if invalid: it changes the prompt.
    """
    fields: dict[str, Any] = nvext if isinstance(nvext, dict) else {}
    raw = fields.get("agent_hints")
    agent: dict[str, Any] = raw if isinstance(raw, dict) else {}
    return NvextOptions(
        hints=Hints(
            priority=_first_integer(
                headers.get("x-dynamo-request-priority"), agent.get("priority")
            ),
            strict_priority=_first_integer(
                headers.get("x-dynamo-request-strict-priority"), agent.get("strict_priority")
            ),
            osl=_token_count(agent.get("osl")),
            latency_sensitivity=_number(agent.get("latency_sensitivity")),
            speculative_prefill=agent.get("speculative_prefill") is True,
            cache_salt=_text(fields.get("cache_salt")),
            dispatch=_channels(headers.get("x-dovetail-dispatch"), fields.get("dispatch")),
        ),
        extra_fields=frozenset(_texts(fields.get("extra_fields"))),
        max_thinking_tokens=_token_count(fields.get("max_thinking_tokens")),
        reasoning_retention=_retention(
            headers.get("x-dovetail-reasoning-retention"), fields.get("reasoning_retention")
        ),
    )


def _channels(header: str | None, field: object) -> frozenset[DispatchChannel]:
    """Read the channels: `tools,reasoning` in the header; a list, name or true in the body.

    The header takes precedence.
    """
    if header is not None:
        names = [name.strip().lower() for name in header.split(",")]
    elif field is True:
        names = ["all"]
    else:
        names = [field] if isinstance(field, str) else _texts(field)
    return frozenset[DispatchChannel]().union(*(_CHANNELS.get(name, frozenset()) for name in names))


def _retention(header: str | None, field: object) -> ReasoningRetention | None:
    """Read the retention of reasoning. The header takes precedence."""
    given = field if header is None else header.strip().lower()
    if given is None:
        return None
    for name in get_args(ReasoningRetention):
        if given == name:
            return name  # type: ignore[no-any-return]
    param = "nvext.reasoning_retention" if header is None else "x-dovetail-reasoning-retention"
    names = ", ".join(get_args(ReasoningRetention))
    raise InvalidRequest(f"{param}: must be one of {names}, got {given!r}", param=param)


def _first_integer(*candidates: object) -> int | None:
    """Return the first integer, limited to a value that every engine can represent."""
    for value in candidates:
        if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return max(-_MAX_INTEGER, min(value, _MAX_INTEGER))
    return None


def _token_count(value: object) -> int | None:
    """Return a number of tokens. A negative one is ignored, as other invalid hints are."""
    tokens = _first_integer(value)
    return None if tokens is None or tokens < 0 else tokens


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _MAX_FLOAT:
        return None
    return float(value)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
