"""The page about this API names every field that the code reads."""

import re
from pathlib import Path

import msgspec
import pytest

from dovetail_protocols.messages import wire
from dovetail_protocols.messages.content import _DECODERS
from dovetail_protocols.messages.error import _KINDS
from dovetail_protocols.messages.message import STOP_REASONS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "apis" / "messages.md"
PATHS = set(re.findall(r"`([a-z_.]+)`", PAGE.read_text(encoding="utf-8")))
NAMES = PATHS | {path.partition(".")[0] for path in PATHS}
PARTS: dict[str, type[msgspec.Struct]] = {
    "": wire.Request,
    "tool_choice.": wire.ToolChoice,
    "thinking.": wire.ThinkingConfig,
    "output_config.": wire.OutputConfig,
    "context_management.": wire.ContextManagement,
    "metadata.": wire.Metadata,
}


@pytest.mark.parametrize("prefix", PARTS)
def test_page_names_every_field_of_the_request(prefix: str) -> None:
    fields = {f"{prefix}{field.encode_name}" for field in msgspec.structs.fields(PARTS[prefix])}
    assert fields <= NAMES


def test_page_names_every_block_stop_reason_and_error() -> None:
    assert set(_DECODERS) <= NAMES
    assert set(STOP_REASONS) <= NAMES
    assert set(STOP_REASONS.values()) <= NAMES
    assert set(_KINDS) <= NAMES
    assert {kind for _, kind in _KINDS.values()} <= NAMES
