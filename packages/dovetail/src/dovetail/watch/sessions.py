"""Which requests belong together, and which one each goes on from."""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

import msgspec

from dovetail.ledger.visible import digest, see
from dovetail_model import Request, Turn

_PASTS = 16  # exchanges of a session that the next one may go on from
_CHAINS = 65536  # conversations without a name that are remembered
_SESSIONS = 4096


@dataclass(frozen=True)
class Past:
    """An exchange that is over: the arranged request, what was answered, when a call was complete.

    `complete` is wall-clock time; `sure` says that the tokens of the answer are known.
    """

    request: Request
    digests: tuple[bytes, ...]
    said: Turn | None
    complete: float | None
    sure: bool


@dataclass
class Session:
    """A conversation, with its side requests and sub-agents."""

    name: str
    label: str
    count: int = 0
    pasts: deque[Past] = field(default_factory=lambda: deque(maxlen=_PASTS))

    def before(self, request: Request) -> Past | None:
        """The exchange that a request goes on from: the one whose turns it shares most of."""
        digests = digests_of(request)
        best, most = None, 0
        for past in reversed(self.pasts):
            shared = _common(past.digests, digests)
            if shared > most:
                best, most = past, shared
        return best

    def end(self, request: Request, said: Turn | None, complete: float | None, sure: bool) -> None:
        turns = digests_of(request)
        known = turns if said is None else (*turns, see(said).digest)
        self.pasts.append(Past(request, known, said, complete, sure))


class Sessions:
    """Finds the session of a request: by the name it gives, else by the turns it repeats."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._chains: OrderedDict[bytes, str] = OrderedDict()  # the turns of a prompt -> its name
        self._nameless = 0

    def of(self, request: Request) -> Session:
        name = request.identity.session or self._by_turns(request)
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = Session(name, _label(name))
            if len(self._sessions) > _SESSIONS:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(name)
        session.count += 1
        return session

    def _by_turns(self, request: Request) -> str:
        """The session of the longest prompt that this one begins with, or a new one."""
        chains, chain = [], b""
        for one in digests_of(request):
            chain = digest(chain, one)
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


def named(request: Request, session: str) -> Request:
    """The request as one of this session."""
    identity = msgspec.structs.replace(request.identity, session=session)
    return msgspec.structs.replace(request, identity=identity)


def digests_of(request: Request) -> tuple[bytes, ...]:
    return tuple(see(turn).digest for turn in request.turns)


def _common(left: tuple[bytes, ...], right: tuple[bytes, ...]) -> int:
    same = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        same += 1
    return same


def _label(name: str) -> str:
    """A name that fits a line: of an id its beginning."""
    return name if len(name) <= 12 or " " in name else name[:8]
