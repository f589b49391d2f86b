"""Small things that every tokenizer does to text."""

import importlib
from collections.abc import Iterable
from types import ModuleType

from dovetail_tokenizers.control import ControlTable
from dovetail_tokenizers.tokenizer import Tokenizer


def replace_lone_surrogates(text: str) -> str:
    """The text with lone surrogates, which have no UTF-8, as U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def encode_parts(tokenizer: Tokenizer, controls: ControlTable, text: str) -> list[int]:
    """Ids of a text whose control tokens are found by the table, the rest by the tokenizer."""
    ids: list[int] = []
    for part, control in controls.split(text):
        if control is None:
            ids += tokenizer.encode_plain(part, first=not ids)
        else:
            ids.append(control)
    return ids


def decode_ids(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """What the ids stand for, in one text."""
    return b"".join(map(tokenizer.bytes_of, ids)).decode("utf-8", "replace")


def require_extra(library: str, extra: str) -> ModuleType:
    """Import a library that comes with an extra."""
    try:
        return importlib.import_module(library)
    except ImportError as missing:
        raise ImportError(
            f"{library} is not installed: pip install 'dovetail-tokenizers[{extra}]'"
        ) from missing
