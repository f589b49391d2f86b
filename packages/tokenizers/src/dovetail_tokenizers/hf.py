"""Tokenizers in the format of the `tokenizers` library (`tokenizer.json`). Extra: [hf].

The library's tokenizer is built from a modified definition in which every added token has a secret
name, whether it is marked special or not. No text can then spell an added token, neither as such
nor through the model's vocabulary. This module finds the added tokens in a text that may spell
them, and the library encodes the text between them. Only runs of white space remain what they are:
some vocabularies have added tokens for them, and they control nothing. A text that is not the first
follows a secret anchor token, so that the library treats it as text in the middle of a string. The
words of byte-level vocabularies recur and are cached, so most texts do not reach the library.

Added tokens are searched in the original text, before normalization. The library does the same
for tokens with `normalized: false`, which is nearly all of them; for the others the result is the
same unless the normalizer changes their spelling.

A vocabulary without byte fallback yields its unknown token for unknown characters. That token is
retained even though it is usually marked special; otherwise text would be dropped.
"""

import json
import secrets
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dovetail_tokenizers.control import AddedTokenFlags, ControlTable, is_blank
from dovetail_tokenizers.encoding import (
    check_length,
    decode_ids,
    encode_parts,
    raise_panic,
    replace_lone_surrogates,
    require_extra,
)
from dovetail_tokenizers.long_text_cache import MIN_LONG_CHARS, EncodeMode, LongTextCache
from dovetail_tokenizers.spelling import byte_alphabet, spelling_reader
from dovetail_tokenizers.words import WordEncoder, read_pre_tokenizer

if TYPE_CHECKING:
    import tokenizers

Definition = Mapping[str, Any]


class HfTokenizer:
    """A tokenizer read from a `tokenizer.json`."""

    __slots__ = (
        "_added",
        "_anchor",
        "_bytes",
        "_inner",
        "_long_texts",
        "_names",
        "_read_spelling",
        "_renumbered",
        "_word_encoder",
        "controls",
        "size",
    )

    def __init__(self, definition: Definition, controls: Iterable[str] = ()) -> None:
        """`controls` names added tokens to treat as control tokens although not marked special."""
        added = definition.get("added_tokens") or []
        self.controls = _control_table(added, frozenset(controls))
        self._added = _added_table(added)
        self._names = _names(definition, added)
        self.size = len(self._names)
        self._bytes: list[bytes | None] = [None] * self.size
        self._read_spelling = spelling_reader(definition, {token["id"] for token in added})
        secret = secrets.token_hex(16)
        self._anchor = f"{secret}-"
        self._inner = _load(_hide_added(definition, self._added, secret))
        self._renumbered = self._find_renumbered(added, secret)
        self._word_encoder = self._build_word_encoder(definition, added)
        self._long_texts = LongTextCache()

    @classmethod
    def from_json(cls, source: str | bytes, controls: Iterable[str] = ()) -> Self:
        """Build a tokenizer from the content of a `tokenizer.json`."""
        return cls(json.loads(source), controls)

    @classmethod
    def from_file(cls, path: str | Path, controls: Iterable[str] = ()) -> Self:
        """Build a tokenizer from a `tokenizer.json` file."""
        return cls.from_json(Path(path).read_bytes(), controls)

    def encode(self, text: str) -> list[int]:
        return encode_parts(self, self._added, text)

    def encode_plain(self, text: str, *, first: bool = False) -> list[int]:
        if len(text) >= MIN_LONG_CHARS:
            return self.pack_plain(text, first=first).tolist()
        known = self._word_encoder.encode(text) if self._word_encoder is not None else None
        return self._encode_with_library(text, first) if known is None else known

    def pack_plain(self, text: str, *, first: bool = False) -> "array[int]":
        if len(text) < MIN_LONG_CHARS:
            return array("I", self.encode_plain(text, first=first))
        mode: EncodeMode = "first" if first else "later"
        known = self._long_texts.get(mode, text)
        return (
            self._long_texts.put(mode, text, self._encode_long(text, first))
            if known is None
            else known
        )

    def _encode_long(self, text: str, first: bool) -> Iterable[int]:
        known = (
            self._word_encoder.encode_long(text, self._long_texts)
            if self._word_encoder is not None
            else None
        )
        return self._encode_with_library(text, first) if known is None else known

    def _encode_with_library(self, text: str, first: bool) -> list[int]:
        """Encode with the library."""
        if not text:
            return []
        check_length(text)
        text = replace_lone_surrogates(text)
        return self._encode(text) if first else self._encode(self._anchor + text)[1:]

    def decode(self, ids: Iterable[int]) -> str:
        return decode_ids(self, ids)

    def bytes_of(self, id: int) -> bytes:
        if not 0 <= id < self.size:
            return b""
        known = self._bytes[id]
        if known is None:
            known = self._bytes[id] = self._spell(id)
        return known

    def is_control(self, id: int) -> bool:
        return self.controls.has_id(id)

    def _spell(self, id: int) -> bytes:
        spelling = self.controls.spelling(id)
        return self._read_spelling(self._names[id], id) if spelling is None else spelling.encode()

    def _encode(self, text: str) -> list[int]:
        try:
            (found,) = self._inner.encode_batch_fast([text], add_special_tokens=False)
        except BaseException as error:
            raise_panic(error, text)
            raise
        return self._restore_ids(found.ids)

    def _restore_ids(self, ids: list[int]) -> list[int]:
        renumbered = self._renumbered
        return [renumbered.get(id, id) for id in ids] if renumbered else ids

    def _build_word_encoder(
        self, definition: Definition, added: list[dict[str, Any]]
    ) -> WordEncoder | None:
        """Build the encoder that splits texts into words; None for an unsupported vocabulary."""
        known = read_pre_tokenizer(definition)
        if known is None:
            return None
        spelled = {byte: character for character, byte in byte_alphabet().items()}
        tokenize = self._inner.model.tokenize

        def merge(word: str) -> list[int]:
            spelling = word.encode().decode("latin-1").translate(spelled)
            return self._restore_ids([token.id for token in tokenize(spelling)])

        blank = [token["content"] for token in added if token["content"] not in self._added]
        return WordEncoder(*known, merge, added=blank)

    def _find_renumbered(self, added: list[dict[str, Any]], secret: str) -> dict[int, int]:
        """Map the library's ids of added tokens to the definition's: they differ after gaps."""
        renumbered = {}
        for token in added:
            name = _hidden_name(token["content"], self._added, secret)
            given = self._inner.token_to_id(name)
            if given is not None and given != token["id"]:
                renumbered[given] = token["id"]
        return renumbered


def _control_table(added: list[dict[str, Any]], named: frozenset[str]) -> ControlTable:
    chosen = [token for token in added if token.get("special") or token["content"] in named]
    return _table(chosen, (token["content"] for token in added))


def _added_table(added: list[dict[str, Any]]) -> ControlTable:
    """Return the added tokens that plain text must not become."""
    chosen = [token for token in added if token.get("special") or not is_blank(token["content"])]
    return _table(chosen, (token["content"] for token in added))


def _table(tokens: list[dict[str, Any]], plain_tokens: Iterable[str]) -> ControlTable:
    ids = {token["content"]: token["id"] for token in tokens}
    flags = {
        token["content"]: AddedTokenFlags(
            bool(token.get("lstrip")), bool(token.get("rstrip")), bool(token.get("single_word"))
        )
        for token in tokens
    }
    return ControlTable(ids, flags, plain_tokens)


def _names(definition: Definition, added: list[dict[str, Any]]) -> list[str]:
    """Return the name of every id; an empty string for unused ids."""
    vocabulary = definition["model"]["vocab"]
    if isinstance(vocabulary, dict):
        named = {id: name for name, id in reversed(vocabulary.items())}
    else:
        named = {id: entry[0] for id, entry in enumerate(vocabulary)}
    named |= {token["id"]: token["content"] for token in reversed(added)}
    return [named.get(id, "") for id in range(max(named, default=-1) + 1)]


def _hidden_name(name: str, hidden: ControlTable, secret: str) -> str:
    return f"{secret}+{hidden[name]}" if name in hidden else name


def _hide_added(definition: Definition, hidden: ControlTable, secret: str) -> dict[str, Any]:
    """Return the definition with secret names for added tokens, and with the anchor token."""
    plain_edges = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    added = []
    for token in definition.get("added_tokens") or []:
        if token["content"] in hidden:
            token = {
                **token,
                **plain_edges,
                "content": _hidden_name(token["content"], hidden, secret),
            }
        added.append(token)
    top = max((token["id"] for token in added), default=-1)
    anchor = {"id": top + 1, "content": f"{secret}-", "special": True, **plain_edges}
    return {
        **definition,
        "added_tokens": [*added, anchor],
        "model": _hide_in_model(definition["model"], hidden, secret),
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }


def _hide_in_model(model: Definition, hidden: ControlTable, secret: str) -> dict[str, Any]:
    changed = dict(model)
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        inside = [name for name in hidden if name in vocabulary]
        changed["vocab"] = renamed = dict(vocabulary)  # most of 150,000 names stay as they are
        for name in inside:
            renamed[_hidden_name(name, hidden, secret)] = renamed.pop(name)
        if inside and "merges" in model:
            changed["merges"] = _merges_without(model["merges"], frozenset(inside))
    else:
        changed["vocab"] = [[_hidden_name(e[0], hidden, secret), e[1]] for e in vocabulary]
    if model.get("unk_token"):
        changed["unk_token"] = _hidden_name(model["unk_token"], hidden, secret)
    return changed


def _merges_without(merges: list[Any], removed: frozenset[str]) -> list[Any]:
    """Return the merges that neither produce nor use one of these tokens."""
    remaining = []
    for merge in merges:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        if left + right not in removed and left not in removed and right not in removed:
            remaining.append(merge)
    return remaining


def _load(definition: dict[str, Any]) -> "tokenizers.Tokenizer":
    library = require_extra("tokenizers", "hf")
    source = json.dumps(definition, ensure_ascii=False).encode("utf-8", "surrogatepass")
    tokenizer: tokenizers.Tokenizer = library.Tokenizer.from_buffer(source)
    return tokenizer
