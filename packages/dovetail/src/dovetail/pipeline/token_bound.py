"""A lower bound of the tokens of a prompt that is cheap to compute.

A prompt that cannot fit is rejected before it is rendered and encoded, which can take minutes. The
bound counts only visible ASCII characters: no chat template and no normalization of a tokenizer
removes them, unlike white space and accents. It counts only texts that a template has to show.
"""

import string
from collections.abc import Iterable, Iterator

from dovetail_model import Block, ContextOverflow, Request, TextBlock, ToolResultBlock
from dovetail_tokenizers import Tokenizer

_VISIBLE = (string.ascii_letters + string.digits + string.punctuation).encode()
_HIDDEN = bytes(set(range(256)) - set(_VISIBLE))
_SLICE_CHARS = 1 << 20  # counted at a time: other threads can run in between
_PROBE = "qX7" * 100  # a long word, which some vocabularies replace by one unknown token


def check_prompt_fits(request: Request, tokenizer: Tokenizer, max_tokens: int) -> None:
    """Raise `ContextOverflow` if a normalized request certainly exceeds `max_tokens`."""
    count = min_prompt_tokens(request, tokenizer)
    if count > max_tokens:
        raise ContextOverflow(
            f"prompt is too long: {count} tokens > {max_tokens} maximum", param="messages"
        )


def min_prompt_tokens(request: Request, tokenizer: Tokenizer) -> int:
    """Return a number of tokens that the prompt of a normalized request has at least."""
    per_token = max_visible_chars(tokenizer)
    return sum(map(_count_visible, _shown_texts(request))) // per_token if per_token else 0


def count_text_chars(request: Request) -> int:
    """Count the characters of the texts that a prompt shows."""
    return sum(map(len, _shown_texts(request)))


def max_visible_chars(tokenizer: Tokenizer) -> int:
    """Return the most visible ASCII characters of one token; 0 if that is not known."""
    known = _max_visible_chars.get(id(tokenizer))
    if known is None or known[0] is not tokenizer:
        known = _max_visible_chars[id(tokenizer)] = (tokenizer, _find_max_visible(tokenizer))
    return known[1]


# Tokenizers are loaded once and live as long as the process.
_max_visible_chars: dict[int, tuple[Tokenizer, int]] = {}


def _find_max_visible(tokenizer: Tokenizer) -> int:
    plain = (id for id in range(tokenizer.size) if not tokenizer.is_control(id))
    longest = max(len(_remove_hidden(tokenizer.bytes_of(id))) for id in plain)
    for text in (*map(chr, _VISIBLE), _PROBE):
        if tokenizer.decode(tokenizer.encode_plain(text)).strip() != text:
            return 0  # an unknown token may stand for any number of characters
    return longest


def _shown_texts(request: Request) -> Iterator[str]:
    yield from _texts(request.system)
    for tool in request.tools:
        yield tool.description or ""
    for turn in request.turns:
        if turn.role in ("user", "tool"):
            yield from _texts(turn.blocks)


def _texts(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, TextBlock):
            yield block.text
        elif isinstance(block, ToolResultBlock):
            yield from _texts(block.blocks)


def _count_visible(text: str) -> int:
    slices = (text[at : at + _SLICE_CHARS] for at in range(0, len(text), _SLICE_CHARS))
    return sum(len(_remove_hidden(part.encode("ascii", "ignore"))) for part in slices)


def _remove_hidden(text: bytes) -> bytes:
    return text.translate(None, _HIDDEN)
