"""How likely the drawn tokens were, for the requests that ask.

Told are the logarithms of the model's own probabilities, before penalties, grammars, temperature
and filters: what vLLM and llama.cpp tell, too, unless they are configured otherwise.

Only the rows that ask are looked at. Their number is rounded up to a power of two, so that the
steps of a growing batch need few graphs.
"""

from importlib import import_module
from typing import Any

from dovetail.engines.sampling import MOST_LOGPROBS, UNKNOWN_LOGPROB
from dovetail.engines.transformers.child.sampling import Draw

VALUES = 1  # the column of the likeliest's logarithms; before it is that of the drawn token
IDS = VALUES + MOST_LOGPROBS
COLUMNS = IDS + MOST_LOGPROBS


class Probabilities:
    """For at most `rows` requests at once. Ids from `spelled` on are never among the likeliest.

    `gather` and `note` run on the device and may be recorded; the buffers that they use never move.
    """

    def __init__(self, rows: int, spelled: int, device: Any) -> None:
        self._torch = torch = import_module("torch")
        self._spelled = spelled
        self._asking: list[Draw] = []
        room = rounded_up(rows)
        self._rows = torch.zeros(room, dtype=torch.int64, device=device)
        self._told = torch.zeros((room, COLUMNS), dtype=torch.int32, device=device)
        self._values = self._told.view(torch.float32)  # the same memory

    def lay_out(self, draws: list[Draw]) -> None:
        """Who asks. Runs when other requests are in the batch than before, on the host."""
        rows = [row for row, draw in enumerate(draws) if draw.logprobs is not None]
        self._asking = [draws[row] for row in rows]
        if rows:
            padded = rows + [0] * (rounded_up(len(rows)) - len(rows))
            self._rows[: len(padded)].copy_(self._torch.tensor(padded))

    def gather(self, scores: Any, count: int) -> Any:
        """The logarithms for the first `count` that ask, by the model's scores as they are."""
        asked = scores.index_select(0, self._rows[:count])
        return asked.sub_(asked.logsumexp(-1, keepdim=True))

    def note(self, known: Any, scores: Any, best: bool) -> None:
        """Keeps those of the tokens that the final scores are best for, and the `best` beside."""
        count = len(known)
        drawn = scores.index_select(0, self._rows[:count]).argmax(-1, keepdim=True)
        self._values[:count, :VALUES].copy_(known.gather(1, drawn))
        if best:
            most = min(MOST_LOGPROBS, self._spelled)
            values, ids = known[:, : self._spelled].topk(most)
            self._values[:count, VALUES : VALUES + most].copy_(values)
            self._told[:count, IDS : IDS + most].copy_(ids)

    def hand_out(self) -> None:
        """Gives each request what its new token brought. Runs behind each step, on the host."""
        if not self._asking:
            return
        told = self._told[: len(self._asking)].cpu()
        best = min(max(draw.logprobs or 0 for draw in self._asking), self._spelled)
        drawn = told[:, 0].view(self._torch.float32).tolist()
        values = told[:, VALUES : VALUES + best].view(self._torch.float32).tolist()
        ids = told[:, IDS : IDS + best].tolist()
        for row, draw in enumerate(self._asking):
            beside = zip(ids[row], map(_finite, values[row]), strict=True)
            draw.told.append((_finite(drawn[row]), list(beside)[: draw.logprobs]))


def rounded_up(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length() if count else 0


def hand_out_after_steps(manager: Any) -> bool:
    """Arranges it, before the library tells of new tokens. False: it is not one that we know."""
    transfers = getattr(manager.batch_processor, "inputs_and_outputs", None)
    update = getattr(transfers, "prepare_batch_update", None)
    if update is None:
        return False
    hand_out = manager.logit_processor.probabilities.hand_out

    def updated() -> Any:
        outcome = update()
        hand_out()
        return outcome

    transfers.prepare_batch_update = updated  # type: ignore[union-attr]
    return True


def _finite(value: float) -> float:
    """Without what JSON has no number for."""
    return max(value, UNKNOWN_LOGPROB) if value == value else UNKNOWN_LOGPROB
