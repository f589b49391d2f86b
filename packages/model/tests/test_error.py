"""The tree of errors, its kinds, and conversion to and from failure events."""

import pytest

import dovetail_model
from dovetail_model import (
    ClientError,
    ContextOverflow,
    DovetailError,
    EngineError,
    EngineUnavailable,
    Failure,
    InvalidRequest,
    error_from_failure,
)

KINDS = [
    getattr(dovetail_model, name)
    for name in dovetail_model.__all__
    if isinstance(getattr(dovetail_model, name), type)
    and issubclass(getattr(dovetail_model, name), DovetailError)
]


def test_every_leaf_class_has_a_unique_kind() -> None:
    above = {base for kind in KINDS for base in kind.__mro__[1:]}
    leaves = [kind for kind in KINDS if kind not in above]  # other packages may define subclasses
    assert len({leaf.kind for leaf in leaves}) == len(leaves) > 10


def test_error_has_kind_message_and_param() -> None:
    error = InvalidRequest("must be a list", param="messages[3].content")
    assert (error.kind, error.message, error.param) == (
        "invalid_request",
        "must be a list",
        "messages[3].content",
    )
    assert error.to_failure() == Failure("invalid_request", "must be a list", "messages[3].content")
    assert str(error) == "must be a list"


@pytest.mark.parametrize(
    ("error", "side"), [(ContextOverflow, ClientError), (EngineUnavailable, EngineError)]
)
def test_errors_are_grouped_by_cause(error: type[DovetailError], side: type[DovetailError]) -> None:
    with pytest.raises(side):
        raise error("no")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_failure_converts_back_to_its_error(kind: type[DovetailError]) -> None:
    if kind is not DovetailError:
        error = error_from_failure(kind("no", param="x").to_failure())
        assert (error.kind, error.message, error.param) == (kind.kind, "no", "x")


def test_long_messages_are_shortened_for_clients() -> None:
    error = InvalidRequest(f"role: unknown role '{'x' * 100_000}'; use user")
    message = error.to_failure().message
    assert len(message) < 5000
    assert message.startswith("role: unknown role")
    assert message.endswith("use user")
