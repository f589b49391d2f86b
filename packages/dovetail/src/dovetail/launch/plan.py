"""What is known before a harness runs, and what is then to be run: data, nothing more."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

#: The variable that holds the key where a harness lets us choose its name.
KEY_VARIABLE = "KEY_OF_DOVETAIL"
#: What is sent to a server that asks for no key: most harnesses insist on having one.
NO_KEY = "none"
#: Our name where harnesses keep a list of providers.
PROVIDER = "dovetail"
#: Tokens of the longest answer to ask for: an eighth of the window, and no more than this.
LONGEST_ANSWER = 32_000


class LaunchError(Exception):
    """Why a harness cannot be run, in words for the user."""


@dataclass(frozen=True)
class Target:
    """A server, the model that is to be used on it, and what the server says of that model.

    `catalog` is the server's list of models as Codex reads it.
    """

    address: str
    model: str
    key: str | None = field(default=None, repr=False)
    context_length: int | None = None
    catalog: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def token(self) -> str:
        """What goes where a harness wants a key."""
        return self.key or NO_KEY

    @property
    def longest_answer(self) -> int:
        """Harnesses keep so much of the window free: their usual figures would eat a small one."""
        window = self.context_length
        return LONGEST_ANSWER if window is None else min(LONGEST_ANSWER, max(1, window // 8))


@dataclass(frozen=True)
class Order:
    """A harness's run as it was asked for.

    `folder` is for what it keeps from run to run. `past_proxies` are the variables that keep a
    proxy of the user's from being asked for the server.
    """

    target: Target
    api: str
    arguments: tuple[str, ...]
    executable: str
    folder: Path
    past_proxies: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> Path:
        """A folder for this server and model: harnesses read files again while they run."""
        named = f"{self.target.address} {self.target.model}".encode()
        return self.folder / sha256(named).hexdigest()[:12]


@dataclass(frozen=True)
class Plan:
    """What would be run: a command, in the user's environment with a few changes.

    `files` are private ones that must be there before. `unset` names variables that would send the
    harness elsewhere.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[Path, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()


@dataclass(frozen=True)
class Harness:
    """A client that can be run. `apis` are those that it speaks, the usual one first.

    `least_window` are the tokens of its own prompt and room to work: below it there is no sense in
    starting it.
    """

    name: str
    title: str
    package: str
    executable: str
    apis: tuple[str, ...]
    least_window: int
    plan: Callable[[Order], Plan]

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"npm install -g {self.package}"

    def prepare(self, order: Order) -> Plan:
        """The plan of a run."""
        plan = self.plan(order)
        return replace(plan, environment={**order.past_proxies, **plan.environment})
