"""The whole catalog, and the tag by which Codex notices that it has changed."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dovetail.http.codex_catalog import apply_profile
from dovetail.http.entries import build_entry
from dovetail.pipeline.registry import ModelEntry, ModelRegistry

Json = dict[str, Any]
Profile = Mapping[str, Any]


def build_catalog(named: Iterable[tuple[str, ModelEntry]], profile: Profile | None = None) -> Json:
    """The catalog of models under their names, as the file that Codex takes has it."""
    entries = [build_entry(name, one, place) for place, (name, one) in enumerate(named, 1)]
    return {"models": [apply_profile(one, profile) if profile else one for one in entries]}


@dataclass(frozen=True)
class PublishedCatalog:
    """A state of the catalog. The tag is weak: it stands for what the entries say.

    Replicas of one server have the same tag, and a proxy that compresses leaves it as it is.
    """

    models: list[Json]
    etag: str


class CodexCatalog:
    """The catalog of a service. It changes with the windows, which engines tell when they start."""

    __slots__ = ("_named", "_profile", "_published", "_context_lengths")

    def __init__(self, service: ModelRegistry, profile: Profile | None = None) -> None:
        self._named = tuple(service.iter_entries())
        self._profile = profile
        self._context_lengths: list[int] | None = None
        self._published = PublishedCatalog([], "")

    def current(self) -> PublishedCatalog:
        """The catalog as it is now. Cheap: it is asked for with every answer to Codex."""
        windows = [one.context_length for _, one in self._named]
        if windows != self._context_lengths:
            self._context_lengths = windows
            models = build_catalog(self._named, self._profile)["models"]
            digest = hashlib.blake2b(msgspec.json.encode(models), digest_size=12).hexdigest()
            self._published = PublishedCatalog(models, f'W/"{digest}"')
        return self._published
