"""Adapt requests to a server: fields that it rejected once are not sent again.

Servers of one API differ in the fields that they accept, and some reject a request because of an
optional field. Such a field is omitted from then on, and the request is sent again. Fields that
change what may be generated are never omitted: tools, formats, sampling parameters and the history.
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
    "store",
    "include",
)
_MAX_TOKENS, _MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"
_IMAGES, _CALL_IDS = "images", "ids"  # adaptations other than dropped fields

#: Messages of servers that do not support images, and of servers that cannot read a given image.
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
    """The changes to requests for one server: dropped fields, images, the format of call ids."""

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
        """Return the fields that this server accepts."""
        accepted = {
            name: value for name, value in fields.items() if not self._is_dropped(name, value)
        }
        if self._use_max_completion_tokens and _MAX_TOKENS in accepted:
            accepted[_MAX_COMPLETION_TOKENS] = accepted.pop(_MAX_TOKENS)
        return accepted

    def learn_from_rejection(
        self, sent: Mapping[str, Any], rejection: UpstreamRejection
    ) -> set[str]:
        """Record and return new adaptations; an empty set if the request cannot be sent again."""
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
        rejected = [
            name for name in _OPTIONAL_FIELDS if name in sent and _mentions_field(rejection, name)
        ]
        learned = {_drop_key(name, sent[name]) for name in rejected}
        self._dropped |= learned
        return learned

    def revert(self, learned: set[str]) -> None:
        """Undo adaptations that did not help: the message only happened to name the field."""
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
    """Return whether the prompt would fit, but not the prompt and the output limit together."""
    if not any(name in sent for name in (_MAX_TOKENS, _MAX_COMPLETION_TOKENS, "max_output_tokens")):
        return False
    if rejection.status != 400:
        return False
    if rejection.token_counts is not None:
        prompt, context_length = rejection.token_counts
        return prompt < context_length
    too_large = ("too large", "cannot be greater", "fewer output tokens")
    message = rejection.message.lower()
    return "max_" in message and any(phrase in message for phrase in too_large)


def drop_limit(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the token limit from the request, so that the context window is the limit."""
    limits = (_MAX_TOKENS, _MAX_COMPLETION_TOKENS, "max_output_tokens")
    return {name: value for name, value in fields.items() if name not in limits}


def _drop_key(name: str, value: object) -> str:
    """Return the key of a dropped field. A rejected effort does not drop other effort values."""
    return f"{name}={value}" if isinstance(value, str) else name


def _mentions_field(rejection: UpstreamRejection, name: str) -> bool:
    return rejection.param == name or re.search(rf"\b{name}\b", rejection.message) is not None


def _rejects_images(rejection: UpstreamRejection) -> bool:
    """Return whether the server supports no images at all, rather than rejecting a broken one."""
    message = rejection.message
    if (
        rejection.status == 429
        or "image" not in message.lower()
        or _BAD_IMAGE_PATTERN.search(message)
    ):
        return False
    return _NO_IMAGES_PATTERN.search(message) is not None


def _has_images(sent: Mapping[str, Any]) -> bool:
    items = [*(sent.get("messages") or ()), *(sent.get("input") or ())]
    parts = [item.get("content") or item.get("output") for item in items if isinstance(item, dict)]
    content_parts = [part for each in parts if isinstance(each, list) for part in each]
    return any(part.get("type") in ("image_url", "input_image") for part in content_parts)
