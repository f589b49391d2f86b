"""Sample the tokens of a batch, each row with its own request's parameters.

The sampler replaces the library's list of logits processors and has the same methods. The library
takes the argmax of the returned scores, so tokens are sampled by adding noise to the scores: the
argmax of `scores + temperature * Gumbel noise` is distributed as `softmax(scores / temperature)`.
The noise is a function of the request's seed, its number of tokens, and the token, and does not
depend on other requests in the batch.

`__call__` may be recorded as a CUDA graph: it uses buffers that never move, and branches only on
`steps`, which is known before each step and is part of the graph's key (`key_graphs_by_steps`).
Work that no request in a batch needs is therefore skipped.
"""

from importlib import import_module
from math import inf, log
from typing import Any

from dovetail.engines.transformers.child.delivery import LogprobRecorder, next_power_of_two
from dovetail.engines.transformers.child.sampling_params import (
    PARAMS_KEY,
    SamplingParams,
    TokenCounts,
    generated_ids,
    generated_length,
)

#: The work of a step. The number of rows with logprobs, rounded up, is stored above these bits.
NOISE, MIN_P, PARTIAL_SORT, FULL_SORT, MASK, PENALTY, LOGPROBS, TOP_LOGPROBS = (
    1,
    2,
    4,
    8,
    16,
    32,
    64,
    128,
)
LOGPROB_ROWS_UNIT = 256
#: Up to this top_k, no row has to be sorted completely.
MAX_PARTIAL_TOP_K = 128
#: The rows of the arguments. Those before TOP_K are floats.
TEMPERATURE, INVERSE_TEMPERATURE, MIN_P_GAP, TOP_P, PRESENCE, FREQUENCY, REPETITION = range(7)
TOP_K, NOISE_FACTOR, NOISE_OFFSET, PENALTY_SLOT = range(7, 11)
ARGUMENT_ROWS = 11
#: Greater than 1, so that rounding cannot drop a token of a request without top_p.
NO_TOP_P = 2.0
MASK_WORD_BITS = 32
_MIX, _MIX_2, _GOLDEN = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15
_STIR = 0x2C1B3C6D  # odd


class BatchSampler:
    """Samples for at most `rows` requests. Ids from `tokenizer_vocab_size` on are never sampled."""

    do_processing = True
    tensors_required = ARGUMENT_ROWS

    def __init__(self, rows: int, vocabulary: int, tokenizer_vocab_size: int, device: Any) -> None:
        self._torch = torch = import_module("torch")
        self._numpy = numpy = import_module("numpy")
        self._vocabulary, self._tokenizer_vocab_size = (
            vocabulary,
            min(tokenizer_vocab_size, vocabulary),
        )
        self._device = torch.device(device)
        self.steps = NOISE
        self.warmup_params = SamplingParams()  # of the requests of the library's warm-up
        self._params: list[SamplingParams] = []
        self._seeds = numpy.zeros(0, numpy.uint64)
        self._integers = numpy.zeros((ARGUMENT_ROWS, rows), numpy.int32)
        self._reals = self._integers.view(numpy.float32)
        self._counts = TokenCounts(rows, vocabulary, self._device)
        self.probabilities = LogprobRecorder(rows, self._tokenizer_vocab_size, self._device)
        words = -(-vocabulary // MASK_WORD_BITS)
        self._words = torch.full((rows, words), -1, dtype=torch.int32)
        if self._device.type == "cuda":
            self._words = self._words.pin_memory()
        self._masks = torch.full((rows, words), -1, dtype=torch.int32, device=self._device)
        self._masked: set[int] = set()
        bits = [1 << at if at < MASK_WORD_BITS - 1 else -(1 << at) for at in range(MASK_WORD_BITS)]
        self._bits = torch.tensor(bits, dtype=torch.int32, device=self._device)
        ids = numpy.arange(vocabulary, dtype=numpy.uint64)
        mixed = (_mix64(numpy, ids) >> numpy.uint64(32)).astype(numpy.uint32).view(numpy.int32)
        self._tokens = torch.from_numpy(mixed).to(self._device)

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Accept all arguments: every request comes from this engine."""

    def fill_defaults(self, int32_tensor: Any) -> None:
        """Fill in greedy sampling."""
        values = self._numpy.zeros(ARGUMENT_ROWS, self._numpy.int32)
        values.view(self._numpy.float32)[:TOP_K] = (0.0, 1.0, -inf, NO_TOP_P, 0.0, 0.0, 1.0)
        values[TOP_K:] = (self._vocabulary, 1, 0, self._counts.empty_slot)
        int32_tensor.copy_(self._torch.from_numpy(values).unsqueeze(1))

    def prepare_tensor_args(self, requests_in_batch: list[Any], arg_storage: Any) -> Any:
        """Copy the arguments of a step to the device. Runs on the host before each step."""
        states = [request.state for request in requests_in_batch if request.has_new_token]
        batch_params = [
            state.logit_processor_kwargs.get(PARAMS_KEY, self.warmup_params) for state in states
        ]
        if batch_params != self._params:
            self._load_params(batch_params)
        count = len(states)
        if self.steps & NOISE:
            self._update_noise_keys(count, states)
        if self.steps & PENALTY:
            self._integers[PENALTY_SLOT, :count] = self._counts.update(states, batch_params)
        arg_storage[:, :count].copy_(self._torch.from_numpy(self._integers[:, :count]))
        if self.steps & MASK:
            self._load_masks(states, batch_params)
        return arg_storage

    def __call__(self, input_ids: Any, scores: Any, arguments: Any) -> Any:
        integers = arguments[:, : scores.shape[0]].unsqueeze(-1)
        reals = integers.view(self._torch.float32)
        logprobs = None
        if self.steps & LOGPROBS:
            logprobs = self.probabilities.compute(scores, self.steps // LOGPROB_ROWS_UNIT)
        if self._tokenizer_vocab_size < scores.shape[1]:
            scores[:, self._tokenizer_vocab_size :].fill_(-inf)
        if self.steps & PENALTY:
            scores = self._counts.apply_penalties(
                scores, integers[PENALTY_SLOT, :, 0], reals[PRESENCE:TOP_K]
            )
        if self.steps & MASK:
            scores = self._apply_masks(scores)
        if self.steps & MIN_P:
            floor = scores.amax(-1, keepdim=True) + reals[MIN_P_GAP]
            scores = scores.masked_fill(scores < floor, -inf)
        if self.steps & (PARTIAL_SORT | FULL_SORT):
            floor = self._score_threshold(scores, integers[TOP_K], reals)
            scores = scores.masked_fill(scores < floor, -inf)
        if self.steps & NOISE:
            chances = self._exponentials(integers[NOISE_FACTOR], integers[NOISE_OFFSET])
            scores = self._torch.addcmul(scores, reals[TEMPERATURE], chances.log_(), value=-1)
        if logprobs is not None:
            self.probabilities.record(logprobs, scores, bool(self.steps & TOP_LOGPROBS))
        return scores

    def _load_params(self, params: list[SamplingParams]) -> None:
        """Load the parameters that stay the same as long as the batch has the same requests."""
        count = len(params)
        seeds = [request_params.seed & 0xFFFFFFFFFFFFFFFF for request_params in params]
        self._seeds = _mix64(self._numpy, self._numpy.array(seeds, self._numpy.uint64))
        for row, request_params in enumerate(params):
            sampled = request_params.temperature > 0
            self._reals[:TOP_K, row] = (
                request_params.temperature,
                1 / request_params.temperature if sampled else 1.0,
                request_params.temperature * log(request_params.min_p)
                if request_params.min_p > 0
                else -inf,
                request_params.top_p if request_params.top_p < 1 else NO_TOP_P,
                request_params.presence,
                request_params.frequency,
                request_params.repetition,
            )
        self._integers[TOP_K, :count] = [
            request_params.top_k or self._vocabulary for request_params in params
        ]
        self._integers[PENALTY_SLOT, :count] = self._counts.empty_slot
        self.probabilities.load_params(params)
        self.steps = required_steps(params)
        self._params = params

    def _update_noise_keys(self, count: int, states: list[Any]) -> None:
        """Create new noise for each new token: two numbers per row, from its seed and position."""
        numpy = self._numpy
        places = numpy.array([generated_length(state) for state in states], numpy.uint64)
        keys = _mix64(numpy, self._seeds + places).view(numpy.int32).reshape(count, 2)
        self._integers[NOISE_FACTOR, :count] = keys[:, 0] | 1
        self._integers[NOISE_OFFSET, :count] = keys[:, 1]

    def _load_masks(self, states: list[Any], params: list[SamplingParams]) -> None:
        """Load the grammar masks. Rows that are no longer masked allow all tokens again."""
        words = self._words.numpy()
        masked = {
            row for row, request_params in enumerate(params) if request_params.guide is not None
        }
        for row in self._masked - masked:
            words[row] = -1
        for row in masked:
            guide = params[row].guide
            assert guide is not None
            guide.fill(generated_ids(states[row]), words[row])
        last = max(self._masked | masked) + 1
        self._masks[:last].copy_(self._words[:last])
        self._masked = masked

    def _apply_masks(self, scores: Any) -> Any:
        rows, vocabulary = scores.shape
        masks = self._masks[:rows].unsqueeze(-1) & self._bits
        forbidden = (masks == 0).view(rows, -1)[:, :vocabulary]
        return scores.masked_fill(forbidden, -inf)

    def _score_threshold(self, scores: Any, top_k: Any, reals: Any) -> Any:
        """Return the lowest score that passes top_k, and then top_p of the rest."""
        torch, vocabulary = self._torch, scores.shape[1]
        few = min(MAX_PARTIAL_TOP_K, vocabulary) if not self.steps & FULL_SORT else vocabulary
        ranked = torch.topk(scores, few)[0] if few < vocabulary else scores.sort(descending=True)[0]
        at = torch.clamp(top_k, max=few).long() - 1
        # A top_k above `few` means no filter: with any other, `few` is the whole vocabulary.
        lowest = ranked.gather(1, at).masked_fill(top_k > few, -inf)
        shares = torch.exp((ranked - ranked[:, :1]) * reals[INVERSE_TEMPERATURE])
        shares.masked_fill_(ranked < lowest, 0.0)
        sums = shares.cumsum(-1)
        before = sums - shares
        nucleus_size = (before < reals[TOP_P] * sums[:, -1:]).sum(-1, keepdim=True).clamp_(min=1)
        nucleus = ranked.gather(1, nucleus_size - 1).masked_fill(reals[TOP_P] >= NO_TOP_P, -inf)
        return torch.maximum(lowest, nucleus)

    def _exponentials(self, factor: Any, offset: Any) -> Any:
        """Return exponentially distributed numbers, always the same for the same key and token.

        32-bit integers wrap around. The final arithmetic shift clears the sign, which makes the
        result a 31-bit number. It is mapped to the small end of (0, 1), where floats are dense,
        because the smallest numbers win.
        """
        torch = self._torch
        mixed = torch.addcmul(offset, self._tokens, factor)
        shifted = mixed >> 15
        mixed.bitwise_xor_(shifted).mul_(_STIR)
        torch.bitwise_right_shift(mixed, 13, out=shifted)
        mixed.bitwise_xor_(shifted)
        uniform = shifted.view(torch.float32)
        torch.add(mixed, 0.5, out=uniform)
        return uniform.mul_(-(1 - 2**-23) / 2**31).log1p_().neg_()


def required_steps(params: list[SamplingParams]) -> int:
    """Return the work that a step with these requests has to do."""
    steps = 0
    for request_params in params:
        steps |= NOISE if request_params.temperature > 0 else 0
        steps |= MIN_P if request_params.min_p > 0 else 0
        steps |= PARTIAL_SORT if request_params.top_k else 0
        steps |= (
            FULL_SORT
            if request_params.top_k > MAX_PARTIAL_TOP_K
            or (request_params.top_p < 1 and not request_params.top_k)
            else 0
        )
        steps |= MASK if request_params.guide is not None else 0
        steps |= PENALTY if request_params.has_penalties else 0
        steps |= LOGPROBS if request_params.logprobs is not None else 0
        steps |= TOP_LOGPROBS if request_params.logprobs else 0
    logprob_rows = sum(request_params.logprobs is not None for request_params in params)
    return (
        steps & ~PARTIAL_SORT if steps & FULL_SORT else steps
    ) + LOGPROB_ROWS_UNIT * next_power_of_two(logprob_rows)


def key_graphs_by_steps(inputs_and_outputs: Any, sampler: BatchSampler) -> None:
    """Record separate graphs for different `steps`. Graphs of plain noise retain their keys."""
    plain = inputs_and_outputs._get_graph_key

    def keyed() -> tuple[Any, ...]:
        key: tuple[Any, ...] = plain()
        return key if sampler.steps == NOISE else (*key, "needs", sampler.steps)

    inputs_and_outputs._get_graph_key = keyed


def _mix64(numpy: Any, numbers: Any) -> Any:
    """Mix 64-bit numbers so that similar inputs give unrelated outputs (SplitMix's finalizer)."""
    mixed = (numbers + numpy.uint64(1)) * numpy.uint64(_GOLDEN)
    mixed = (mixed ^ (mixed >> numpy.uint64(30))) * numpy.uint64(_MIX)
    mixed = (mixed ^ (mixed >> numpy.uint64(27))) * numpy.uint64(_MIX_2)
    return mixed ^ (mixed >> numpy.uint64(31))
