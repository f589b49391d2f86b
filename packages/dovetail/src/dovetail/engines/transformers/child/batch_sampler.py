"""Draws the tokens of a whole batch, each row by its own request's parameters.

It stands where the library has its list of logits processors, and has the same methods. The
library takes the likeliest of what it returns, so a token is drawn by adding noise to the scores:
the best of `scores + temperature * Gumbel noise` is distributed as `softmax(scores / temperature)`.
The noise is a function of a request's seed, of how many tokens it has, and of the token: who else
is in the batch changes nothing.

`__call__` may be recorded as a CUDA graph: it uses buffers that never move, and branches on nothing
but `needs`, which is known before each step and is to be part of the graph's key (`key_graphs`).
What nobody in a batch asked for then costs nothing.
"""

from importlib import import_module
from math import inf, log
from typing import Any

from dovetail.engines.transformers.child.probabilities import Probabilities, rounded_up
from dovetail.engines.transformers.child.sampling import NAME, Draw
from dovetail.engines.transformers.child.sampling_params import Counts, length, said

#: What a step has to do. How many logprobs it tells, rounded up, stands above these bits.
NOISE, FLOOR, FEW, ALL, MASK, PENALTY, TELL, RANK = 1, 2, 4, 8, 16, 32, 64, 128
TOLD = 256
#: Up to this top_k no row has to be sorted as a whole.
FEW_ROWS = 128
#: The rows of the arguments. Those before TOP_K are floats.
TEMPERATURE, COOLING, GAP, TOP_P, PRESENCE, FREQUENCY, REPETITION = range(7)
TOP_K, FACTOR, OFFSET, SLOT = range(7, 11)
ARGUMENTS = 11
#: More than the whole: no rounding can drop a token of a request that does not ask for it.
WHOLE = 2.0
WORD = 32  # bits
_MIX, _MIX_2, _GOLDEN = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15
_STIR = 0x2C1B3C6D  # odd


class Drawing:
    """For at most `rows` requests at once. Ids from `spelled` on are never drawn."""

    do_processing = True
    tensors_required = ARGUMENTS

    def __init__(self, rows: int, vocabulary: int, spelled: int, device: Any) -> None:
        self._torch = torch = import_module("torch")
        self._numpy = numpy = import_module("numpy")
        self._vocabulary, self._spelled = vocabulary, min(spelled, vocabulary)
        self._device = torch.device(device)
        self.needs = NOISE
        self.stand_in = Draw()  # of requests that the library makes up to warm up
        self._draws: list[Draw] = []
        self._seeds = numpy.zeros(0, numpy.uint64)
        self._integers = numpy.zeros((ARGUMENTS, rows), numpy.int32)
        self._reals = self._integers.view(numpy.float32)
        self._counts = Counts(rows, vocabulary, self._device)
        self.probabilities = Probabilities(rows, self._spelled, self._device)
        words = -(-vocabulary // WORD)
        self._words = torch.full((rows, words), -1, dtype=torch.int32)
        if self._device.type == "cuda":
            self._words = self._words.pin_memory()
        self._masks = torch.full((rows, words), -1, dtype=torch.int32, device=self._device)
        self._masked: set[int] = set()
        bits = [1 << at if at < WORD - 1 else -(1 << at) for at in range(WORD)]
        self._bits = torch.tensor(bits, dtype=torch.int32, device=self._device)
        ids = numpy.arange(vocabulary, dtype=numpy.uint64)
        mixed = (_mixed(numpy, ids) >> numpy.uint64(32)).astype(numpy.uint32).view(numpy.int32)
        self._tokens = torch.from_numpy(mixed).to(self._device)

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Nobody but us makes requests."""

    def fill_defaults(self, int32_tensor: Any) -> None:
        """Greedy."""
        values = self._numpy.zeros(ARGUMENTS, self._numpy.int32)
        values.view(self._numpy.float32)[:TOP_K] = (0.0, 1.0, -inf, WHOLE, 0.0, 0.0, 1.0)
        values[TOP_K:] = (self._vocabulary, 1, 0, self._counts.nobody)
        int32_tensor.copy_(self._torch.from_numpy(values).unsqueeze(1))

    def prepare_tensor_args(self, requests_in_batch: list[Any], arg_storage: Any) -> Any:
        """What a step needs, made ready on the device. Runs before the step, on the host."""
        states = [request.state for request in requests_in_batch if request.has_new_token]
        draws = [state.logit_processor_kwargs.get(NAME, self.stand_in) for state in states]
        if draws != self._draws:
            self._lay_out(draws)
        count = len(states)
        if self.needs & NOISE:
            self._turn_keys(count, states)
        if self.needs & PENALTY:
            self._integers[SLOT, :count] = self._counts.update(states, draws)
        arg_storage[:, :count].copy_(self._torch.from_numpy(self._integers[:, :count]))
        if self.needs & MASK:
            self._lay_masks(states, draws)
        return arg_storage

    def __call__(self, input_ids: Any, scores: Any, arguments: Any) -> Any:
        integers = arguments[:, : scores.shape[0]].unsqueeze(-1)
        reals = integers.view(self._torch.float32)
        known = None
        if self.needs & TELL:
            known = self.probabilities.gather(scores, self.needs // TOLD)
        if self._spelled < scores.shape[1]:
            scores[:, self._spelled :].fill_(-inf)
        if self.needs & PENALTY:
            scores = self._counts.penalized(scores, integers[SLOT, :, 0], reals[PRESENCE:TOP_K])
        if self.needs & MASK:
            scores = self._allowed(scores)
        if self.needs & FLOOR:
            floor = scores.amax(-1, keepdim=True) + reals[GAP]
            scores = scores.masked_fill(scores < floor, -inf)
        if self.needs & (FEW | ALL):
            floor = self._least(scores, integers[TOP_K], reals)
            scores = scores.masked_fill(scores < floor, -inf)
        if self.needs & NOISE:
            chances = self._exponentials(integers[FACTOR], integers[OFFSET])
            scores = self._torch.addcmul(scores, reals[TEMPERATURE], chances.log_(), value=-1)
        if known is not None:
            self.probabilities.note(known, scores, bool(self.needs & RANK))
        return scores

    def _lay_out(self, draws: list[Draw]) -> None:
        """What stays the same as long as the same requests are in the batch."""
        count = len(draws)
        seeds = [draw.seed & 0xFFFFFFFFFFFFFFFF for draw in draws]
        self._seeds = _mixed(self._numpy, self._numpy.array(seeds, self._numpy.uint64))
        for row, draw in enumerate(draws):
            warm = draw.temperature > 0
            self._reals[:TOP_K, row] = (
                draw.temperature,
                1 / draw.temperature if warm else 1.0,
                draw.temperature * log(draw.min_p) if draw.min_p > 0 else -inf,
                draw.top_p if draw.top_p < 1 else WHOLE,
                draw.presence,
                draw.frequency,
                draw.repetition,
            )
        self._integers[TOP_K, :count] = [draw.top_k or self._vocabulary for draw in draws]
        self._integers[SLOT, :count] = self._counts.nobody
        self.probabilities.lay_out(draws)
        self.needs = needs_of(draws)
        self._draws = draws

    def _turn_keys(self, count: int, states: list[Any]) -> None:
        """New noise for each new token: two numbers for each row, from its seed and place."""
        numpy = self._numpy
        places = numpy.array([length(state) for state in states], numpy.uint64)
        keys = _mixed(numpy, self._seeds + places).view(numpy.int32).reshape(count, 2)
        self._integers[FACTOR, :count] = keys[:, 0] | 1
        self._integers[OFFSET, :count] = keys[:, 1]

    def _lay_masks(self, states: list[Any], draws: list[Draw]) -> None:
        """Rows that were masked and are no more allow everything again."""
        words = self._words.numpy()
        masked = {row for row, draw in enumerate(draws) if draw.guide is not None}
        for row in self._masked - masked:
            words[row] = -1
        for row in masked:
            guide = draws[row].guide
            assert guide is not None
            guide.fill(said(states[row]), words[row])
        last = max(self._masked | masked) + 1
        self._masks[:last].copy_(self._words[:last])
        self._masked = masked

    def _allowed(self, scores: Any) -> Any:
        rows, vocabulary = scores.shape
        masks = self._masks[:rows].unsqueeze(-1) & self._bits
        forbidden = (masks == 0).view(rows, -1)[:, :vocabulary]
        return scores.masked_fill(forbidden, -inf)

    def _least(self, scores: Any, top_k: Any, reals: Any) -> Any:
        """The lowest score that top_k, and then top_p of what it leaves, let through."""
        torch, vocabulary = self._torch, scores.shape[1]
        few = min(FEW_ROWS, vocabulary) if not self.needs & ALL else vocabulary
        ranked = torch.topk(scores, few)[0] if few < vocabulary else scores.sort(descending=True)[0]
        at = torch.clamp(top_k, max=few).long() - 1
        # Who wants more than was ranked wants all, or `few` would be the whole vocabulary.
        lowest = ranked.gather(1, at).masked_fill(top_k > few, -inf)
        shares = torch.exp((ranked - ranked[:, :1]) * reals[COOLING])
        shares.masked_fill_(ranked < lowest, 0.0)
        sums = shares.cumsum(-1)
        before = sums - shares
        kept = (before < reals[TOP_P] * sums[:, -1:]).sum(-1, keepdim=True).clamp_(min=1)
        nucleus = ranked.gather(1, kept - 1).masked_fill(reals[TOP_P] >= WHOLE, -inf)
        return torch.maximum(lowest, nucleus)

    def _exponentials(self, factor: Any, offset: Any) -> Any:
        """Exponentially distributed numbers, the same for the same key and token everywhere.

        Integers of 32 bits wrap around. The arithmetic shift that ends it leaves no sign, which is
        what makes the result a number of 31 bits. It is taken as the small end of (0, 1), where
        floats lie dense: it is the smallest of them that win.
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


def needs_of(draws: list[Draw]) -> int:
    """What a step with these requests has to do."""
    needs = 0
    for draw in draws:
        needs |= NOISE if draw.temperature > 0 else 0
        needs |= FLOOR if draw.min_p > 0 else 0
        needs |= FEW if draw.top_k else 0
        needs |= ALL if draw.top_k > FEW_ROWS or (draw.top_p < 1 and not draw.top_k) else 0
        needs |= MASK if draw.guide is not None else 0
        needs |= PENALTY if draw.penalized else 0
        needs |= TELL if draw.logprobs is not None else 0
        needs |= RANK if draw.logprobs else 0
    asking = sum(draw.logprobs is not None for draw in draws)
    return (needs & ~FEW if needs & ALL else needs) + TOLD * rounded_up(asking)


def key_graphs(inputs_and_outputs: Any, drawing: Drawing) -> None:
    """Makes steps with different needs different graphs. Those of plain noise keep their keys."""
    plain = inputs_and_outputs._get_graph_key

    def keyed() -> tuple[Any, ...]:
        key: tuple[Any, ...] = plain()
        return key if drawing.needs == NOISE else (*key, "needs", drawing.needs)

    inputs_and_outputs._get_graph_key = keyed


def _mixed(numpy: Any, numbers: Any) -> Any:
    """Numbers of 64 bits, so that neighbours have nothing in common (SplitMix's finisher)."""
    mixed = (numbers + numpy.uint64(1)) * numpy.uint64(_GOLDEN)
    mixed = (mixed ^ (mixed >> numpy.uint64(30))) * numpy.uint64(_MIX)
    mixed = (mixed ^ (mixed >> numpy.uint64(27))) * numpy.uint64(_MIX_2)
    return mixed ^ (mixed >> numpy.uint64(31))
