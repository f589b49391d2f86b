"""Lower bounds of the tokens of a prompt that are cheap to compute.

A prompt that cannot fit is rejected before it is rendered and encoded, which can take minutes. Only
texts are counted that a template has to show.

The first bound counts visible ASCII characters: no chat template and no normalization of a
tokenizer removes them, unlike white space and accents. The second one is for texts with far more
characters than a prompt of normal text could have, such as millions of combining marks: they are
encoded in small slices until twice the allowed tokens are found. The tokens of a slice differ from
those of the whole text only near its ends.
"""

import string
from collections.abc import Iterable, Iterator, Sequence

from dovetail_model import (
    Block,
    ContextOverflow,
    DocumentBlock,
    Request,
    TextBlock,
    ToolResultBlock,
)
from dovetail_tokenizers import Tokenizer

_VISIBLE = (string.ascii_letters + string.digits + string.punctuation).encode()
_HIDDEN = bytes(set(range(256)) - set(_VISIBLE))
_SLICE_CHARS = 1 << 20  # counted at a time: other threads can run in between
_ENCODED_SLICE_CHARS = 2000  # encoded at a time: short enough not to be cached
_MAX_CHARS_PER_TOKEN = 8  # on average, of texts whose slices are not encoded
_MAX_SLICE_CHARS_PER_TOKEN = 256  # of slices that count: unknown characters may share a token
_SLICED_TOKENS_FACTOR = 2  # how many times as many tokens the slices may have as the whole text
_MAX_EXCESS = 8  # how much longer than the context window a prompt may be before it is edited
_PROBE = "qX7" * 100  # a long word, which some vocabularies replace by one unknown token


def check_can_fit(request: Request, tokenizer: Tokenizer, max_tokens: int | None) -> None:
    """Raise `ContextOverflow` if a request certainly exceeds `max_tokens`, also after edits."""
    if max_tokens is not None:
        edited = request.context.truncate or request.context.edits
        check_prompt_fits(request, tokenizer, max_tokens * (_MAX_EXCESS if edited else 1))


def check_prompt_fits(request: Request, tokenizer: Tokenizer, max_tokens: int) -> None:
    """Raise `ContextOverflow` if a normalized request certainly exceeds `max_tokens`."""
    _check_texts_fit(list(_shown_texts(request)), tokenizer, max_tokens, "messages")


def check_text_fits(text: str, tokenizer: Tokenizer, max_tokens: int) -> None:
    """Raise `ContextOverflow` if the text of a raw prompt certainly exceeds `max_tokens`."""
    _check_texts_fit([text], tokenizer, max_tokens, "prompt")


def _check_texts_fit(
    texts: Sequence[str], tokenizer: Tokenizer, max_tokens: int, param: str
) -> None:
    count = min_tokens(texts, tokenizer)
    if count <= max_tokens:
        count = min_tokens_in_slices(texts, tokenizer, max_tokens)
    if count > max_tokens:
        raise ContextOverflow(
            f"prompt is too long: {count} tokens > {max_tokens} maximum", param=param
        )


def min_tokens(texts: Iterable[str], tokenizer: Tokenizer) -> int:
    """Return a number of tokens that these texts have at least."""
    per_token = max_visible_chars(tokenizer)
    return sum(map(_count_visible, texts)) // per_token if per_token else 0


def min_tokens_in_slices(texts: Sequence[str], tokenizer: Tokenizer, max_tokens: int) -> int:
    """Return a number of tokens that these texts have at least; 0 if it is at most `max_tokens`."""
    if sum(map(len, texts)) <= _MAX_CHARS_PER_TOKEN * max_tokens or not max_visible_chars(
        tokenizer
    ):
        return 0
    count, limit = 0, _SLICED_TOKENS_FACTOR * (max_tokens + 1)
    for text in texts:
        for at in range(0, len(text), _ENCODED_SLICE_CHARS):
            part = text[at : at + _ENCODED_SLICE_CHARS]
            tokens = len(tokenizer.encode_plain(part))
            if tokens * _MAX_SLICE_CHARS_PER_TOKEN >= len(part):
                count += tokens
            if count >= limit:
                return count // _SLICED_TOKENS_FACTOR
    return 0


def min_prompt_tokens(request: Request, tokenizer: Tokenizer) -> int:
    """Return a number of tokens that the prompt of a normalized request has at least."""
    return min_tokens(_shown_texts(request), tokenizer)


def count_text_chars(request: Request) -> int:
    """Count the characters of the texts that a prompt shows."""
    count = sum_texts(request.system) + sum(len(tool.description) for tool in request.tools)
    return count + sum(sum_texts(turn.blocks) for turn in request.turns if turn.role != "assistant")


def sum_texts(blocks: Iterable[Block]) -> int:
    """Count the characters of the texts in blocks."""
    return sum(map(len, _texts(blocks)))


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
        elif isinstance(block, DocumentBlock):
            yield block.text or ""
        elif isinstance(block, ToolResultBlock):
            yield from _texts(block.blocks)


def _count_visible(text: str) -> int:
    slices = (text[at : at + _SLICE_CHARS] for at in range(0, len(text), _SLICE_CHARS))
    return sum(len(_remove_hidden(part.encode("ascii", "ignore"))) for part in slices)


def _remove_hidden(text: bytes) -> bytes:
    return text.translate(None, _HIDDEN)
