"""Which requests belong together, and which one each goes on from."""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

import msgspec

from dovetail.ledger.turn_digest import compute_digest, digest_turn
from dovetail_model import Request, Turn

_PASTS = 16  # exchanges of a session that the next one may go on from
_CHAINS = 65536  # conversations without a name that are remembered
_SESSIONS = 4096
_MOST_BYTES = 256 << 20  # of the bodies of all requests that are remembered
_SHORT, _LABEL = 24, 8  # characters of a name that is shown whole, and of any other


@dataclass(frozen=True)
class Past:
    """An exchange that is over: the arranged request, what was answered, when a call was complete.

    `complete` is wall-clock time; `sure` says that the tokens of the answer are known; `size` is
    that of the body.
    """

    request: Request
    digests: tuple[bytes, ...]
    said: Turn | None
    complete: float | None
    sure: bool
    size: int


@dataclass
class Session:
    """A conversation, with its side requests and sub-agents."""

    name: str
    label: str
    count: int = 0
    pasts: deque[Past] = field(default_factory=deque)

    def before(self, request: Request) -> Past | None:
        """The exchange that a request goes on from: the one whose turns it shares most of."""
        digests = digests_of(request)
        best, most = None, 0
        for past in reversed(self.pasts):
            shared = _common(past.digests, digests)
            if shared > most:
                best, most = past, shared
        return best


class Sessions:
    """Finds the session of a request: by the name it gives, else by the turns it repeats."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._labels: dict[str, str] = {}  # -> the name of the session that has it
        self._chains: OrderedDict[bytes, str] = OrderedDict()  # the turns of a prompt -> its name
        self._nameless = 0
        self._size = 0

    def of(self, request: Request) -> Session:
        name = request.identity.session or self._by_turns(request)
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = Session(name, self._label(name))
            if len(self._sessions) > _SESSIONS:
                self._forget()
        self._sessions.move_to_end(name)
        session.count += 1
        return session

    def end(self, session: Session, past: Past) -> None:
        """An exchange of this session is over. The oldest make room for it."""
        session.pasts.append(past)
        self._size += past.size
        if len(session.pasts) > _PASTS:
            self._size -= session.pasts.popleft().size
        while self._size > _MOST_BYTES and len(self._sessions) > 1:
            self._forget()
        while self._size > _MOST_BYTES and len(session.pasts) > 1:
            self._size -= session.pasts.popleft().size

    def _forget(self) -> None:
        """Lets go of the session that was silent for longest."""
        _, oldest = self._sessions.popitem(last=False)
        self._size -= sum(past.size for past in oldest.pasts)
        self._labels.pop(oldest.label, None)

    def _label(self, name: str) -> str:
        """A name that fits a line: of an id its beginning, as long as no other one has it.

        The ids of some harnesses begin with the time.
        """
        shown = "".join(letter if letter.isprintable() else "?" for letter in name)
        lengths = (len(shown),) if len(shown) <= _SHORT else range(_LABEL, len(shown) + 1)
        labels = (shown[:length] for length in lengths)
        label = next((one for one in labels if self._labels.get(one, name) == name), shown)
        self._labels[label] = name
        return label

    def _by_turns(self, request: Request) -> str:
        """The session of the longest prompt that this one begins with, or a new one."""
        chains, chain = [], b""
        for one in digests_of(request):
            chain = compute_digest(chain, one)
            chains.append(chain)
        known = (self._chains[c] for c in reversed(chains[:-1]) if c in self._chains)
        name = next(known, None)
        if name is None:
            self._nameless += 1
            name = f"unnamed {self._nameless}"
        if chains:
            self._chains[chains[-1]] = name
            if len(self._chains) > _CHAINS:
                self._chains.popitem(last=False)
        return name


def past(
    request: Request, said: Turn | None, complete: float | None, *, sure: bool, size: int
) -> Past:
    """What is remembered of an exchange."""
    turns = digests_of(request)
    known = turns if said is None else (*turns, digest_turn(said).digest)
    return Past(request, known, said, complete, sure, size)


def named(request: Request, session: str) -> Request:
    """The request as one of this session."""
    identity = msgspec.structs.replace(request.identity, session=session)
    return msgspec.structs.replace(request, identity=identity)


def digests_of(request: Request) -> tuple[bytes, ...]:
    return tuple(digest_turn(turn).digest for turn in request.turns)


def _common(left: tuple[bytes, ...], right: tuple[bytes, ...]) -> int:
    same = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        same += 1
    return same
