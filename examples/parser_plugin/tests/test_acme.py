"""The Acme format, parsed in one piece and character by character."""

import pytest

from dovetail_parsers import parse

OUTPUT = (
    "<why>The user wants the weather.</why>One moment."
    '<acme_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</acme_call>'
)


@pytest.mark.parametrize("pieces", [[OUTPUT], list(OUTPUT)], ids=["whole", "characters"])
def test_reasoning_text_and_call_keep_their_order(pieces: list[str]) -> None:
    message = parse(pieces, tool_parser="acme", reasoning_parser="acme")
    assert [block.type for block in message.blocks] == ["reasoning", "text", "tool_call"]
    assert "".join(block.raw for block in message.blocks) == OUTPUT
