"""Tokenizers defined by ranks and a pattern: `.tiktoken` files and Mistral's `tekken.json`.

Extra: [tiktoken].
"""

import base64
import json
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dovetail_tokenizers.control import ControlTable, is_blank
from dovetail_tokenizers.encoding import (
    check_length,
    convert_panics,
    decode_ids,
    encode_parts,
    replace_lone_surrogates,
    require_extra,
)
from dovetail_tokenizers.long_text_cache import LongTextCache
from dovetail_tokenizers.normal_form import NormalForm, normalize

if TYPE_CHECKING:
    import tiktoken

# The special tokens that files of the first tekken version do not list.
# fmt: off
TEKKEN_NAMES = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)
# fmt: on


class TiktokenTokenizer:
    """A byte-pair tokenizer defined by ranks, run by the `tiktoken` library."""

    __slots__ = (
        "_added",
        "_blank",
        "_encoding",
        "_normal_form",
        "_texts",
        "_tokens",
        "controls",
        "size",
    )

    def __init__(
        self,
        ranks: Mapping[bytes, int],
        pattern: str,
        specials: Mapping[str, int],
        *,
        ordinary: Mapping[str, int] | None = None,
        normal_form: NormalForm | None = None,
    ) -> None:
        """`specials` are control tokens; `ordinary` are the other added tokens."""
        ordinary = ordinary or {}
        self._blank = ControlTable({text: id for text, id in ordinary.items() if is_blank(text)})
        self.controls = ControlTable(specials, plain_tokens=ordinary)
        self._added = ControlTable(
            {
                text: id
                for text, id in (*ordinary.items(), *specials.items())
                if text not in self._blank
            },
            plain_tokens=ordinary,
        )
        self._normal_form = normal_form
        self._tokens = {id: token for token, id in ranks.items()}
        for text, id in (*ordinary.items(), *self.controls.items()):
            self._tokens[id] = text.encode()
        self.size = max(self._tokens, default=-1) + 1
        self._texts = LongTextCache()
        library = require_extra("tiktoken", "tiktoken")
        self._encoding: tiktoken.Encoding = library.Encoding(
            "dovetail", pat_str=pattern, mergeable_ranks=dict(ranks), special_tokens={}
        )

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        pattern: str,
        specials: Mapping[str, int],
        *,
        ordinary: Mapping[str, int] | None = None,
        normal_form: NormalForm | None = None,
    ) -> Self:
        """Read a file of lines that contain a token in base64 and its rank."""
        ranks = read_ranks(Path(path).read_bytes())
        return cls(ranks, pattern, specials, ordinary=ordinary, normal_form=normal_form)

    @classmethod
    def from_tekken(cls, path: str | Path) -> Self:
        """Read Mistral's `tekken.json`. Its special tokens precede the vocabulary."""
        definition = json.loads(Path(path).read_bytes())
        config = definition["config"]
        offset = int(config["default_num_special_tokens"])
        named = definition.get("special_tokens") or [
            {"rank": rank, "token_str": name} for rank, name in enumerate(TEKKEN_NAMES)
        ]
        specials = {f"<SPECIAL_{rank}>": rank for rank in range(len(named), offset)}
        specials.update({entry["token_str"]: entry["rank"] for entry in named})
        ranks = {
            base64.b64decode(entry["token_bytes"]): entry["rank"] + offset
            for entry in definition["vocab"][: int(config["default_vocab_size"]) - offset]
        }
        return cls(ranks, config["pattern"], specials)

    def encode(self, text: str) -> list[int]:
        return encode_parts(self, self._added, text)

    def encode_plain(self, text: str, *, first: bool = False) -> list[int]:
        return self.pack_plain(text, first=first).tolist()

    def pack_plain(self, text: str, *, first: bool = False) -> "array[int]":
        known = self._texts.get("later", text)
        return (
            self._texts.put("later", text, self._encode_with_library(text))
            if known is None
            else known
        )

    def _encode_with_library(self, text: str) -> list[int]:
        check_length(text)
        ids: list[int] = []
        for part, blank in self._blank.split(replace_lone_surrogates(text)):
            if blank is not None:
                ids.append(blank)
                continue
            if self._normal_form:
                part = normalize(self._normal_form, part)
            with convert_panics(part):
                ids += self._encoding.encode_ordinary(part)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return decode_ids(self, ids)

    def bytes_of(self, id: int) -> bytes:
        return self._tokens.get(id, b"")

    def is_control(self, id: int) -> bool:
        return self.controls.has_id(id)


def read_ranks(source: bytes) -> dict[bytes, int]:
    """Parse the content of a `.tiktoken` file."""
    ranks = {}
    for number, line in enumerate(source.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
        except ValueError as fault:
            raise ValueError(f"line {number} must be a base64 token and its rank") from fault
    return ranks
