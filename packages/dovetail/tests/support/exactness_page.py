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

This page measures how far [exact turns](exact-turns.md) hold: whether the tokens that the model
generated in turn N are, token for token, a part of the prompt of turn N+1. A step from one prompt
to the next is exact if the next prompt starts with the previous prompt and everything that was
generated after it. The engine then finds all of it in its prefix cache, and the model reads what
it wrote.

`make docs` generates this page from the test `test_exactness.py`; do not edit it.

For every model family whose chat template and tokenizer are available, the test runs a scripted
session of {turns} turns through the complete path of a request: from the client's bytes to token
ids, and from generated ids back to the client's bytes. Only the engine is replaced: the script
provides what it would sample. The script contains what is hard to preserve:

- reasoning between calls, text between calls, parallel calls, calls without reasoning;
- white space around markers and inside JSON, several alphabets;
- control tokens that the user, tools and the model spell out;
- tokens that no tokenizer would choose.

The agents are not the real programs, but short implementations of how each returns its history:
Claude Code rewrites inputs and moves calls after text, OpenCode and plain clients drop the
reasoning, OpenClaw rewrites ids.

## Matrix

A cell is the number of exact steps of those in which the model's own template keeps the turn. The
second column is what the template does with earlier turns at a new user message. If it does not
keep them, these steps are not counted in the cell; they are explained below.
"""

POLICIES = {
    "keeps": "keeps everything",
    "drops at a user turn": "drops reasoning",
    "drops at the answer": "drops reasoning of finished loops",
    "moves the tools": "moves the tool list",
}

EXCEPTIONS = """\
## Exceptions

A step within a tool loop, from a call to its result, is always exact. At a new user message, some
templates change the earlier turns, because their models were trained this way. Dovetail follows
the template once, and the test asserts the cost: everything before the last loop stays a token
prefix, and the prompt is the one that a server without a ledger would build from the request.

"""

COST = """\
## Re-prefilled tokens

The table counts tokens that the engine must prefill although it has computed them before:
everything in a prompt after what it shares with the previous prompt and turn, without what is new.
The numbers are sums over one session, averaged over all agents, with the ledger and without it
(`--replay client`). Without the ledger, the client and the template change the tokens: rewritten
inputs, missing reasoning, different spacing and order. *Clean* is the same session with a model
that writes exactly as its template and its tokenizer would.

*Policy* counts the steps in which the template does not keep the turn. In these steps the last
loop is prefilled again with or without the ledger. The exception is a client that dropped the
reasoning before: its model has worked without the reasoning all the time, so there is nothing left
to drop.

"""
WHY = {
    "drops at a user turn": "the template drops the reasoning of earlier turns at a new user "
    "message.",
    "drops at the answer": "the template drops the reasoning of a loop once the loop is finished.",
    "moves the tools": "the template writes the list of tools before the last user message, so it "
    "moves with every user message.",
}


def page(rows: Sequence[Row], long: LongSessionCost) -> str:
    """The whole document."""
    parts = [INTRO.format(turns=len(SCRIPT)), _matrix(rows), EXCEPTIONS + _exceptions(rows)]
    parts += [COST + _costs(rows), _long(long), _surrogates([row.pair for row in rows])]
    return "\n".join(parts)


def _matrix(rows: Sequence[Row]) -> str:
    head = ("model", "at a user message", *(f"{k.name} ({k.codec.name})" for k in AGENTS))
    lines = ((_name(row.pair), POLICIES[row.policy], *map(_cell, row.cells)) for row in rows)
    steps = [step for row in rows for cell in row.cells for step in cell.steps]
    preserved = [step for step in steps if step.preserved]
    exact = sum(step.exact for step in preserved)
    tool = [step for step in steps if step.follower == "tool"]
    grown = sum(step.origin == "grown" for step in tool)
    return (
        table(head, lines)
        + f"\n{exact:,} of {len(preserved):,} steps are exact ({_share(exact, len(preserved))}). "
        + f"{grown:,} of {len(tool):,} steps within a tool loop only appended to the previous "
        + "prompt: no part of it was rendered or tokenized again.\n"
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
            f"{switched}: the template has a switch that keeps all reasoning. The server sets it "
            "for a client that requests it, as Claude Code does."
        )
    for missing in sorted({what for row in rows for what in row.left_out}):
        named = _names(row for row in rows if missing in row.left_out)
        points.append(f"{named}: the format cannot express {missing}; the script is shortened.")
    silent = _names(row for row in rows if row.pair.reasoning_parser == "none")
    points.append(f"{silent}: the format has no reasoning; the script runs without it.")
    return "".join(f"- {point}\n" for point in points)


def _costs(rows: Sequence[Row]) -> str:
    head = ["model", "generated", "without ledger", "without, clean", "with ledger"]
    head += ["policy: without", "policy: with"]
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
        f"**In all {sessions} sessions the models generated {generated:,} tokens that the next "
        f"prompt keeps. Without the ledger, {off:,} tokens are prefilled again for them "
        f"({_share(off, generated)}; {_share(clean, generated)} if the models write cleanly), "
        f"with the ledger {on:,}.** In the policy steps the numbers are {policy_off:,} without the "
        f"ledger and {policy_on:,} with it: the template drops reasoning there that a client "
        f"without reasoning would not have sent. For all steps together they are "
        f"{off + policy_off:,} without and {on + policy_on:,} with the ledger.\n"
    )


def _long(long: LongSessionCost) -> str:
    text = "## A long session\n\n"
    text += f"Claude Code with {long.pair.name}, {long.turns} turns, {long.generated:,} tokens "
    text += f"generated, {long.prompt:,} tokens in the last prompt. Tokens prefilled in total:\n\n"
    return text + table(
        ("", "prefilled"),
        [
            ("ledger and prompt normalization", _number(long.with_ledger)),
            ("prompt normalization, no ledger", _number(long.without)),
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

The templates are the models' own. The tokenizers are those that are available without the weights.
If the model's own tokenizer is not, another one replaces it, with the model's markers added as
special tokens: such a pair is a surrogate, marked with a star. Some tokenizers are of an earlier
model of the family, which lacks a few markers of the later one: these markers are then spelled out
in ordinary tokens.

"""
    lines = ((_name(pair), pair.template, pair.tokenizer, _origin(pair)) for pair in pairs)
    return text + table(("model", "template", "tokenizer", "origin of the tokenizer"), lines)


def _origin(pair: Pair) -> str:
    if pair.surrogate:
        return "replacement"
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
