"""Adapt requests to a server: fields that it rejected once are not sent again.

Servers of one API differ in the fields that they accept, and some reject a request because of an
optional field. Such a field is omitted from then on, and the request is sent again. Fields that
change what may be generated are never omitted: tools, formats, sampling parameters and the history.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.engines.openai.errors import UpstreamRejection
from dovetail.engines.openai.tool_calls import CallIdFormat, requires_nine_chars
from dovetail_protocols import UpstreamApi, is_optional_field

#: Fields that Dovetail adds, or that it applies itself if the server does not. All hints of the
#: client are optional, too.
OWN_FIELDS = ("stream_options", "parallel_tool_calls", "store", "include")
#: Fields of which a server may reject one value and accept others.
_REJECTED_BY_VALUE = ("reasoning_effort", "reasoning.effort", "service_tier", "verbosity")
_MAX_DROPPED = 64  # clients choose the names of fields that no API declares
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
    def dropped(self) -> list[str]:
        return sorted(self._dropped)

    def apply(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that this server accepts."""
        accepted = {
            name: self._without_dropped_parts(name, value)
            for name, value in fields.items()
            if _drop_key(name, value) not in self._dropped
        }
        if self._use_max_completion_tokens and _MAX_TOKENS in accepted:
            accepted[_MAX_COMPLETION_TOKENS] = accepted.pop(_MAX_TOKENS)
        return accepted

    def learn_from_rejection(
        self, api: UpstreamApi, sent: Mapping[str, Any], rejection: UpstreamRejection
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
        learned = set(_rejected_fields(api, sent, rejection)) - self._dropped
        if len(self._dropped) + len(learned) > _MAX_DROPPED:
            return set()
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

    def _without_dropped_parts(self, name: str, value: Any) -> Any:
        if not isinstance(value, Mapping) or not self._dropped:
            return value
        return {
            part: inner
            for part, inner in value.items()
            if _drop_key(f"{name}.{part}", inner) not in self._dropped
        }


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


def dropped_fields(requested: Mapping[str, Any], sent: Mapping[str, Any]) -> list[str]:
    """Return the paths of the client's fields that the server rejects and does not get."""
    paths: list[str] = []
    for name, value in requested.items():
        if name not in sent:
            renamed = name == _MAX_TOKENS and _MAX_COMPLETION_TOKENS in sent
            paths += [] if renamed or name in OWN_FIELDS else [name]
        elif isinstance(value, Mapping):
            paths += [f"{name}.{part}" for part in value if part not in sent[name]]
    return paths


def _rejected_fields(
    api: UpstreamApi, sent: Mapping[str, Any], rejection: UpstreamRejection
) -> Iterator[str]:
    """Yield the keys of optional fields that a rejection names, or of their parts."""
    for name, value in sent.items():
        parts = value if isinstance(value, Mapping) else {}
        named = [part for part in parts if _mentions_field(rejection, f"{name}.{part}")]
        if named:
            for part in named:
                if is_optional_field(api, f"{name}.{part}"):
                    yield _drop_key(f"{name}.{part}", parts[part])
        elif (name in OWN_FIELDS or is_optional_field(api, name)) and _mentions_field(
            rejection, name
        ):
            yield _drop_key(name, value)


def _drop_key(path: str, value: object) -> str:
    """Return the key of a dropped field. A rejected effort does not drop other effort values."""
    return f"{path}={value}" if path in _REJECTED_BY_VALUE and isinstance(value, str) else path


def _mentions_field(rejection: UpstreamRejection, path: str) -> bool:
    """Return whether a rejection names a field. A plain word may be prose, so it must be quoted."""
    if rejection.param == path:
        return True
    pattern = rf"(?<![\w.]){re.escape(path)}(?![\w.]*\w)"
    if "_" not in path and "." not in path:
        pattern = rf"[`'\"]{re.escape(path)}[`'\"]"
    return re.search(pattern, rejection.message) is not None


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
