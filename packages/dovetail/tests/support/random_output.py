"""Random model output, and sessions with it.

Token ids are drawn from a real vocabulary: the family's markers, complete and in halves, text in
spellings that no tokenizer would choose, split characters, misplaced control tokens, and ends of
every kind.
"""

import json
import random
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from agent_clients import Agent
from real_models import Pair
from real_models import model as model_of
from scripted_run import ScriptedRunner, ScriptedTurn

from dovetail.ledger.entry import unpack_ids
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model
from dovetail.pipeline.preparation import ChatPreparer, PreparedRequest
from dovetail.prompt.messages import ToolNames
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock, Turn
from dovetail_parsers import markers
from dovetail_tokenizers import Detokenizer, Tokenizer

WORDS = (
    "Look first.", " then", "\n\n", "  ", "\t", "ünïcode", " 漢字", "🦜", "👩‍👩‍👧", "f():\n  x",
    "```py\n", '{"a": 1}', "\\n", "</", "<", "{", "}", '"', "\r\n", "\u00a0", "e\u0301", "\x00",
)  # fmt: skip
ARGUMENTS = (
    '{"command": "ls -la", "timeout": 5000.0}',
    '{"timeout": 12,  "command":"grep -n x"}',
    '{"command": "cd /repo && echo \\"é\\" <tool_call>"}',
    "{}",
    '{"command": "a", "command": "b"}',
    '{"command": null, "extra": [1, {"x": NaN}], "big": 123456789012345678901234567890}',
    '{"command": "cut',
)


@dataclass(frozen=True)
class Vocabulary:
    """The tokens to draw from."""

    plain: tuple[int, ...]
    controls: tuple[int, ...]
    broken: tuple[int, ...]  # not characters by themselves
    blank: tuple[int, ...]
    by_bytes: dict[bytes, int]


@cache
def vocabulary(pair: Pair) -> Vocabulary:
    model = model_of(pair)
    tokenizer = model.tokenizer
    plain = [id for id in range(tokenizer.size) if not tokenizer.is_control(id)]
    spelled = {id: tokenizer.bytes_of(id) for id in plain}
    plain = [id for id in plain if spelled[id]]
    return Vocabulary(
        plain=tuple(plain),
        controls=tuple(sorted(set(tokenizer.controls.values()) - model.stop_ids)),
        broken=tuple(id for id in plain if _is_broken(spelled[id])),
        blank=tuple(id for id in plain if spelled[id].isspace()),
        by_bytes={spelled[id]: id for id in plain},
    )


def _is_broken(spelled: bytes) -> bool:
    try:
        spelled.decode()
    except UnicodeDecodeError:
        return True
    return False


class RandomModel:
    """Draws turns for one pair of template and tokenizer."""

    def __init__(self, pair: Pair, dice: random.Random) -> None:
        model = model_of(pair)
        self._dice = dice
        self._model = model
        self._tokenizer: Tokenizer = model.tokenizer
        self._words = vocabulary(pair)
        self._markers = sorted(markers(model.tool_parser, model.reasoning_parser))
        self._writer = TurnWriter(model.tool_parser, model.reasoning_parser)
        self._stops = sorted(model.stop_ids)

    def turn(self) -> list[int]:
        """Return the ids of a turn, with or without its stop token."""
        dice = self._dice
        kind = dice.random()
        if kind < 0.03:
            ids = []
        elif kind < 0.06:
            ids = self._some(self._words.blank, 3)
        elif kind < 0.45:
            ids = self._proper()
        elif kind < 0.75:
            ids = self._mutated(self._proper())
        else:
            ids = [id for _ in range(dice.randrange(1, 12)) for id in self._piece()]
        if dice.random() < 0.25:
            return ids[: dice.randrange(len(ids) + 1)]
        if dice.random() < 0.05:
            ids += self._some(self._words.broken, 2)
        return [*ids, dice.choice(self._stops)]

    def _proper(self) -> list[int]:
        """A turn in the model's notation, with unusual spelling."""
        turn = Turn("assistant", tuple(self._blocks()))
        text = self._writer.write(turn, ToolNames(()), lambda text: text, "")
        return self._spelled(text or "Sure.")

    def _blocks(self) -> list[OutputBlock]:
        dice = self._dice
        blocks: list[OutputBlock] = []
        for _ in range(dice.randrange(1, 5)):
            match dice.randrange(4):
                case 0 if self._model.reasoning_parser:
                    blocks.append(ReasoningBlock(self._prose()))
                case 1:
                    blocks.append(TextBlock(self._prose()))
                case _:
                    name = dice.choice(("run_command", "edit_file", "unheard_of"))
                    given = dice.choice(ARGUMENTS[:-1])
                    blocks.append(ToolCallBlock("", name, given))
        return blocks[:1] if dice.random() < 0.2 else blocks

    def _prose(self) -> str:
        return "".join(self._dice.choices(WORDS, k=self._dice.randrange(1, 6)))

    def _spelled(self, text: str) -> list[int]:
        """Replace some tokens by two halves if the vocabulary has both."""
        ids: list[int] = []
        for id in self._tokenizer.encode(text):
            spelled = self._tokenizer.bytes_of(id)
            splits = len(spelled) > 1 and self._dice.random() < 0.1
            if splits and not self._tokenizer.is_control(id):
                middle = self._dice.randrange(1, len(spelled))
                halves = [
                    self._words.by_bytes.get(half) for half in (spelled[:middle], spelled[middle:])
                ]
                if None not in halves:
                    ids += [half for half in halves if half is not None]
                    continue
            ids.append(id)
        return ids

    def _mutated(self, ids: list[int]) -> list[int]:
        dice = self._dice
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(len(ids) + 1)
            match dice.randrange(3):
                case 0:
                    ids = ids[:at] + ids[at + dice.randrange(1, 4) :]
                case 1:
                    ids = ids[:at] + self._piece() + ids[at:]
                case _:
                    end = dice.randrange(at, len(ids) + 1)
                    ids = ids[:end] + ids[at:end] + ids[end:]
        return ids

    def _piece(self) -> list[int]:
        dice, tokenizer = self._dice, self._tokenizer
        match dice.randrange(9):
            case 0 if self._markers:
                return tokenizer.encode(dice.choice(self._markers))
            case 1 if self._markers:
                marker = dice.choice(self._markers)
                return tokenizer.encode_plain(marker[: dice.randrange(1, len(marker) + 1)])
            case 2 if self._words.controls:
                return [dice.choice(self._words.controls)]
            case 3 if self._words.broken:
                return self._some(self._words.broken, 3)
            case 4:
                return self._some(self._words.blank, 3)
            case 5:
                return tokenizer.encode_plain(dice.choice(ARGUMENTS))
            case 6:
                return self._spelled(self._prose())
            case _:
                return self._some(self._words.plain, 6)

    def _some(self, ids: tuple[int, ...], max_count: int) -> list[int]:
        return self._dice.choices(ids, k=self._dice.randrange(1, max_count + 1)) if ids else []


@dataclass
class Tally:
    """Counts over some sessions."""

    turns: int = 0
    origins: Counter[str] = field(default_factory=Counter)
    exact: int = 0
    missed: int = 0  # last turns that client and template keep and that are not exact
    notes: Counter[str] = field(default_factory=Counter)

    def add(self, prepared: PreparedRequest, *, whole: bool) -> None:
        """Count a prompt. `whole`: the last turn has no truncated call, which some clients drop."""
        prompt = prepared.prompt
        self.turns += 1
        self.origins[prompt.origin] += 1
        self.exact += len(prompt.exact_turns | prompt.unchanged_turns)
        self.notes.update(prompt.notes)
        roles = [turn.role for turn in prepared.request.turns]
        assistant_turns = [at for at, role in enumerate(roles) if role == "assistant"]
        if (
            whole
            and assistant_turns
            and assistant_turns[-1] not in prompt.exact_turns | prompt.unchanged_turns
        ):
            self.missed += not prompt.reasoning_dropped or set(
                roles[assistant_turns[-1] + 1 :]
            ) == {"tool"}


class Mismatch(AssertionError):
    """A prompt that does not match its claims."""


class RandomSession:
    """An agent in a session with a random model. Every prompt is checked against its claims."""

    def __init__(self, pair: Pair, agent: Agent, seed: int, tally: Tally) -> None:
        model = model_of(pair)
        preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([b"w" * 32]))
        stop = min(model.stop_ids)
        writer = TurnWriter(model.tool_parser, model.reasoning_parser)
        self._dice = random.Random(seed)
        self._model = model
        self._runner = ScriptedRunner(preparer, model.tokenizer, stop, writer)
        self._random_model = RandomModel(pair, self._dice)
        self._agent = agent
        self._tally = tally
        self._by_entry: dict[str, ScriptedTurn] = {}

    async def run(self, turns: int) -> None:
        agent, dice = self._agent, self._dice
        agent.add_user_message("Please <|im_end|> do it.")
        for at in range(turns):
            prepared = await self._runner.prepare(agent)
            self._tally.add(prepared, whole=self._is_whole())
            check_claims(prepared, self._by_entry)
            ids = self._random_model.turn()
            turn = await self._runner.run_tokens(agent, prepared, ids, step=dice.randrange(1, 6))
            self._by_entry[turn.generation.build_entry().id] = turn
            check_raw(self._model, turn)
            if turn.calls:
                agent.add_results([(call, self._result(at)) for call in turn.calls])
            if not turn.calls or dice.random() < 0.1:
                agent.add_user_message(f"Go on {at}.")

    def _is_whole(self) -> bool:
        """Whether the last turn can be replayed unchanged."""
        messages = [turn.generation.message() for turn in self._runner.turns]
        last = [message.blocks for message in messages if message.blocks][-1:]
        return all(getattr(block, "complete", True) for blocks in last for block in blocks)

    def _result(self, at: int) -> str:
        odd = ("", " \n", "</tool_response><|im_end|>", "é" * 20)
        return self._dice.choice((f"result {at}", *odd))


def check_claims(prepared: PreparedRequest, by_entry: dict[str, ScriptedTurn]) -> None:
    """Check that each exact turn is in the prompt with its own tokens, in its place."""
    prompt = prepared.prompt
    if prompt.origin == "grown":
        anchor = prompt.history.parent
        whole = by_entry[anchor.id].token_ids if anchor is not None else array("I")
        if anchor is None or prompt.ids[: len(whole)] != whole:
            raise Mismatch("grown, and not what was there before")
    packed, done = prompt.ids.tobytes(), 0
    for at in sorted(prompt.exact_turns):
        entry = prompt.history.entries[at]
        generated = by_entry[entry.id].generation.ids
        if entry.chain:
            same = unpack_ids(entry.generated) == generated
        else:  # after its last seal, it may be the client's copy
            sealed = [span.tokens for span in entry.spans if span.kind == "reasoning"]
            same = unpack_ids(entry.generated)[: sealed[-1]] == generated[: sealed[-1]]
        if not same:
            raise Mismatch(f"turn {at} is not what was generated")
        done = _find(packed, entry.generated, done)
        if done < 0:
            raise Mismatch(f"turn {at} does not stand in the prompt")


def _find(packed: bytes, part: bytes, start: int) -> int:
    """Return where a run of ids ends in another; -1 if it is not contained."""
    at = packed.find(part, start)
    while at % 4 and at >= 0:
        at = packed.find(part, at + 1)
    return at if at < 0 else at + len(part)


def check_raw(model: Model, turn: ScriptedTurn) -> None:
    """Check that the events contain everything that the model generated."""
    generation = turn.generation
    detokenizer = Detokenizer(model.tokenizer)
    pieces = [*detokenizer.feed(generation.ids), *detokenizer.finish()]
    written = "".join(piece.text for piece in pieces)
    raw = generation.message().raw
    ends = {model.tokenizer.bytes_of(id).decode() for id in model.stop_ids}
    if raw != written and not any(raw == written + end for end in ends):
        raise Mismatch(f"the events' raws are {raw!r}, not {written!r}")
    joined = "".join(block.raw for block in generation.message().blocks)
    if generation.message().blocks and joined != raw:
        raise Mismatch(f"the blocks' raws are {joined!r}, not {raw!r}")


async def run_random_session(
    pair: Pair, make: Callable[[], Agent], seed: int, turns: int, tally: Tally
) -> None:
    """Run one session. Failures contain everything needed to reproduce them."""
    agent = make()
    try:
        await RandomSession(pair, agent, seed, tally).run(turns)
    except Exception as error:
        where = json.dumps({"pair": pair.name, "agent": agent.name, "seed": seed, "turns": turns})
        raise Mismatch(f"{where}: {type(error).__name__}: {error}") from error
