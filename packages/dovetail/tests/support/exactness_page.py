"""Write the exactness matrix as a page: docs/exactness.md."""

import re
from collections.abc import Iterable, Sequence

from agent_clients import AGENTS
from exactness_matrix import Cell, Row, Step
from long_session import LongSessionCost
from real_models import Pair, model
from session_script import SCRIPT

from dovetail_parsers import markers

# Markers of these kinds are single tokens in the vocabulary of a model that was trained on them.
_TAG = re.compile(r"<\|[^<>]+\|>|</?think>|\[/?[A-Z_]{3,}\]")

INTRO = """\
# Exactness

Made from the test of the same name by `make docs`; do not edit.

What the model said on turn N is, token for token, a part of the prompt of turn N+1: the next prompt
begins with the prompt before it and with everything that was generated behind it. Then an engine
finds all of it in its cache, and the model reads what it wrote, not what somebody made of it.

Here is how far that holds. For every model family whose chat template and tokenizer are at hand, a
scripted session of {turns} turns is played through the whole way of a request, from the client's
bytes to token ids and from generated ids back to the client's bytes. Nothing is left out but the
engine: what it would sample is given. The script has in it what is hard to keep: thoughts between
calls, text between calls, parallel calls, calls without thoughts, white space around markers and
inside JSON, several alphabets, control tokens spelled out by the user, by tools and by the model,
tokens that no tokenizer would choose. The agents are not the programs themselves but short copies
of how each sends its history back: Claude Code rewrites inputs and moves calls behind text,
OpenCode and plain clients lose the thoughts, OpenClaw rewrites ids.

## Matrix

A cell says how many steps from one prompt to the next were exact, of those in which the model's own
template keeps the turn. The column before says what the template does with earlier turns when the
user speaks. Where that is not to keep them, those steps are not in the cell; they are explained
below.
"""

POLICIES = {
    "keeps": "kept",
    "drops at a user turn": "drops thoughts",
    "drops at the answer": "drops thoughts of answered loops",
    "moves the tools": "moves the tool list",
}

EXCEPTIONS = """\
## Exceptions, and why

A step within a tool loop, from a call to its result, is always kept: no exception. When the user
speaks, some templates change what stands before, because their models were trained so. That is
followed, once, and the test asserts what it costs: everything before the last loop stays a token
prefix, and the prompt is the very one that a server without any memory would make of the request.

"""

COST = """\
## What it is worth

Tokens that an engine has to prefill although it has seen them: all of a prompt behind what it has
in common with the previous prompt and turn, less what is new in it. Sums over one session, mean of
all agents, without the ledger (`--replay client`) and with it. Without it they are lost on the way
through client and template: inputs rewritten, thoughts gone, spacing and order changed. "Clean" is
the same session with a model that writes as its template and its tokenizer would.

"Policy" are the steps in which the template does not keep the turn. There the last loop is
prefilled again with or without the ledger. Only for a client that had lost the thoughts before it
is not: its model has worked without them all the time, and there was nothing left to drop.

"""
WHY = {
    "drops at a user turn": "the template leaves out the thoughts of earlier turns as soon as a "
    "new question comes.",
    "drops at the answer": "the template leaves out the thoughts of a loop once it is answered.",
    "moves the tools": "the template writes the list of tools before the last question, so that it "
    "moves with every question.",
}


def page(rows: Sequence[Row], long: LongSessionCost) -> str:
    """The whole document."""
    parts = [INTRO.format(turns=len(SCRIPT)), _matrix(rows), EXCEPTIONS + _exceptions(rows)]
    parts += [COST + _costs(rows), _long(long), _surrogates([row.pair for row in rows])]
    return "\n".join(parts)


def _matrix(rows: Sequence[Row]) -> str:
    head = ("model", "when the user speaks", *(f"{k.name} ({k.codec.name})" for k in AGENTS))
    lines = ((_name(row.pair), POLICIES[row.policy], *map(_cell, row.cells)) for row in rows)
    steps = [step for row in rows for cell in row.cells for step in cell.steps]
    preserved = [step for step in steps if step.preserved]
    exact = sum(step.exact for step in preserved)
    tool = [step for step in steps if step.follower == "tool"]
    grown = sum(step.origin == "grown" for step in tool)
    return (
        table(head, lines)
        + f"\n{exact:,} of {len(preserved):,} steps are exact ({_share(exact, len(preserved))}). "
        + f"{grown:,} of {len(tool):,} steps within a tool loop only added to the prompt before: "
        + "nothing of it was rendered or tokenized again.\n"
    )


def _cell(cell: Cell) -> str:
    return f"{len(cell.exact)}/{len(cell.preserved)}"


def _exceptions(rows: Sequence[Row]) -> str:
    points = []
    for policy, why in WHY.items():
        named = _names(row for row in rows if row.policy == policy)
        points += [f"{named}: {why}"] if named else []
    switched = _names(
        row
        for row in rows
        if row.policy != "keeps" and any(cell.policy == "keeps" for cell in row.cells)
    )
    if switched:
        points.append(
            f"{switched}: the template has a switch that keeps all thoughts. It is set for a "
            "client that asks for it, as Claude Code does."
        )
    for missing in sorted({what for row in rows for what in row.left_out}):
        named = _names(row for row in rows if missing in row.left_out)
        points.append(f"{named}: no {missing} can be written; the script is shortened by that.")
    silent = _names(row for row in rows if row.pair.reasoning_parser == "none")
    points.append(f"{silent}: no notation for thoughts; the script is played without them.")
    return "".join(f"- {point}\n" for point in points)


def _costs(rows: Sequence[Row]) -> str:
    head = ("model", "generated", "kept: without", "clean", "with", "policy: without", "with")
    lines = ((_name(row.pair), *map(_number, _mean(row))) for row in rows)
    return table(head, lines) + "\n" + headline(rows)


def headline(rows: Sequence[Row]) -> str:
    """The summary sentence."""
    preserved = [step for row in rows for cell in row.cells for step in cell.preserved]
    generated, on = (
        sum(step.generated for step in preserved),
        sum(step.reprefilled for step in preserved),
    )
    off, clean = (
        sum(step.reprefilled_off for step in preserved),
        sum(step.reprefilled_clean for step in preserved),
    )
    sessions = sum(len(row.cells) for row in rows)
    left = [s for row in rows for cell in row.cells for s in cell.steps if not s.preserved]
    policy_off, policy_on = sum(s.reprefilled_off for s in left), sum(s.reprefilled for s in left)
    return (
        f"**Over all {sessions} sessions the models generated {generated:,} tokens that the "
        f"next prompt keeps. Without the ledger {off:,} tokens are prefilled again for them "
        f"({_share(off, generated)}; {_share(clean, generated)} if the models write cleanly), "
        f"with it {on:,}.** In the steps that a policy does not keep it is {policy_off:,} "
        f"without and {policy_on:,} with: there the thoughts of a loop are dropped which a "
        f"client that loses them would never have sent. All steps together: "
        f"{off + policy_off:,} without, {on + policy_on:,} with.\n"
    )


def _long(long: LongSessionCost) -> str:
    text = "## A long session\n\n"
    text += f"Claude Code with {long.pair.name}, {long.turns} turns, {long.generated:,} tokens "
    text += f"generated, {long.prompt:,} in the last prompt. Tokens prefilled in all:\n\n"
    return text + table(
        ("", "prefilled"),
        [
            ("with ledger and stable prompts", _number(long.with_ledger)),
            ("stable prompts, no ledger", _number(long.without)),
            ("no ledger, and the client's billing line left in the prompt", _number(long.naive)),
        ],
    )


def _mean(row: Row) -> list[int]:
    def mean(pick: Iterable[int]) -> int:
        return round(sum(pick) / len(row.cells))

    steps: list[Step] = [step for cell in row.cells for step in cell.steps]
    preserved, left = [s for s in steps if s.preserved], [s for s in steps if not s.preserved]
    return [
        mean(s.generated for s in steps),
        mean(s.reprefilled_off for s in preserved),
        mean(s.reprefilled_clean for s in preserved),
        mean(s.reprefilled for s in preserved),
        mean(s.reprefilled_off for s in left),
        mean(s.reprefilled for s in left),
    ]


def _surrogates(pairs: Sequence[Pair]) -> str:
    text = """\
## Models and tokenizers

The templates are the models' own. Tokenizers are those that can be had without weights. Where the
model's own cannot be had so, another one stands in, with the model's markers added as special
tokens: such a pair is a surrogate, marked with a star. Some are of an earlier model of the family,
which lacks a few markers of the later one: there those are spelled out in ordinary tokens.

"""
    lines = ((_name(pair), pair.template, pair.tokenizer, _origin(pair)) for pair in pairs)
    return text + table(("model", "template", "tokenizer", ""), lines)


def _origin(pair: Pair) -> str:
    if pair.surrogate:
        return "stands in"
    lacking = ", ".join(f"`{marker}`" for marker in spelled_out_markers(pair))
    return f"of an earlier model, without {lacking}" if lacking else "of the family"


def spelled_out_markers(pair: Pair) -> list[str]:
    """The markers that template and parser rely on and that are no tokens of this tokenizer."""
    found = model(pair)
    known = markers(found.tool_parser, found.reasoning_parser) - found.tokenizer.controls.keys()
    return sorted(m for m in known if _TAG.fullmatch(m) and m in found.template.text)


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    shown = ([cell.replace("|", r"\|") for cell in row] for row in rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in shown)


def _names(rows: Iterable[Row]) -> str:
    return ", ".join(row.pair.name for row in rows)


def _name(pair: Pair) -> str:
    return f"{pair.name}*" if pair.surrogate else pair.name


def _number(value: int) -> str:
    return f"{value:,}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"
