"""Limits on what a grammar is built from: the size of schemas, and the work on one request.

A few lines of references can describe more than any engine could store, so the size of a schema
does not bound the work. What exceeds the size is rejected; what exceeds the work is not enforced.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail_model import InvalidRequest, OutputFormat, ToolSpec

MAX_SCHEMA_VALUES = 20_000
MAX_SCHEMA_CHARS = 1 << 20
MAX_CHOICES = 10_000
MAX_REQUEST_STEPS = 200_000  # for the schemas of all tools together
MAX_SCHEMA_STEPS = 20_000

_KEYS_PER_STEP = 16  # keys that are copied in the time of one step
_CONSTANTS_PER_STEP = 4
_CHARS_PER_CONSTANT = 16


class StepBudget:
    """The steps that are left for reading schemas. Steps also count for `whole`, if given."""

    __slots__ = ("_left", "_whole")

    def __init__(self, steps: int, whole: "StepBudget | None" = None) -> None:
        self._left = steps
        self._whole = whole

    @property
    def exhausted(self) -> bool:
        return self._left <= 0 or (self._whole is not None and self._whole.exhausted)

    def spend(self, steps: int = 1) -> None:
        self._left -= steps
        if self._whole is not None:
            self._whole.spend(steps)

    def spend_keys(self, count: int) -> None:
        """Spend the steps of copying so many keys of a schema."""
        self.spend(count // _KEYS_PER_STEP)

    def spend_constants(self, values: Sequence[Any]) -> None:
        """Spend the steps of writing these constants."""
        count, chars = _measure(values)
        self.spend((count + chars // _CHARS_PER_CONSTANT) // _CONSTANTS_PER_STEP)


def check_output_size(output: OutputFormat) -> None:
    """Reject an output format with more choices or a larger schema than a grammar may have."""
    if len(output.choices) > MAX_CHOICES:
        raise _too_large(output.field, f"{MAX_CHOICES:,} texts")
    _check_size(output.choices, output.field)
    _check_size(output.schema, output.field)


def check_tool_sizes(specs: Sequence[ToolSpec]) -> None:
    """Reject tools with a larger schema than a grammar may have."""
    for spec in specs:
        _check_size(spec.model_parameters, "tools", f"the schema of {spec.name[:64]!r} ")


def _check_size(value: Any, field: str, subject: str = "") -> None:
    count, chars = _measure(value)
    if count > MAX_SCHEMA_VALUES:
        raise _too_large(field, f"{MAX_SCHEMA_VALUES:,} JSON values", subject)
    if chars > MAX_SCHEMA_CHARS:
        raise _too_large(field, f"{MAX_SCHEMA_CHARS:,} characters", subject)


def _too_large(field: str, limit: str, subject: str = "") -> InvalidRequest:
    message = f"{field}: {subject}must not have more than {limit}, because it constrains the output"
    return InvalidRequest(message, param=field)


def _measure(value: Any) -> tuple[int, int]:
    """Return the number of JSON values and of the characters of their texts and keys.

    Counting stops soon after one of the limits.
    """
    count = chars = 0
    todo = [value]
    while todo and count <= MAX_SCHEMA_VALUES and chars <= MAX_SCHEMA_CHARS:
        one = todo.pop()
        count += 1
        if isinstance(one, str):
            chars += len(one)
        elif isinstance(one, Mapping):
            chars += sum(map(len, one))
            todo.extend(one.values())
        elif isinstance(one, list | tuple):
            todo.extend(one)
    return count, chars
