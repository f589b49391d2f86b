"""Sample for tests, in the interpreter that has torch: requests and results are lines of JSON.

`step` returns the processed scores, with None for tokens that cannot be sampled. `draws` returns
the tokens that are sampled from the same scores at many positions.
"""

import json
import sys
from importlib import import_module
from math import isinf
from types import SimpleNamespace
from typing import Any

from dovetail.engines.transformers.child.batch_sampler import ARGUMENT_ROWS, BatchSampler
from dovetail.engines.transformers.child.sampling_params import SamplingParams

torch = import_module("torch")
PADDING = 3  # more rows than requests, as in a replayed batch


class FixedMask:
    """A grammar that always allows the same ids."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    def fill(self, generated: list[int], words: Any) -> None:
        words[:] = 0
        for id in self._ids:
            words.view("uint32")[id // 32] |= 1 << id % 32


class Bench:
    """One processor, and the requests that it has processed."""

    def __init__(self, rows: int, vocabulary: int, spelled: int) -> None:
        self._sampler = BatchSampler(rows, vocabulary, spelled, "cpu")
        self._arguments = torch.zeros((ARGUMENT_ROWS, rows + PADDING), dtype=torch.int32)
        self._draws: dict[str, SamplingParams] = {}
        defaults = torch.zeros((ARGUMENT_ROWS, 1), dtype=torch.int32)
        self._sampler.fill_defaults(defaults)
        self._arguments[:] = defaults

    def step(self, rows: list[dict[str, Any]], scores: list[list[float]]) -> list[list[Any]]:
        requests = []
        for row in rows:
            requests.append(SimpleNamespace(has_new_token=True, state=self._state(row)))
            # A request whose prompt is not prefilled yet gets no row.
            requests.append(SimpleNamespace(has_new_token=False, state=None))
        self._sampler.prepare_tensor_args(requests, self._arguments)
        given = torch.tensor(scores + [scores[0]] * PADDING)
        done = self._sampler(None, given, self._arguments[:, : len(given)])
        return [[None if isinf(x) else x for x in row] for row in done[: len(rows)].tolist()]

    def draws(
        self, seeds: list[int], places: int, scores: list[float] | int, fields: dict[str, Any]
    ) -> list[list[int]]:
        """Return each seed's sampled token per position.

        A number stands for that many equal scores.
        """
        given = torch.zeros(scores) if isinstance(scores, int) else torch.tensor(scores)
        draws = [SamplingParams(seed=seed, **fields) for seed in seeds]
        drawn = []
        for place in range(places):
            states = [_state(draw, [1], range(place)) for draw in draws]
            requests = [SimpleNamespace(has_new_token=True, state=state) for state in states]
            self._sampler.prepare_tensor_args(requests, self._arguments)
            rows = given.repeat(len(seeds), 1)
            drawn.append(self._sampler(None, rows, self._arguments).argmax(-1).tolist())
        return [list(column) for column in zip(*drawn, strict=True)]

    def _state(self, row: dict[str, Any]) -> Any:
        fields = row.get("draw", {})
        if "allow" in fields:
            fields["guide"] = FixedMask(fields.pop("allow"))
        draw = self._draws.setdefault(row["name"], SamplingParams(**fields))
        return _state(draw, row["prompt"], row["generated"], row.get("moved", 0))


def _state(draw: SamplingParams, prompt: list[int], generated: Any, moved: int = 0) -> Any:
    """Create the state of a request.

    `moved` generated tokens are in the prompt, as after a restart.
    """
    return SimpleNamespace(
        logit_processor_kwargs={"draw": draw},
        initial_tokens=[*prompt, *generated[:moved]],
        generated_tokens=generated[moved:],
        _true_initial_tokens=len(prompt) if moved else 0,
    )


def main() -> None:
    torch.set_num_threads(1)
    benches: dict[str, Bench] = {}
    for line in sys.stdin:
        bench, size, method, given = json.loads(line)
        if bench not in benches:
            benches[bench] = Bench(*size)
        with torch.inference_mode():
            print(json.dumps(getattr(benches[bench], method)(**given)), flush=True)


if __name__ == "__main__":
    main()
