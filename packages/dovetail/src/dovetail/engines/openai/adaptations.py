"""What a server refused once is not sent to it again.

Servers of one API differ in the fields they know, and some refuse a request for a field that only
refines it. Such a field is left out from then on, and the request is asked again. What a request
means is never given up for that: tools, formats and the history itself stay.
"""

import re
from collections.abc import Mapping
from typing import Any

from dovetail.engines.openai.errors import Refusal
from dovetail.engines.openai.tool_calls import Form, wants_nine

_REFINING = (
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
_LIMIT, _NEWER_LIMIT = "max_tokens", "max_completion_tokens"
_IMAGES, _IDS = "images", "ids"  # what is learned beside names of fields

#: Words of servers that see no images at all, and of those that cannot read the one they got.
_BLIND = re.compile(
    r"\b(?:not?|cannot|only)\b[^.]{0,60}(?:support|accept|allow|enabled|multimodal|vision|text)"
    r"|n't (?:support|accept|allow)|unsupported|unknown variant|at most 0|missing data",
    re.IGNORECASE,
)
_SPOILED = re.compile(
    r"format|too (?:large|big|many)|exceed|size|corrupt|decod|download|fetch|(?:in)?valid image",
    re.IGNORECASE,
)


class Concessions:
    """What is left out for one server. It may be shown `images`, and wants `ids` of that form."""

    __slots__ = ("_dropped", "_newer_limit", "ids", "images")

    def __init__(self, images: bool = True, ids: Form = "any") -> None:
        self._dropped: set[str] = set()
        self._newer_limit = False
        self.images = images
        self.ids = ids

    @property
    def dropped(self) -> list[str]:
        return sorted(self._dropped)

    def apply(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that this server takes."""
        kept = {name: value for name, value in fields.items() if not self._drops(name, value)}
        if self._newer_limit and _LIMIT in kept:
            kept[_NEWER_LIMIT] = kept.pop(_LIMIT)
        return kept

    def learn(self, sent: Mapping[str, Any], refusal: Refusal) -> set[str]:
        """What is left out from now on; nothing where the request cannot be asked again."""
        if self.images and _shows_images(sent) and _sees_no_images(refusal):
            self.images = False
            return {_IMAGES}
        if self.ids == "any" and wants_nine(refusal):
            self.ids = "nine"
            return {_IDS}
        if refusal.status not in (400, 422):
            return set()
        if _LIMIT in sent and _NEWER_LIMIT in refusal.message and "instead" in refusal.message:
            self._newer_limit = True
            return {_LIMIT}
        named = [name for name in _REFINING if name in sent and _names(refusal, name)]
        learned = {_key(name, sent[name]) for name in named}
        self._dropped |= learned
        return learned

    def forget(self, learned: set[str]) -> None:
        """Takes back what was left out in vain: the refusal only happened to use its name."""
        self._dropped -= learned
        self._newer_limit = self._newer_limit and _LIMIT not in learned
        self.images = self.images or _IMAGES in learned
        if _IDS in learned:
            self.ids = "any"

    def _drops(self, name: str, value: object) -> bool:
        return name in _REFINING and _key(name, value) in self._dropped


def limit_is_too_large(sent: Mapping[str, Any], refusal: Refusal) -> bool:
    """Whether the prompt itself would fit: only prompt and answer together do not."""
    if not any(name in sent for name in (_LIMIT, _NEWER_LIMIT, "max_output_tokens")):
        return False
    if refusal.status != 400:
        return False
    if refusal.numbers is not None:
        prompt, window = refusal.numbers
        return prompt < window
    too_large = ("too large", "cannot be greater", "fewer output tokens")
    words = refusal.message.lower()
    return "max_" in words and any(mark in words for mark in too_large)


def without_limit(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same request, as long as the window allows."""
    limits = (_LIMIT, _NEWER_LIMIT, "max_output_tokens")
    return {name: value for name, value in fields.items() if name not in limits}


def _key(name: str, value: object) -> str:
    """A refused effort says nothing about other efforts."""
    return f"{name}={value}" if isinstance(value, str) else name


def _names(refusal: Refusal, name: str) -> bool:
    return refusal.param == name or re.search(rf"\b{name}\b", refusal.message) is not None


def _sees_no_images(refusal: Refusal) -> bool:
    """Whether no image is taken there. One that is broken is the fault of its request alone."""
    words = refusal.message
    if refusal.status == 429 or "image" not in words.lower() or _SPOILED.search(words):
        return False
    return _BLIND.search(words) is not None


def _shows_images(sent: Mapping[str, Any]) -> bool:
    items = [*(sent.get("messages") or ()), *(sent.get("input") or ())]
    parts = [item.get("content") or item.get("output") for item in items if isinstance(item, dict)]
    shown = [part for each in parts if isinstance(each, list) for part in each]
    return any(part.get("type") in ("image_url", "input_image") for part in shown)
