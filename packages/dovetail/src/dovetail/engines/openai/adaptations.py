"""What a server refused once is not sent to it again.

Servers of one API differ in the fields they know, and some refuse a request for a field that only
refines it. Such a field is left out from then on, and the request is asked again. What a request
means is never given up for that: tools, formats and the history itself stay.
"""

import re
from collections.abc import Mapping
from typing import Any

from dovetail.engines.openai.errors import UpstreamRejection
from dovetail.engines.openai.tool_calls import CallIdFormat, requires_nine_chars

_OPTIONAL_FIELDS = (
    "reasoning_effort",
    "chat_template_kwargs",
    "stream_options",
    "parallel_tool_calls",
    "top_k",
    "min_p",
    "repetition_penalty",
    "store",
    "include",
)
_MAX_TOKENS, _MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"
_IMAGES, _CALL_IDS = "images", "ids"  # what is learned beside names of fields

#: Words of servers that see no images at all, and of those that cannot read the one they got.
_NO_IMAGES_PATTERN = re.compile(
    r"\b(?:not?|cannot|only)\b[^.]{0,60}(?:support|accept|allow|enabled|multimodal|vision|text)"
    r"|n't (?:support|accept|allow)|unsupported|unknown variant|at most 0|missing data",
    re.IGNORECASE,
)
_BAD_IMAGE_PATTERN = re.compile(
    r"format|too (?:large|big|many)|exceed|size|corrupt|decod|download|fetch|(?:in)?valid image",
    re.IGNORECASE,
)


class RequestAdaptations:
    """What is left out for one server. It may be shown `images`, and wants `ids` of that form."""

    __slots__ = ("_dropped", "_use_max_completion_tokens", "call_id_format", "images")

    def __init__(self, images: bool = True, call_id_format: CallIdFormat = "any") -> None:
        self._dropped: set[str] = set()
        self._use_max_completion_tokens = False
        self.images = images
        self.call_id_format = call_id_format

    @property
    def dropped_fields(self) -> list[str]:
        return sorted(self._dropped)

    def apply(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that this server takes."""
        kept = {name: value for name, value in fields.items() if not self._is_dropped(name, value)}
        if self._use_max_completion_tokens and _MAX_TOKENS in kept:
            kept[_MAX_COMPLETION_TOKENS] = kept.pop(_MAX_TOKENS)
        return kept

    def learn_from_rejection(
        self, sent: Mapping[str, Any], rejection: UpstreamRejection
    ) -> set[str]:
        """What is left out from now on; nothing where the request cannot be asked again."""
        if self.images and _has_images(sent) and _rejects_images(rejection):
            self.images = False
            return {_IMAGES}
        if self.call_id_format == "any" and requires_nine_chars(rejection):
            self.call_id_format = "nine"
            return {_CALL_IDS}
        if rejection.status not in (400, 422):
            return set()
        if (
            _MAX_TOKENS in sent
            and _MAX_COMPLETION_TOKENS in rejection.message
            and "instead" in rejection.message
        ):
            self._use_max_completion_tokens = True
            return {_MAX_TOKENS}
        named = [
            name for name in _OPTIONAL_FIELDS if name in sent and _mentions_field(rejection, name)
        ]
        learned = {_drop_key(name, sent[name]) for name in named}
        self._dropped |= learned
        return learned

    def revert(self, learned: set[str]) -> None:
        """Takes back what was left out in vain: the refusal only happened to use its name."""
        self._dropped -= learned
        self._use_max_completion_tokens = (
            self._use_max_completion_tokens and _MAX_TOKENS not in learned
        )
        self.images = self.images or _IMAGES in learned
        if _CALL_IDS in learned:
            self.call_id_format = "any"

    def _is_dropped(self, name: str, value: object) -> bool:
        return name in _OPTIONAL_FIELDS and _drop_key(name, value) in self._dropped


def is_limit_too_large(sent: Mapping[str, Any], rejection: UpstreamRejection) -> bool:
    """Whether the prompt itself would fit: only prompt and answer together do not."""
    if not any(name in sent for name in (_MAX_TOKENS, _MAX_COMPLETION_TOKENS, "max_output_tokens")):
        return False
    if rejection.status != 400:
        return False
    if rejection.token_counts is not None:
        prompt, window = rejection.token_counts
        return prompt < window
    too_large = ("too large", "cannot be greater", "fewer output tokens")
    words = rejection.message.lower()
    return "max_" in words and any(mark in words for mark in too_large)


def drop_limit(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same request, as long as the window allows."""
    limits = (_MAX_TOKENS, _MAX_COMPLETION_TOKENS, "max_output_tokens")
    return {name: value for name, value in fields.items() if name not in limits}


def _drop_key(name: str, value: object) -> str:
    """A refused effort says nothing about other efforts."""
    return f"{name}={value}" if isinstance(value, str) else name


def _mentions_field(rejection: UpstreamRejection, name: str) -> bool:
    return rejection.param == name or re.search(rf"\b{name}\b", rejection.message) is not None


def _rejects_images(rejection: UpstreamRejection) -> bool:
    """Whether no image is taken there. One that is broken is the fault of its request alone."""
    words = rejection.message
    if rejection.status == 429 or "image" not in words.lower() or _BAD_IMAGE_PATTERN.search(words):
        return False
    return _NO_IMAGES_PATTERN.search(words) is not None


def _has_images(sent: Mapping[str, Any]) -> bool:
    items = [*(sent.get("messages") or ()), *(sent.get("input") or ())]
    parts = [item.get("content") or item.get("output") for item in items if isinstance(item, dict)]
    shown = [part for each in parts if isinstance(each, list) for part in each]
    return any(part.get("type") in ("image_url", "input_image") for part in shown)
