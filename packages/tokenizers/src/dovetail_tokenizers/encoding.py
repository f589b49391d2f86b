"""Functions shared by all tokenizers: encoding in parts, decoding, encoding a suffix."""

import importlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

from dovetail_tokenizers.control import ControlTable
from dovetail_tokenizers.tokenizer import Tokenizer

#: Longest text that a library encodes in one call. Its result is converted while the GIL is held:
#: about 50 ms per million tokens.
MAX_LIBRARY_CHARS = 1 << 22


class EncodeError(Exception):
    """The tokenizer's library cannot encode a text, for example a run of millions of spaces."""


def check_length(text: str) -> None:
    """Raise `EncodeError` if a text is too long to be encoded in one call."""
    if len(text) > MAX_LIBRARY_CHARS:
        raise EncodeError(
            f"The tokenizer cannot encode a text of {len(text)} characters that it cannot split "
            f"into words; the maximum is {MAX_LIBRARY_CHARS}."
        )


@contextmanager
def convert_panics(text: str) -> Iterator[None]:
    """Raise `EncodeError` if the library panics while it encodes the text."""
    try:
        yield
    except BaseException as error:
        raise_panic(error, text)
        raise


def raise_panic(error: BaseException, text: str) -> None:
    """Raise `EncodeError` if this error is a panic of the library that encodes the text.

    The exception of a Rust panic derives from `BaseException`, so no handler for `Exception`
    catches it, and every extension module has a class of its own for it.
    """
    if type(error).__module__ == "pyo3_runtime":
        message = f"The tokenizer cannot encode a text of {len(text)} characters."
        raise EncodeError(message) from error


def replace_lone_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def encode_parts(tokenizer: Tokenizer, controls: ControlTable, text: str) -> list[int]:
    """Encode a text: the table finds the control tokens, the tokenizer encodes the rest."""
    ids: list[int] = []
    for part, control in controls.split(text):
        if control is None:
            ids += tokenizer.encode_plain(part, first=not ids)
        else:
            ids.append(control)
    return ids


def decode_ids(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """Decode ids to text."""
    return b"".join(map(tokenizer.bytes_of, ids)).decode("utf-8", "replace")


def require_extra(library: str, extra: str) -> ModuleType:
    """Import a library that is installed with an extra."""
    try:
        return importlib.import_module(library)
    except ImportError as missing:
        raise ImportError(
            f"{library} is not installed: pip install 'dovetail-tokenizers[{extra}]'"
        ) from missing


def encode_suffix(
    tokenizer: Tokenizer, known_ids: Sequence[int], known_text: str, new_text: str
) -> list[int]:
    """Return the ids of `known_text + new_text`, given `known_ids`, the ids of `known_text`.

    Tokens never span a control token, so only the text from the last control token on is encoded
    again. That includes the control token itself, since some strip the white space after them.
    """
    table = ControlTable.from_mapping(tokenizer.controls)
    for last_control in range(len(known_ids) - 1, -1, -1):
        spelling = table.spelling(known_ids[last_control])
        if spelling is not None:
            start = table.find_last(known_text, spelling)
            if start > 0 and not _is_extendable(table, known_text, start):
                return [*known_ids[:last_control], *tokenizer.encode(known_text[start:] + new_text)]
            break
    return tokenizer.encode(known_text + new_text)


def _is_extendable(table: ControlTable, text: str, start: int) -> bool:
    """Return whether more text could form a longer control token covering the one at `start`."""
    if len(text) - start >= table.max_chars:
        return False
    earliest = max(0, len(text) - table.max_chars)
    return any(text[at:] in table.partial_spellings for at in range(earliest, start + 1))
