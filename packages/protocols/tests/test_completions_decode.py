"""Requests of text completion clients."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_model import DovetailError, InvalidRequest, Request, Sampling, Unsupported
from dovetail_protocols.chat import CODEC as CHAT
from dovetail_protocols.completions import CODEC, raw_prompt
from dovetail_protocols.completions.wire import CompletionRequest

Json = dict[str, Any]


def decode(headers: dict[str, str] | None = None, **fields: Any) -> Request:
    return CODEC.decode(
        msgspec.json.encode({"model": "m", "prompt": "Once", **fields}), headers or {}
    )


PROMPTS: list[tuple[object, object]] = [
    ("Once", "Once"),
    (["Once"], "Once"),
    ([1, 2, 3], (1, 2, 3)),
    ([[1, 2, 3]], (1, 2, 3)),
    ([7], (7,)),
    ("", ""),
    ([], ""),
    (None, ""),
]


@pytest.mark.parametrize(("given", "expected"), PROMPTS, ids=str)
def test_prompt_stays_raw(given: object, expected: object) -> None:
    request = decode(prompt=given)
    assert raw_prompt(request) == expected
    assert request.turns == ()


def test_only_text_completions_have_a_raw_prompt() -> None:
    body = b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}'
    with pytest.raises(TypeError):
        raw_prompt(CHAT.decode(body, {}))


def test_sampling() -> None:
    request = decode(max_tokens=5, temperature=0, stop="x", logprobs=2, n=2, best_of=2, seed=1)
    expected = Sampling(max_tokens=5, temperature=0.0, stop=("x",), logprobs=2, n=2, seed=1)
    assert request.sampling == expected


def test_identity_and_hints() -> None:
    request = decode({"x-session-id": "s"}, user="u", nvext={"agent_hints": {"priority": 1}})
    assert (request.identity.session, request.identity.user) == ("s", "u")
    assert request.hints.priority == 1


def test_unknown_fields_are_reported() -> None:
    request = decode(logit_bias={}, return_token_ids=True, suffix=None)
    assert request.ignored == ("return_token_ids",)


REFUSED: list[tuple[Json, str]] = [
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": [[1], [2]]}, "prompt"),
    ({"suffix": "end"}, "suffix"),
    ({"best_of": 3}, "best_of"),
    ({"echo": True, "logprobs": 1}, "logprobs"),
    ({"echo": True, "prompt": [1, 2]}, "echo"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=str)
def test_unsupported_field_is_rejected_by_name(fields: Json, param: str) -> None:
    with pytest.raises(Unsupported) as caught:
        decode(**fields)
    assert caught.value.param == param


FAULTS: list[tuple[Json, str]] = [
    ({"model": ""}, "model"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [1, -2]}, "prompt[1]"),
    ({"prompt": [[-2]]}, "prompt[0][0]"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"logprobs": True}, "logprobs"),
]


@pytest.mark.parametrize(("fields", "param"), FAULTS, ids=str)
def test_error_names_the_field(fields: Json, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(**fields)
    assert caught.value.param == param


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(CompletionRequest.__struct_fields__), JSON, max_size=4))
def test_arbitrary_json_raises_only_dovetail_errors(fields: Json) -> None:
    with contextlib.suppress(DovetailError):
        assert isinstance(decode(**fields), Request)
