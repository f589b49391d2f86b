"""Build a tokenizer from the metadata of a GGUF file. Extra: [gguf].

The metadata is converted to a `tokenizer.json` definition for `HfTokenizer`, which does the rest.
As in llama.cpp, text is not normalized, and a SentencePiece vocabulary adds its leading space after
every added token, not only at the beginning.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dovetail_tokenizers.gguf import read_gguf_metadata
from dovetail_tokenizers.hf import HfTokenizer
from dovetail_tokenizers.patterns import PRE_TOKENIZERS, WHOLE_WORDS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
PREFIX = "tokenizer.ggml."


def from_gguf(
    path_or_metadata: str | Path | Mapping[str, object], controls: Iterable[str] = ()
) -> HfTokenizer:
    """Build the tokenizer of a GGUF file, or of metadata that was already read."""
    if isinstance(path_or_metadata, str | Path):
        path_or_metadata = read_gguf_metadata(path_or_metadata)
    return HfTokenizer(gguf_tokenizer_json(path_or_metadata), controls)


def gguf_tokenizer_json(metadata: Mapping[str, object]) -> dict[str, Any]:
    """Return the content of a `tokenizer.json` with the vocabulary of a GGUF file."""
    kind = metadata.get(f"{PREFIX}model")
    tokens = metadata.get(f"{PREFIX}tokens")
    if not isinstance(tokens, list):
        raise ValueError("the GGUF metadata contains no vocabulary (tokenizer.ggml.tokens)")
    names = [str(token) for token in tokens]
    types = _types(metadata, len(names))
    if kind == "gpt2":
        parts = _byte_level(metadata, names)
    elif kind == "llama":
        parts = _sentence_piece(metadata, names, types)
    else:
        raise ValueError(f"GGUF vocabulary type {kind!r} is not supported (supported: gpt2, llama)")
    return {"version": "1.0", "added_tokens": list(_added(names, types)), **parts}


def _types(metadata: Mapping[str, object], count: int) -> list[object]:
    types = metadata.get(f"{PREFIX}token_type")
    return types if isinstance(types, list) else [NORMAL] * count


def _added(names: list[str], types: list[object]) -> Iterator[dict[str, Any]]:
    seen = set()
    for id, (name, kind) in enumerate(zip(names, types, strict=True)):
        if kind in (UNKNOWN, CONTROL, USER_DEFINED) and name and name not in seen:
            seen.add(name)
            edges = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
            yield {"id": id, "content": name, "special": kind != USER_DEFINED, **edges}


def _byte_level(metadata: Mapping[str, object], names: list[str]) -> dict[str, Any]:
    pre = str(metadata.get(f"{PREFIX}pre", "default"))
    if pre not in PRE_TOKENIZERS:
        raise ValueError(f"unknown pre-tokenizer {pre!r} (known: {', '.join(PRE_TOKENIZERS)})")
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        for regex in PRE_TOKENIZERS[pre]
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    level["use_regex"] = False
    merges = metadata.get(f"{PREFIX}merges")
    model = {
        "type": "BPE",
        "vocab": _ids(names),
        "merges": _pairs(merges if isinstance(merges, list) else []),
        "ignore_merges": pre in WHOLE_WORDS,
    }
    return {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, level]},
        "decoder": level,
        "model": model,
    }


def _sentence_piece(
    metadata: Mapping[str, object], names: list[str], types: list[object]
) -> dict[str, Any]:
    scores = metadata.get(f"{PREFIX}scores")
    if not isinstance(scores, list):
        raise ValueError("the GGUF metadata contains no scores (tokenizer.ggml.scores)")
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    normalizers: list[dict[str, Any]] = [space]
    if metadata.get(f"{PREFIX}add_space_prefix", True):
        normalizers.insert(0, {"type": "Prepend", "prepend": "▁"})
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    unknown = [name for name, kind in zip(names, types, strict=True) if kind == UNKNOWN]
    model = {
        "type": "BPE",
        "unk_token": unknown[0] if unknown else None,
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": _ids(names),
        "merges": _merges_by_score(names, scores, types),
    }
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def _ids(names: list[str]) -> dict[str, int]:
    """Map each name to its first id: some files repeat a name in their padding."""
    ids: dict[str, int] = {}
    for id, name in enumerate(names):
        ids.setdefault(name, id)
    return ids


def _pairs(merges: list[object]) -> list[list[str]]:
    """Split merges into pairs. The search starts at 1: the first character may be a space."""
    pairs = []
    for merge in map(str, merges):
        space = merge.find(" ", 1)
        pairs.append([merge[:space], merge[space + 1 :]])
    return pairs


def _merges_by_score(
    names: list[str], scores: list[object], types: list[object]
) -> list[tuple[str, str]]:
    """Return every pair of tokens that joins to a token, the best score first."""
    usable = {
        name: score
        for name, score, kind in zip(names, scores, types, strict=True)
        if kind in (NORMAL, USER_DEFINED) and isinstance(score, float | int)
    }
    merges = [
        (score, name[:split], name[split:])
        for name, score in usable.items()
        for split in range(1, len(name))
        if name[:split] in usable and name[split:] in usable
    ]
    merges.sort(key=lambda merge: -merge[0])
    return [(left, right) for _, left, right in merges]
