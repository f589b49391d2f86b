"""The tree of errors: whose fault, and the same error as an event."""

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


def test_every_leaf_has_a_kind_of_its_own() -> None:
    above = {base for kind in KINDS for base in kind.__mro__[1:]}
    leaves = [kind for kind in KINDS if kind not in above]  # others may have kinds below ours
    assert len({leaf.kind for leaf in leaves}) == len(leaves) > 10


def test_an_error_carries_what_the_codecs_need() -> None:
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
def test_whose_fault(error: type[DovetailError], side: type[DovetailError]) -> None:
    with pytest.raises(side):
        raise error("no")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_failure_becomes_its_error_again(kind: type[DovetailError]) -> None:
    if kind is not DovetailError:
        error = error_from_failure(kind("no", param="x").to_failure())
        assert (error.kind, error.message, error.param) == (kind.kind, "no", "x")
