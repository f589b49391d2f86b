"""Real vocabularies, read without a tokenizer library: the text of each token, and which tokens
are control tokens. A family whose own vocabulary is not available uses another one with its markers
added as tokens.
"""

import base64
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import pytest

from dovetail_parsers import families
from dovetail_parsers.registry import load_grammar

FOLDER = Path(__file__).parents[4] / ".cache" / "tokenizers"
BORROWED = "qwen3"
END = {
    "qwen3": "<|im_end|>",
    "glm4_5": "<|user|>",
    "gpt_oss": "<|return|>",
    "kimi_k2": "<|im_end|>",
    "deepseek_v3": "<｜end▁of▁sentence｜>",
    "llama3": "<|eot_id|>",
    "mistral_nemo": "</s>",
}
OWN = {
    "glm47": "glm4_5",
    "harmony": "gpt_oss",
    "kimi_k2": "kimi_k2",
    "deepseek_v3": "deepseek_v3",
    "deepseek_v3_1": "deepseek_v3",
    "llama3_json": "llama3",
    "mistral": "mistral_nemo",
}
#: The part of a marker that is a token: the part between bars, or the complete tag.
_TOKEN = re.compile(r"<[|｜][^<>]*?[|｜]>|\]<\]minimax\[>\[|<\|?[\w:/]+\|?>|\[/?[A-Z_]+\]")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """`spellings` of all tokens by id, including control tokens."""

    name: str
    spellings: tuple[bytes, ...]
    controls: dict[str, int]
    end: int

    def text(self, ids: Iterable[int]) -> str:
        return b"".join(self.spellings[id] for id in ids).decode("utf-8", "replace")


@cache
def vocabulary(name: str) -> Vocabulary:
    folder = FOLDER / name
    if not folder.exists():
        pytest.skip(f"no tokenizer: tools/fetch_tokenizers.py {name} fetches it")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    whole = folder / "tokenizer.json"
    added = config.get("added_tokens_decoder", {})
    controls = {token["content"]: int(id) for id, token in added.items()}
    if whole.exists():
        facts = json.loads(whole.read_text())
        spellings = _byte_level(facts["model"]["vocab"])
        controls |= {token["content"]: token["id"] for token in facts["added_tokens"]}
    else:
        spellings = _ranks(next(folder.glob("*tiktoken*")))
    for spelling, id in controls.items():
        spellings[id] = spelling.encode()
    size = max(spellings) + 1
    end = controls[END[name]]
    return Vocabulary(name, tuple(spellings.get(id, b"") for id in range(size)), controls, end)


def vocabulary_of(name: str, *, markers: bool = True) -> Vocabulary:
    """Return the family's own vocabulary, or another one with or without its markers as tokens."""
    return vocabulary(OWN[name]) if name in OWN else borrowed_vocabulary(markers=markers)


@cache
def borrowed_vocabulary(*, markers: bool) -> Vocabulary:
    """Return a vocabulary in which the markers of all families are tokens, or none of them."""
    base = vocabulary(BORROWED)
    tables = [load_grammar(family.tool_parser, family.reasoning_parser) for family in families()]
    edges = {edge for table in tables for state in table.states.values() for edge in state.edges}
    names = sorted({token for edge in edges for token in _TOKEN.findall(edge)})
    controls = {s: id for s, id in base.controls.items() if s.startswith("<|im_")}
    spellings = [
        b"" if spelling.decode("utf-8", "replace") in base.controls.keys() - controls else spelling
        for spelling in base.spellings
    ]
    added = {name: len(spellings) + i for i, name in enumerate(names)} if markers else {}
    spellings += [name.encode() for name in added]
    title = f"{base.name} with{'' if markers else 'out'} markers"
    return Vocabulary(title, tuple(spellings), controls | added, base.end)


def encode(text: str, vocabulary: Vocabulary, random: Random | None = None) -> list[int]:
    """Encode text, using control tokens where it has them: the longest tokens, or random ones."""
    names = sorted(vocabulary.controls, key=len, reverse=True)
    pieces = re.split(f"({'|'.join(map(re.escape, names))})", text)
    ids: list[int] = []
    for piece in pieces:
        if piece in vocabulary.controls:
            ids.append(vocabulary.controls[piece])
        else:
            ids += _plain(piece.encode(), vocabulary, random)
    return ids


def _plain(data: bytes, vocabulary: Vocabulary, random: Random | None) -> Iterable[int]:
    known = _by_spelling(vocabulary)
    at = 0
    while at < len(data):
        sizes = [n for n in range(1, 17) if data[at : at + n] in known and at + n <= len(data)]
        size = random.choice(sizes) if random else sizes[-1]
        yield known[data[at : at + size]]
        at += size


_INDEX: dict[str, dict[bytes, int]] = {}


def _by_spelling(vocabulary: Vocabulary) -> dict[bytes, int]:
    if vocabulary.name not in _INDEX:
        controls = set(vocabulary.controls.values())
        _INDEX[vocabulary.name] = {
            s: id for id, s in enumerate(vocabulary.spellings) if s and id not in controls
        }
    return _INDEX[vocabulary.name]


def _byte_level(vocab: dict[str, int]) -> dict[int, bytes]:
    """Return the tokens of a tokenizer that writes bytes as printable characters."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable}
    byte_of |= {chr(256 + i): byte for i, byte in enumerate(others)}
    return {id: bytes(byte_of.get(char, 0) for char in token) for token, id in vocab.items()}


def _ranks(path: Path) -> dict[int, bytes]:
    lines = (line.split() for line in path.read_text().splitlines() if line)
    return {int(rank): base64.b64decode(token) for token, rank in lines}
