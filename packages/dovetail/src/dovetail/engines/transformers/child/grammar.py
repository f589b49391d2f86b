"""Constrain outputs with llguidance: which tokens may continue each request's output."""

import json
from collections.abc import Collection, Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from dovetail.engines.engine import Constraint, ConstraintSyntax
from dovetail.storage.lru import LruCache
from dovetail_model import InvalidRequest, Unsupported

#: The syntaxes that llguidance supports, best first.
GRAMMAR_SYNTAXES: tuple[ConstraintSyntax, ...] = ("lark", "json_schema")
#: As in Dovetail's own grammars: a model must not loop in white space.
JSON_GRAMMAR_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
}
MAX_CACHED_GRAMMARS = 64
MASK_WORD_BITS = 32


class GrammarGuide:
    """One request's grammar, and the state of its output. `eos_ids` end the output."""

    __slots__ = (
        "_consumed",
        "_disallowed_eos_bits",
        "_eos_bits",
        "_is_finished",
        "_matcher",
        "eos_ids",
    )

    def __init__(self, matcher: Any, eos_ids: list[int], disallowed_eos_ids: list[int]) -> None:
        self.eos_ids = eos_ids
        self._matcher = matcher
        self._eos_bits = _bit_positions(eos_ids)
        self._disallowed_eos_bits = _bit_positions(disallowed_eos_ids)
        self._consumed = 0
        self._is_finished = False

    def fill(self, generated: list[int], words: Any) -> None:
        """Write one bit per token that may come next, given all generated tokens.

        A complete output may only end. So may one that the grammar cannot continue, for any reason:
        this runs in the loop that all requests share, and must not raise.
        """
        try:
            self._is_finished = self._is_finished or not self._advance(generated, words)
        except Exception:
            self._is_finished = True
        if self._is_finished:
            words[:] = 0
            self._allow_eos(words)

    def _advance(self, generated: list[int], words: Any) -> bool:
        matcher, new_ids = self._matcher, generated[self._consumed :]
        self._consumed = len(generated)
        if new_ids and (not matcher.consume_tokens(new_ids) or matcher.is_stopped()):
            return False
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        for word, bit in self._disallowed_eos_bits:
            words[word] &= ~bit
        if matcher.is_accepting():
            self._allow_eos(words)
        return bool(words.any()) and not matcher.is_error()

    def _allow_eos(self, words: Any) -> None:
        for word, bit in self._eos_bits:
            words[word] |= bit


class MinTokensMask:
    """Allows all tokens, and `eos_ids` only after the minimum number of tokens."""

    __slots__ = ("_eos_bits", "_min_tokens")

    def __init__(self, eos_ids: Iterable[int], min_tokens: int) -> None:
        self._eos_bits = _bit_positions(eos_ids)
        self._min_tokens = min_tokens

    def fill(self, generated: list[int], words: Any) -> None:
        """Write one bit per token that may come next."""
        words[:] = -1
        if len(generated) < self._min_tokens:
            for word, bit in self._eos_bits:
                words[word] &= ~bit


class GrammarCompiler:
    """Creates guides for one model. `eos_ids` end its turns."""

    def __init__(self, folder: Path, vocabulary: int, eos_ids: Iterable[int]) -> None:
        self._file = folder / "tokenizer.json"
        self._vocabulary = vocabulary
        self._eos_ids = sorted(id for id in eos_ids if 0 <= id < vocabulary)
        self._matchers: LruCache[Constraint, Any] = LruCache(MAX_CACHED_GRAMMARS)
        self._lock = Lock()
        self._tokenizer: Any = None

    @property
    def syntaxes(self) -> tuple[ConstraintSyntax, ...]:
        """The supported syntaxes; empty without llguidance or a vocabulary that it can read."""
        return GRAMMAR_SYNTAXES if find_spec("llguidance") and self._file.is_file() else ()

    def create_guide(self, constraint: Constraint, stop_ids: Collection[int]) -> GrammarGuide:
        """Create a guide that allows a complete output to end by `stop_ids`, or by the model's own.

        This takes about a second the first time, then milliseconds for a new grammar. Most of it
        runs without the interpreter lock, so it may run in any thread. Raises for a grammar that
        cannot be used: a grammar that was accepted does not fail later.
        """
        if not self.syntaxes:
            raise Unsupported(
                "the engine 'transformers' requires the package llguidance for constraints"
            )
        if constraint.syntax not in GRAMMAR_SYNTAXES:
            raise Unsupported(
                f"the engine 'transformers' does not support {constraint.syntax} constraints"
            )
        with self._lock:
            matcher = self._get_matcher(constraint).deep_copy()
        eos_ids = sorted(id for id in stop_ids if 0 <= id < self._vocabulary) or self._eos_ids
        if not eos_ids:
            raise Unsupported(
                "a constraint requires a token id that ends the output, but the model has none"
            )
        return GrammarGuide(matcher, eos_ids, [id for id in self._eos_ids if id not in eos_ids])

    def _get_matcher(self, constraint: Constraint) -> Any:
        """Return the matcher in its initial state, from an LRU cache."""
        matcher = self._matchers.get(constraint)
        if matcher is None:
            matcher = self._compile(constraint)
            self._matchers.put(constraint, matcher)
        return matcher

    def _compile(self, constraint: Constraint) -> Any:
        matcher_type = import_module("llguidance").LLMatcher
        tokenizer = self._load_tokenizer()
        try:
            if constraint.syntax == "lark":
                grammar = matcher_type.grammar_from_lark(constraint.text)
            else:
                grammar = matcher_type.grammar_from_json_schema(
                    constraint.text, overrides=JSON_GRAMMAR_OPTIONS
                )
            matcher = matcher_type(tokenizer, grammar, log_level=0)
        except ValueError as fault:
            raise InvalidRequest(f"the grammar cannot be used: {fault}") from fault
        if matcher.is_error():
            raise InvalidRequest(f"the grammar cannot be used: {_first_line(matcher.get_error())}")
        return matcher

    def _load_tokenizer(self) -> Any:
        if self._tokenizer is None:
            try:
                self._tokenizer = import_module("llguidance").LLTokenizer(
                    self._file.read_text("utf-8"),
                    n_vocab=self._vocabulary,
                    eos_token=self._eos_ids or None,
                )
            except Exception as fault:
                raise Unsupported(f"llguidance cannot read the tokenizer: {fault}") from fault
        return self._tokenizer


def tokenizer_vocab_size(folder: Path, vocabulary: int) -> int:
    """Return how many ids of a model's vocabulary its tokenizer has. The rest is padding."""
    try:
        tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
        ids: list[int] = [token["id"] for token in tokenizer["added_tokens"]]
        known = tokenizer["model"]["vocab"]
        ids.append(max(known.values()) if isinstance(known, dict) else len(known) - 1)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return vocabulary
    try:
        config = json.loads((folder / "tokenizer_config.json").read_bytes())
        ids.extend(int(id) for id in config.get("added_tokens_decoder", {}))
    except (OSError, ValueError, AttributeError):
        pass
    return min(max(ids) + 1, vocabulary)


def _bit_positions(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Return the word and the bit of each id, as signed numbers."""
    positions = []
    for id in ids:
        bit = 1 << id % MASK_WORD_BITS
        positions.append(
            (
                id // MASK_WORD_BITS,
                bit if id % MASK_WORD_BITS < MASK_WORD_BITS - 1 else bit - (1 << MASK_WORD_BITS),
            )
        )
    return positions


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason given"
