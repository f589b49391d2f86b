"""Random requests for tests: histories as harnesses send them, in canonical order."""

import json

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from dovetail_model import (
    Block,
    ImageBlock,
    OutputFormat,
    ReasoningBlock,
    Request,
    Sampling,
    TextBlock,
    Thinking,
    ToolCallBlock,
    ToolChoice,
    ToolResultBlock,
    ToolSpec,
    Turn,
)

WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(lambda t: t.strip())
TOOLS = (
    ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}}),
    ToolSpec("patch", "Patches.", custom=True),
    ToolSpec("strict", "Is strict.", {"type": "object", "properties": {}}, strict=True),
)
IMAGE = ImageBlock("image/png", data="aGVsbG8=")


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Draw a request whose turns are in canonical order: results directly after their calls."""
    turns: list[Turn] = [Turn("user", (TextBlock(draw(WORDS)),))]
    calls = 0
    for _ in range(draw(st.integers(0, 4))):
        turn = draw(_assistant(calls))
        found = [block for block in turn.blocks if isinstance(block, ToolCallBlock)]
        calls += len(found)
        turns.append(turn)
        if found:
            results = tuple(ToolResultBlock(c.id, (TextBlock(draw(WORDS)),)) for c in found)
            turns.append(Turn("tool", results))
        else:
            turns.append(Turn("user", (TextBlock(draw(WORDS)),)))
    return Request(
        model="theirs",
        turns=tuple(turns),
        system=draw(st.sampled_from([(), (TextBlock("Be brief."),)])),
        tools=TOOLS,
        tool_choice=draw(_CHOICES),
        sampling=draw(_SAMPLING),
        thinking=draw(_THINKING),
        output=draw(_OUTPUTS),
        stream=True,
    )


@st.composite
def _assistant(draw: st.DrawFn, calls: int) -> Turn:
    blocks: list[Block] = []
    kinds = draw(st.lists(st.sampled_from(["think", "text", "call"]), min_size=1, max_size=5))
    for kind in kinds:
        last = blocks[-1] if blocks else None
        if kind == "think" and not isinstance(last, ReasoningBlock):
            blocks.append(ReasoningBlock(draw(WORDS)))
        elif kind == "text" and not isinstance(last, TextBlock):
            blocks.append(TextBlock(draw(WORDS)))
        elif kind == "call":
            blocks.append(draw(_call(calls)))
            calls += 1
    if all(isinstance(block, ReasoningBlock) for block in blocks):
        blocks.append(TextBlock(draw(WORDS)))
    return Turn("assistant", tuple(blocks))


def _call(number: int) -> SearchStrategy[ToolCallBlock]:
    plain = WORDS.map(
        lambda text: ToolCallBlock(f"call_{number}x", "look", json.dumps({"at": text}))
    )
    custom = WORDS.map(lambda text: ToolCallBlock(f"call_{number}x", "patch", text, custom=True))
    return plain | custom


_CHOICES = st.sampled_from(
    [
        ToolChoice(),
        ToolChoice("none"),
        ToolChoice("required", parallel=False),
        ToolChoice("named", "look"),
        ToolChoice("named", "patch"),
    ]
)
_SAMPLING = st.sampled_from(
    [
        Sampling(),
        Sampling(max_tokens=5, temperature=0.0, top_p=0.5, seed=3, stop=("END",)),
        Sampling(top_k=3, min_p=0.1, repetition_penalty=1.1, logprobs=2),
        Sampling(presence_penalty=0.5, frequency_penalty=-0.5, logprobs=0),
    ]
)
_THINKING = st.sampled_from(
    [
        Thinking(),
        Thinking(enabled=True, effort="high"),
        Thinking(enabled=False, effort="none"),
        Thinking(enabled=False, template_kwargs={"enable_thinking": False}),
    ]
)
_OUTPUTS = st.sampled_from(
    [
        OutputFormat(),
        OutputFormat("json_object"),
        OutputFormat("json_schema", {"type": "object"}, "form", strict=True),
    ]
)
