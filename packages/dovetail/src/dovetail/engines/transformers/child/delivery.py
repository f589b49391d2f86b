"""Deliver tokens from the library's generation loop to sinks, and record their logprobs.

The loop runs in its own thread and calls back into the server's thread. Both need the interpreter
lock, so the work per token is kept small and is done at a chosen time.
"""

import asyncio
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from dovetail.engines.engine import TokenDelta, TokenSink
from dovetail.engines.sampling import MAX_TOP_LOGPROBS, TOKEN_ID_PREFIX, UNKNOWN_LOGPROB
from dovetail.engines.transformers.child.sampling_params import SamplingParams
from dovetail_model import TokenLogprob


class OutputDelivery:
    """Pushes the outputs of one request to its sink, in the same call that delivers them.

    Each output contains all tokens so far. While the sink is full, only the latest output is
    retained. `logprobs` contains those that the loop has recorded for tokens that are not pushed
    yet, if they were requested.
    """

    __slots__ = (
        "_cached_tokens",
        "_eos_ids",
        "_fault",
        "_latest",
        "_logprobs",
        "_paused",
        "_pushed_tokens",
        "_sink",
        "_waiter",
        "finished",
    )

    def __init__(
        self,
        sink: TokenSink,
        eos_ids: Sequence[int],
        cached_tokens: Callable[[], int],
        logprobs: list[Any] | None = None,
    ) -> None:
        self._sink = sink
        self._logprobs = logprobs
        self._eos_ids = eos_ids
        self._cached_tokens = cached_tokens
        self._pushed_tokens = 0
        self._paused = False  # whether the sink is full or was closed
        self._latest: Any = None
        self.finished = False  # whether the library has finished the request
        self._fault: Exception | None = None
        self._waiter: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def deliver(self, output: Any) -> None:
        """Deliver an output. Never raises: the same call delivers outputs of other requests."""
        if self._paused:
            self._latest = output
            return
        try:
            self._push(output)
        except Exception as fault:
            self._fault, self._paused = fault, True
            self._wake(None)

    async def wait(self) -> str | None:
        """Wait for the last output, or until the sink ends the generation.

        Return a failure's reason.
        """
        while True:
            reason = await self._waiter
            if self._fault is not None:
                raise self._fault
            if not self._paused:
                return reason
            self._waiter = asyncio.get_running_loop().create_future()
            if not await self._sink.drain():
                return None
            self._paused = False
            output, self._latest = self._latest, None
            if output is not None:
                self.deliver(output)

    def close(self) -> None:
        """Stop pushing. An output may still be in transit."""
        self._paused = True

    def _push(self, output: Any) -> None:
        self.finished = finished = output.is_finished()
        if output.error is not None:
            self._wake(str(output.error))
            return
        ids = output.generated_tokens[self._pushed_tokens :]
        cached = None if self._pushed_tokens else self._cached_tokens()
        self._pushed_tokens += len(ids)
        finish = self._finish(ids) if finished else None
        logprobs = () if self._logprobs is None else self._take_logprobs(self._logprobs, ids)
        room = self._sink.push(TokenDelta(ids, logprobs, finish, cached))
        if finished:
            self._wake(None)
        elif not room:
            self._paused = True
            self._wake(None)

    def _take_logprobs(self, logprobs: list[Any], ids: list[int]) -> tuple[TokenLogprob, ...]:
        """Return the logprobs of these ids. The loop may already have recorded more."""
        taken = logprobs[: len(ids)]
        del logprobs[: len(ids)]
        return tuple(
            TokenLogprob(
                _token_name(id), logprob, tuple((_token_name(one), value) for one, value in best)
            )
            for id, (logprob, best) in zip(ids, taken, strict=True)
        )

    def _finish(self, ids: list[int]) -> Any:
        return "stop" if ids and ids[-1] in self._eos_ids else "length"

    def _wake(self, reason: str | None) -> None:
        if not self._waiter.done():
            self._waiter.set_result(reason)


def _token_name(id: int) -> str:
    """Return the id as the name of a token: only the parent process has the texts."""
    return f"{TOKEN_ID_PREFIX}{id}"


class DeferredDelivery:
    """Delivers tokens while the device computes the next ones.

    If they were delivered immediately, the server's thread would process them while the loop
    prepares its next step, and the device would wait for both. Only the first token of a request is
    delivered immediately, to minimize the time to first token.
    """

    __slots__ = ("_deferred", "_deliver", "_deliver_batch")

    def __init__(self, processor: Any, router: Any) -> None:
        self._deferred: list[Any] = []
        self._deliver = router.deliver
        self._deliver_batch = router.deliver_batch
        router.deliver, router.deliver_batch = self.deliver, self.deliver_batch
        transfers = processor.inputs_and_outputs
        prepare, retrieve = processor.prepare_next_batch, transfers.retrieve_device_outputs

        def prepared() -> bool:
            ready: bool = prepare()
            if not ready:  # there is no next step
                self.flush()
            return ready

        def retrieved() -> None:
            self.flush()
            retrieve()  # waits for the device

        processor.prepare_next_batch = prepared
        transfers.retrieve_device_outputs = retrieved

    def deliver(self, output: Any) -> None:
        """Deliver a failure after all earlier outputs."""
        self.flush()
        self._deliver(output)

    def deliver_batch(self, outputs: list[Any]) -> None:
        first = [output for output in outputs if len(output.generated_tokens) < 2]
        if first:
            self._deliver_batch(first)
            outputs = [output for output in outputs if len(output.generated_tokens) > 1]
        self._deferred += outputs

    def flush(self) -> None:
        if self._deferred:
            due, self._deferred = self._deferred, []
            self._deliver_batch(due)


def defer_delivery(manager: Any) -> DeferredDelivery | None:
    """Install deferred delivery, if there is a device and the library's methods are known.

    On a CPU there is no better time than immediately.
    """
    processor, router = manager.batch_processor, getattr(manager, "output_router", None)
    transfers = getattr(processor, "inputs_and_outputs", None)
    if getattr(transfers, "compute_stream", None) is None:
        return None
    known = (
        hasattr(processor, "prepare_next_batch")
        and hasattr(transfers, "retrieve_device_outputs")
        and hasattr(router, "deliver")
        and hasattr(router, "deliver_batch")
    )
    return DeferredDelivery(processor, router) if known else None


VALUES_COLUMN = 1  # the first column of the top logprobs; column 0 is the sampled token's logprob
IDS_COLUMN = VALUES_COLUMN + MAX_TOP_LOGPROBS
COLUMN_COUNT = IDS_COLUMN + MAX_TOP_LOGPROBS


class LogprobRecorder:
    """Records the logprobs of at most `rows` requests.

    Ids from `tokenizer_vocab_size` on are never among the top logprobs. `compute` and `record` run
    on the device and may be recorded as a CUDA graph: their buffers never move.
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
        """Load which rows need logprobs. Runs on the host when the batch has changed."""
        rows = [
            row for row, request_params in enumerate(params) if request_params.logprobs is not None
        ]
        self._requesting = [params[row] for row in rows]
        if rows:
            padded = rows + [0] * (next_power_of_two(len(rows)) - len(rows))
            self._rows[: len(padded)].copy_(self._torch.tensor(padded))

    def compute(self, scores: Any, count: int) -> Any:
        """Compute the logprobs of the first `count` rows that need them, from raw scores."""
        logprobs = scores.index_select(0, self._rows[:count])
        return logprobs.sub_(logprobs.logsumexp(-1, keepdim=True))

    def record(self, known: Any, scores: Any, best: bool) -> None:
        """Store the logprobs of the selected tokens, and the top logprobs if `best` is set."""
        count = len(known)
        sampled = scores.index_select(0, self._rows[:count]).argmax(-1, keepdim=True)
        self._values[:count, :VALUES_COLUMN].copy_(known.gather(1, sampled))
        if best:
            top_count = min(MAX_TOP_LOGPROBS, self._tokenizer_vocab_size)
            values, ids = known[:, : self._tokenizer_vocab_size].topk(top_count)
            self._values[:count, VALUES_COLUMN : VALUES_COLUMN + top_count].copy_(values)
            self._buffer[:count, IDS_COLUMN : IDS_COLUMN + top_count].copy_(ids)

    def hand_out(self) -> None:
        """Pass each request the logprobs of its new token. Runs on the host after each step."""
        if not self._requesting:
            return
        recorded = self._buffer[: len(self._requesting)].cpu()
        best = min(
            max(request_params.logprobs or 0 for request_params in self._requesting),
            self._tokenizer_vocab_size,
        )
        sampled = recorded[:, 0].view(self._torch.float32).tolist()
        values = (
            recorded[:, VALUES_COLUMN : VALUES_COLUMN + best].view(self._torch.float32).tolist()
        )
        ids = recorded[:, IDS_COLUMN : IDS_COLUMN + best].tolist()
        for row, request_params in enumerate(self._requesting):
            top = zip(ids[row], map(_clamp_finite, values[row]), strict=True)
            request_params.recorded_logprobs.append(
                (_clamp_finite(sampled[row]), list(top)[: request_params.logprobs])
            )


def next_power_of_two(count: int) -> int:
    """Return the smallest power of two that is not less than `count`; 0 for 0."""
    return 1 << (count - 1).bit_length() if count else 0


def install_logprob_hook(manager: Any) -> bool:
    """Install the hook that passes logprobs to requests. Return False if the library is unknown."""
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
    """Replace infinities and NaN, which JSON cannot represent."""
    return max(value, UNKNOWN_LOGPROB) if value == value else UNKNOWN_LOGPROB
