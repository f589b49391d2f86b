"""A small tokenizer definition whose vocabulary can spell its own control tokens."""

from typing import Any


def tokenizer_definition(**changes: Any) -> dict[str, Any]:
    """Return a small definition whose vocabulary can spell its own control tokens."""
    names = ["<unk>", "<s>", "<", "s", ">", "▁", "a", "▁a", "s>", "<s", "b"]
    definition: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [added_token(1, "<s>"), added_token(11, "<|end|>")],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": "first",
            "split": False,
        },
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {name: id for id, name in enumerate(names)},
            "merges": [["▁", "a"], ["s", ">"], ["<", "s>"], ["<", "s"]],
        },
    }
    return {**definition, **changes}


def added_token(id: int, content: str, **flags: bool) -> dict[str, Any]:
    edges = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    return {"id": id, "content": content, "special": True, **edges, **flags}
