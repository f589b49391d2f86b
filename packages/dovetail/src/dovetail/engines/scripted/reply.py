"""An answer made ready for one request: its ids, where it is cut into deltas, how it ends."""

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, repeat, takewhile
from typing import Literal

from dovetail.engines.engine import EngineRequest
from dovetail.engines.scripted.script import Answer, Break, Script, ScriptError
from dovetail_tokenizers import Tokenizer

MOST_REMEMBERED = 1_024
LOOK_BACK = 256  # tokens at a prompt's end in which the token that ends turns is looked for


@dataclass(frozen=True)
class Take:
    """What is played: deltas of `ids` up to each of `ends`, then the finish or the break."""

    answer: Answer
    ids: list[int]
    ends: Sequence[int]
    finish: Literal["stop", "length"] | None
    breaks: Break | None = None


class Takes:
    """Makes takes. Every answer is tokenized once, at the start, so that mistakes show then.

    `stop_ids` are the model's own, the usual one first; `chunk` is the usual size of a delta.
    `continues`: a prompt that ends with the beginning of its answer is gone on with.
    """

    def __init__(
        self,
        script: Script,
        tokenizer: Tokenizer,
        chunk: int = 1,
        stop_ids: Sequence[int] = (),
        *,
        continues: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._chunk = chunk
        self._stop_ids = tuple(stop_ids)
        self._continues = continues
        answers = {answer: None for rule in script.rules for answer in rule.answers}
        self._pieces = {answer: self._tokenize(answer) for answer in answers}
        self._named = {answer: self._named_stop(answer) for answer in answers}
        self._whole: OrderedDict[tuple[Answer, int | None, frozenset[int]], Take] = OrderedDict()
        # Of a request, its answer and how far it was at each prompt's end, by the prompt's length.
        self._begun: OrderedDict[str, tuple[Answer, dict[int, int]]] = OrderedDict()

    def resumed(self, request: EngineRequest) -> Take | None:
        """The rest of an answer, for a request that goes on with one.

        A server that closes a thought for the model stops the generation, and asks again under the
        same id for what follows. The script goes on behind its own closing of the thought. There
        may be several thoughts, each closed in its turn.
        """
        answer, places = self._begun.get(request.id, (None, {}))
        length = max((known for known in places if known < len(request.prompt)), default=None)
        if answer is None or length is None:
            return None
        whole = self._speak(answer, request)
        at = places[length]
        said = _behind(whole.ids[at:], request.prompt[length:].tolist())
        if said is None:
            return None
        places[len(request.prompt)] = at + said
        rest = replace(whole, breaks=None)
        return _cut(_rest(rest, at + said), request.max_tokens)

    def take(self, answer: Answer, request: EngineRequest) -> Take:
        """The answer as this request gets it."""
        whole = self._speak(answer, request)
        said = _said(whole.ids, request.prompt) if self._continues else 0
        self._begun[request.id] = (answer, {len(request.prompt): said})
        if len(self._begun) > MOST_REMEMBERED:
            self._begun.popitem(last=False)
        return _cut(_rest(whole, said), request.max_tokens)

    def _speak(self, answer: Answer, request: EngineRequest) -> Take:
        """The whole answer with its stop token. Requests are mostly alike, so it is kept."""
        stop = self._stop(answer, request)
        key = (answer, stop, request.stop_ids)
        take = self._whole.get(key)
        if take is None:
            take = self._whole[key] = self._make(*key)
            if len(self._whole) > MOST_REMEMBERED:
                self._whole.popitem(last=False)
        return take

    def _make(self, answer: Answer, stop: int | None, stop_ids: frozenset[int]) -> Take:
        pieces = self._pieces[answer]
        ids = list(chain.from_iterable(pieces))
        end = next((at for at, id in enumerate(ids) if id in stop_ids), None)
        if end is not None:
            ids = ids[: end + 1]
        elif stop is not None:
            ids.append(stop)
        sizes: Iterable[int] = answer.sizes or (self._chunk,)
        if answer.keep_pieces:
            sizes = [*map(len, pieces[:-1]), len(ids)]
        finish = "stop" if end is not None else answer.finish or "stop"
        return Take(answer, ids, _ends(sizes, len(ids)), finish, answer.breaks)

    def _stop(self, answer: Answer, request: EngineRequest) -> int | None:
        """The token behind the answer, if there is to be one."""
        if answer.stop is False or answer.finish == "length":
            return None
        named = self._named[answer]
        if named is not None:
            return named
        wanted = [id for id in self._stop_ids if id in request.stop_ids]
        if wanted or not request.stop_ids:
            return next(iter(wanted or self._stop_ids), None)
        return _usual_stop(request.prompt, request.stop_ids)

    def _tokenize(self, answer: Answer) -> list[list[int]]:
        known = self._tokenizer
        pieces = [known.encode(p) if isinstance(p, str) else list(p) for p in answer.pieces]
        strange = next((id for piece in pieces for id in piece if id >= known.size), None)
        if strange is not None:
            raise ScriptError(f"{answer.where}: this model has no token {strange}")
        return pieces

    def _named_stop(self, answer: Answer) -> int | None:
        stop = answer.stop
        if isinstance(stop, bool):
            return None
        ids = [stop] if isinstance(stop, int) else self._tokenizer.encode(stop)
        if len(ids) != 1 or ids[0] >= self._tokenizer.size:
            raise ScriptError(f"{answer.where}: {stop!r} is not one token of this model")
        return ids[0]


def _usual_stop(prompt: "array[int]", stop_ids: frozenset[int]) -> int:
    """The one that ended a turn of the prompt last, else the lowest."""
    if len(stop_ids) > 1:
        for id in reversed(prompt[-LOOK_BACK:]):
            if id in stop_ids:
                return id
    return min(stop_ids)


def _ends(sizes: Iterable[int], length: int) -> list[int]:
    """Where deltas end; the last size is repeated. There is always one, for the finish."""
    sizes = tuple(sizes)
    ends = accumulate(chain(sizes, repeat(sizes[-1])))
    return [*takewhile(lambda end: end < length, ends), length]


def _cut(take: Take, max_tokens: int) -> Take:
    """What a limit or a break leaves of an answer."""
    length, finish, breaks = len(take.ids), take.finish, take.breaks
    if length > max_tokens:
        length, finish = max(0, max_tokens), "length"
    if breaks is not None and (breaks.after < length or not take.ids):
        length, finish = min(breaks.after, length), None
    else:
        breaks = None
    if length == len(take.ids) and finish == take.finish and breaks is take.breaks:
        return take
    ends = list(take.ends[: bisect_left(take.ends, length)])
    if length or finish:
        ends.append(length)
    return Take(take.answer, take.ids[:length], ends, finish, breaks)


def _said(ids: Sequence[int], prompt: "array[int]") -> int:
    """How much of an answer a prompt ends with."""
    longest = min(len(ids) - 1, len(prompt))
    tail = prompt[len(prompt) - longest :].tolist()
    return next((n for n in range(longest, 0, -1) if tail[longest - n :] == ids[:n]), 0)


def _rest(take: Take, said: int) -> Take:
    """A take without its first tokens."""
    if not said:
        return take
    breaks = take.breaks
    if breaks is not None:
        breaks = replace(breaks, after=max(0, breaks.after - said))
    ends = [end - said for end in take.ends if end > said]
    return Take(take.answer, take.ids[said:], ends, take.finish, breaks)


def _behind(ids: Sequence[int], grown: Sequence[int]) -> int | None:
    """Where to go on after a prompt grew by a part of the answer and a closing of it, if it did."""
    said = next((n for n, (a, b) in enumerate(zip(ids, grown, strict=False)) if a != b), None)
    if said is None:
        said = min(len(ids), len(grown))
    closing = grown[said:]
    if said >= len(ids) - 1:
        return None
    found = _find(ids, closing, said)
    if found is not None:
        return found + len(closing)
    return said or None


def _find(ids: Sequence[int], wanted: Sequence[int], start: int) -> int | None:
    places: Collection[int] = range(start, len(ids) - len(wanted) + 1)
    return next((at for at in places if ids[at : at + len(wanted)] == wanted), None)
