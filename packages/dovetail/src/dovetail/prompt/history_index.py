"""Find the conversation that a prompt without a session id continues, by its history.

Clients need not send a session id. The turns that the model generated identify the conversation
just as well: their ids in the ledger, the hash chain up to them, and long texts of theirs. A
conversation without such a turn cannot be distinguished from a new one.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

from dovetail.ledger.equivalence import normalize_text
from dovetail.ledger.recognized_history import RecognizedHistory
from dovetail.ledger.turn_digest import compute_digest
from dovetail_model import TextBlock, Turn

_KEY_BYTES = 256  # memory per key, with its entry in two tables
_MIN_TEXT_CHARS = 40  # shorter texts occur in many conversations
_MAX_KEYS_AT_END = 8  # of each kind, at each end of a history


class HistoryIndex:
    """Names of conversations by the keys of their histories.

    No session that a client named has such a name, because those contain the tenant and a NUL.
    """

    __slots__ = ("_count", "_keys", "_names", "held_bytes")

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self._keys: dict[str, list[bytes]] = {}
        self._count = 0
        self.held_bytes = 0

    def find(self, keys: Iterable[bytes]) -> str:
        """Return the conversation of the first known key, or the name of a new conversation."""
        keys = tuple(keys)
        name = next((self._names[key] for key in keys if key in self._names), None)
        if name is None:
            self._count += 1
            name = f"unnamed {self._count}"
            self._keys[name] = []
        self.add(name, keys)
        return name

    def add(self, name: str, keys: Iterable[bytes]) -> None:
        """Assign keys to a conversation. A known key keeps its conversation.

        Names that this index did not choose, because the client sent one, are ignored.
        """
        for key in keys if name in self._keys else ():
            if key not in self._names:
                self._names[key] = name
                self._keys[name].append(key)
                self.held_bytes += _KEY_BYTES

    def remove(self, name: str) -> None:
        """Remove a conversation. Does nothing for an unknown name."""
        for key in self._keys.pop(name, ()):
            del self._names[key]
            self.held_bytes -= _KEY_BYTES


def history_keys(
    tenant: str, turns: Sequence[Turn], history: RecognizedHistory
) -> tuple[bytes, ...]:
    """Return the keys of a history, the most specific first."""
    generated = [at for at, turn in enumerate(turns) if turn.role == "assistant"]
    if not generated:
        return ()
    recognized = _newest_first(sorted(history.entries))
    chains = _newest_first(range(generated[0], len(history.digests)))
    texts = (text_key(tenant, turns[at]) for at in _newest_first(generated))
    return (
        *(history.entries[at].id.encode() for at in recognized),
        *(history.digests[at] for at in chains),
        *(key for key in texts if key is not None),
    )


def text_key(tenant: str, turn: Turn) -> bytes | None:
    """Return a key for the text of a generated turn, or None if the text is short."""
    text = normalize_text(block.text for block in turn.blocks if isinstance(block, TextBlock))
    return compute_digest("text", tenant, text) if len(text) >= _MIN_TEXT_CHARS else None


def _newest_first(indices: Sequence[int]) -> Iterable[int]:
    """Return some indices from the end, then some from the beginning."""
    rest = len(indices) - _MAX_KEYS_AT_END
    if rest <= 0:
        return reversed(indices)
    return chain(reversed(indices[rest:]), indices[: min(rest, _MAX_KEYS_AT_END)])
