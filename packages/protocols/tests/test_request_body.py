"""Errors in request bodies name the field by its path."""

import msgspec
import pytest

from dovetail_model import InvalidRequest
from dovetail_protocols import request_body


class _Inner(msgspec.Struct):
    role: str


class _Outer(msgspec.Struct):
    items: list[_Inner] = []


FAULTS = [
    (b"{", None),
    (b"[]", None),
    (b'{"items": 3}', "items"),
    (b'{"items": [{"role": "a"}, {"role": 5}]}', "items[1].role"),
    (b"[" * 100_000, None),
]


@pytest.mark.parametrize(("body", "param"), FAULTS)
def test_error_names_the_field(body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request_body.convert(request_body.RequestBody(body).fields, _Outer)
    assert caught.value.param == param


def test_unknown_fields_are_named() -> None:
    assert request_body.unknown_fields({"items": [], "x": 1}, _Outer, "body.") == ("body.x",)
