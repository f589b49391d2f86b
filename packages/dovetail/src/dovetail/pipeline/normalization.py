"""Normalize requests in the event loop, or in a thread if they are very large."""

import threading

from dovetail.pipeline.concurrency import MIN_HUGE_SIZE, run_in_thread
from dovetail.pipeline.token_bound import check_can_fit, count_text_chars
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.prompt.volatile_text import NormalizationOptions
from dovetail_model import Request
from dovetail_tokenizers import Tokenizer

_MIN_OFFLOAD_TURNS = 1000  # 1 to 10 ms of work


class RequestNormalizer:
    """Normalizes the requests for one model."""

    def __init__(self, tokenizer: Tokenizer, options: NormalizationOptions) -> None:
        self._tokenizer = tokenizer
        self._normalizer = PromptNormalizer(options)
        # Used in threads, and therefore not shared with the event loop.
        self._large_normalizer = PromptNormalizer(options)
        self._large_lock = threading.Lock()

    async def normalize(self, request: Request, max_tokens: int | None) -> Request:
        """Normalize a request. A very large one uses a thread, and is checked for `max_tokens`."""
        if len(request.turns) < _MIN_OFFLOAD_TURNS and not self._is_huge(request):
            return self._normalizer.normalize(request)

        def work() -> Request:
            with self._large_lock:
                normalized = self._large_normalizer.normalize(request)
            check_can_fit(normalized, self._tokenizer, max_tokens)
            return normalized

        return await run_in_thread(count_text_chars(request), work, min_size=0)

    def _is_huge(self, request: Request) -> bool:
        """Return whether the texts are huge. They are counted only if a cheap bound is too high."""
        bound = self._normalizer.max_chars(request)
        return bound >= MIN_HUGE_SIZE and count_text_chars(request) >= MIN_HUGE_SIZE
