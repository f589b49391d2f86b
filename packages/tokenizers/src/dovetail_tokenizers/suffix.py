"""Encoding a text that continues one whose ids are known."""

from collections.abc import Sequence

from dovetail_tokenizers.control import ControlTable
from dovetail_tokenizers.tokenizer import Tokenizer


def encode_suffix(
    tokenizer: Tokenizer, known_ids: Sequence[int], known_text: str, new_text: str
) -> list[int]:
    """Ids of `known_text + new_text`, given that `known_ids` are those of `known_text`.

    Tokens never span a control token, so only what follows the last one is encoded again. The
    token itself is encoded with it: some swallow the white space behind them.
    """
    table = ControlTable.from_mapping(tokenizer.controls)
    for kept in range(len(known_ids) - 1, -1, -1):
        spelling = table.spelling(known_ids[kept])
        if spelling is not None:
            start = table.find_last(known_text, spelling)
            if start > 0 and not _is_extendable(table, known_text, start):
                return [*known_ids[:kept], *tokenizer.encode(known_text[start:] + new_text)]
            break
    return tokenizer.encode(known_text + new_text)


def _is_extendable(table: ControlTable, text: str, start: int) -> bool:
    """Whether more text could make a longer control token that covers the one at `start`."""
    if len(text) - start >= table.max_chars:
        return False
    earliest = max(0, len(text) - table.max_chars)
    return any(text[at:] in table.partial_spellings for at in range(earliest, start + 1))
