"""Model output of the benchmarks: code as a tool argument, prose as text and reasoning.

Both repeat every 500 characters, and all sizes are multiples of that: a long text consists of the
same chunks as a short one, in the same proportions.
"""

import json
from collections.abc import Callable

from dovetail_model import OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock, ToolSpec
from dovetail_parsers import Parser, parse, write_message
from dovetail_parsers.family import Family

PERIOD = 500

CODE = '''\
def render(rows: list[dict[str, int]]) -> str:
    """Rows as a table → HTML5; naïve, but enough."""
    out = ["<table class='grid'>"]
    for i, row in enumerate(rows):
        if i < 10 and row["n"] <= 3:
            out.append(f"<tr><td>{row['n']}</td></tr>\\n")
        elif not row:
            continue  # "empty" rows: über-rare
        else:
            raise ValueError(f"bad row #{i}: {row!r} \\\\ {len(row)}")
    out.append("</table>")
    return "\\n".join(out)  # one string, no copying


'''
PROSE = """\
The loop reads each row once, so its cost grows with the table & not with the page.

Three things follow:

1. **Rows first.** A row that is "empty" is skipped; see `render()` for why `i < 10` matters.
2. A table of width w takes w · n steps, fine up to 10 000 rows — naïve, but it works.
3. Nothing is held back: what was written is shown at once, even if the rest never comes.

If that isn't enough, use `<table>` with fixed columns. Wouldn't a cache help?
It would but only where the rows repeat.

"""

TOOL = ToolSpec(
    name="write_file",
    parameters={"type": "object", "properties": {"content": {"type": "string"}}},
)


def code(size: int) -> str:
    return _repeated(CODE, size)


def prose(size: int) -> str:
    return _repeated(PROSE, size)


def call(content: str) -> ToolCallBlock:
    """Return a call with one string argument."""
    return ToolCallBlock("call_1", TOOL.name, json.dumps({"content": content}, ensure_ascii=False))


def output(block: OutputBlock, family: Family) -> str:
    """Render the block in the format of a family. Raises if it does not parse as the same."""
    raw = write_message([block], family)
    blocks = parse(
        raw,
        tool_parser=family.tool_parser,
        reasoning_parser=family.reasoning_parser,
        tools=[TOOL],
        in_reasoning=False,
    ).blocks
    if len(blocks) != 1 or content(blocks[0]) != content(block):
        raise ValueError(f"{family.name} does not parse its own {block.type} as the same block")
    return raw


def content(block: OutputBlock) -> tuple[str, str]:
    """Return the content of a block, without white space at the ends of prose."""
    match block:
        case ToolCallBlock():
            return block.name, json.loads(block.arguments)["content"]
        case TextBlock() | ReasoningBlock():
            return block.type, block.text.strip()


def feed(family: Family) -> Callable[[str], object]:
    """Return a new parser of the family, configured as by a server."""
    return Parser(
        family.tool_parser, family.reasoning_parser, tools=[TOOL], in_reasoning=False
    ).feed


def _repeated(text: str, size: int) -> str:
    if len(text) != PERIOD or size % PERIOD:
        raise ValueError(f"texts must have {PERIOD} characters, got {len(text)}")
    return text * (size // PERIOD)
