"""How likely the drawn tokens were, for the requests that ask.

Told are the logarithms of the model's own probabilities, before penalties, grammars, temperature
and filters: what vLLM and llama.cpp tell, too, unless they are configured otherwise.

Only the rows that ask are looked at. Their number is rounded up to a power of two, so that the
steps of a growing batch need few graphs.
"""

from importlib import import_module
from typing import Any

from dovetail.engines.sampling import MAX_TOP_LOGPROBS, UNKNOWN_LOGPROB
from dovetail.engines.transformers.child.sampling import SamplingParams

VALUES_COLUMN = 1  # the column of the likeliest's logarithms; before it is that of the drawn token
IDS_COLUMN = VALUES_COLUMN + MAX_TOP_LOGPROBS
COLUMN_COUNT = IDS_COLUMN + MAX_TOP_LOGPROBS


class LogprobRecorder:
    """For at most `rows` requests at once. Ids from `spelled` on are never among the likeliest.

    `gather` and `note` run on the device and may be recorded; the buffers that they use never move.
    """

    def __init__(self, rows: int, tokenizer_vocab_size: int, device: Any) -> None:
        self._torch = torch = import_module("torch")
        self._tokenizer_vocab_size = tokenizer_vocab_size
        self._requesting: list[SamplingParams] = []
        room = next_power_of_two(rows)
        self._rows = torch.zeros(room, dtype=torch.int64, device=device)
        self._buffer = torch.zeros((room, COLUMN_COUNT), dtype=torch.int32, device=device)
        self._values = self._buffer.view(torch.float32)  # the same memory

    def load_params(self, params: list[SamplingParams]) -> None:
        """Who asks. Runs when other requests are in the batch than before, on the host."""
        rows = [row for row, draw in enumerate(params) if draw.logprobs is not None]
        self._requesting = [params[row] for row in rows]
        if rows:
            padded = rows + [0] * (next_power_of_two(len(rows)) - len(rows))
            self._rows[: len(padded)].copy_(self._torch.tensor(padded))

    def compute(self, scores: Any, count: int) -> Any:
        """The logarithms for the first `count` that ask, by the model's scores as they are."""
        asked = scores.index_select(0, self._rows[:count])
        return asked.sub_(asked.logsumexp(-1, keepdim=True))

    def record(self, known: Any, scores: Any, best: bool) -> None:
        """Keeps those of the tokens that the final scores are best for, and the `best` beside."""
        count = len(known)
        drawn = scores.index_select(0, self._rows[:count]).argmax(-1, keepdim=True)
        self._values[:count, :VALUES_COLUMN].copy_(known.gather(1, drawn))
        if best:
            most = min(MAX_TOP_LOGPROBS, self._tokenizer_vocab_size)
            values, ids = known[:, : self._tokenizer_vocab_size].topk(most)
            self._values[:count, VALUES_COLUMN : VALUES_COLUMN + most].copy_(values)
            self._buffer[:count, IDS_COLUMN : IDS_COLUMN + most].copy_(ids)

    def hand_out(self) -> None:
        """Gives each request what its new token brought. Runs behind each step, on the host."""
        if not self._requesting:
            return
        told = self._buffer[: len(self._requesting)].cpu()
        best = min(max(draw.logprobs or 0 for draw in self._requesting), self._tokenizer_vocab_size)
        drawn = told[:, 0].view(self._torch.float32).tolist()
        values = told[:, VALUES_COLUMN : VALUES_COLUMN + best].view(self._torch.float32).tolist()
        ids = told[:, IDS_COLUMN : IDS_COLUMN + best].tolist()
        for row, draw in enumerate(self._requesting):
            beside = zip(ids[row], map(_clamp_finite, values[row]), strict=True)
            draw.recorded_logprobs.append(
                (_clamp_finite(drawn[row]), list(beside)[: draw.logprobs])
            )


def next_power_of_two(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length() if count else 0


def install_logprob_hook(manager: Any) -> bool:
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


def _clamp_finite(value: float) -> float:
    """Without what JSON has no number for."""
    return max(value, UNKNOWN_LOGPROB) if value == value else UNKNOWN_LOGPROB
