"""Sampling parameters of Chat Completions and text completions."""

from dovetail_model import InvalidRequest, Sampling
from dovetail_protocols.chat.wire import SamplingFields


def decode_sampling(
    wire: SamplingFields, *, max_tokens: int | None, logprobs: int | None, param: str
) -> Sampling:
    """Decode sampling parameters. `param` is the field that `max_tokens` came from."""
    return Sampling(
        max_tokens=_limit(max_tokens, param),
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        min_p=wire.min_p,
        seed=wire.seed,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        repetition_penalty=wire.repetition_penalty,
        stop=_stop(wire.stop),
        logprobs=logprobs,
        n=wire.n or 1,
    )


def non_empty_text(value: object) -> str | None:
    """Return a client-defined name; values that are not text are ignored."""
    return value if isinstance(value, str) and value else None


def _limit(value: int | None, param: str) -> int | None:
    """Decode a token limit. Clients of local servers send -1 for no limit."""
    if value is None or value == -1:
        return None
    if value < 1:
        raise InvalidRequest(f"{param}: must be >= 1, got {value}", param=param)
    return value


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    found = [stop] if isinstance(stop, str) else stop or []
    return tuple(text for text in found if text)
