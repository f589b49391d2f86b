"""A request's sampling in the words of transformers' per-request processors.

Those are three: temperature, top_k, top_p. A whole batch is drawn at random, so a greedy request is
one that may only draw the best. min_p, penalties and seeds cannot be had for one request of many.
"""

from collections.abc import Mapping
from typing import Any

from dovetail_model import Sampling

#: A processor exists only if the config that a batch is made with uses it: these do nothing else.
PLACEHOLDERS: Mapping[str, float | int] = {"temperature": 0.5, "top_k": 1, "top_p": 0.5}


class Sampler:
    """Fills what a request leaves open from the model's own generation config."""

    __slots__ = ("_temperature", "_top_k", "_top_p", "vocabulary")

    def __init__(self, defaults: Mapping[str, Any], vocabulary: int) -> None:
        self._temperature = float(_given(defaults.get("temperature"), 1.0))
        self._top_k = int(_given(defaults.get("top_k"), 0))
        self._top_p = float(_given(defaults.get("top_p"), 1.0))
        self.vocabulary = vocabulary

    def arguments(self, sampling: Sampling) -> dict[str, float | int]:
        """Of `add_request`. Types matter to it."""
        temperature = float(_given(sampling.temperature, self._temperature))
        if temperature <= 0.0:
            return {"temperature": 1.0, "top_k": 1, "top_p": 1.0}
        top_k = int(_given(sampling.top_k, self._top_k))
        top_p = float(_given(sampling.top_p, self._top_p))
        return {
            "temperature": temperature,
            "top_k": min(top_k, self.vocabulary) if top_k > 0 else self.vocabulary,
            "top_p": min(max(top_p, 0.0), 1.0),
        }


def _given(value: Any, otherwise: float) -> Any:
    return otherwise if value is None else value
