"""What is known before a harness runs, and what is then to be run: data, nothing more."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

#: The variable that holds the key where a harness lets us choose its name.
API_KEY_VARIABLE = "KEY_OF_DOVETAIL"
#: What is sent to a server that asks for no key: most harnesses insist on having one.
PLACEHOLDER_API_KEY = "none"
#: Our name where harnesses keep a list of providers.
PROVIDER_NAME = "dovetail"
#: Tokens of the longest answer to ask for: an eighth of the window, and no more than this.
MAX_OUTPUT_TOKENS = 32_000


class LaunchError(Exception):
    """Why a harness cannot be run, in words for the user."""


@dataclass(frozen=True)
class LaunchTarget:
    """A server, the model that is to be used on it, and what the server says of that model.

    `catalog` is the server's list of models as Codex reads it.
    """

    address: str
    model: str
    key: str | None = field(default=None, repr=False)
    context_length: int | None = None
    catalog: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def auth_token(self) -> str:
        """What goes where a harness wants a key."""
        return self.key or PLACEHOLDER_API_KEY

    @property
    def max_output_tokens(self) -> int:
        """Harnesses keep so much of the window free: their usual figures would eat a small one."""
        window = self.context_length
        return MAX_OUTPUT_TOKENS if window is None else min(MAX_OUTPUT_TOKENS, max(1, window // 8))


@dataclass(frozen=True)
class LaunchRequest:
    """A harness's run as it was asked for.

    `folder` is for what it keeps from run to run. `past_proxies` are the variables that keep a
    proxy of the user's from being asked for the server.
    """

    target: LaunchTarget
    api: str
    arguments: tuple[str, ...]
    executable: str
    state_dir: Path
    proxy_bypass: Mapping[str, str] = field(default_factory=dict)

    @property
    def run_dir(self) -> Path:
        """A folder for this server and model: harnesses read files again while they run."""
        named = f"{self.target.address} {self.target.model}".encode()
        return self.state_dir / sha256(named).hexdigest()[:12]


@dataclass(frozen=True)
class LaunchPlan:
    """What would be run: a command, in the user's environment with a few changes.

    `files` are private ones that must be there before. `unset` names variables that would send the
    harness elsewhere.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[Path, str] = field(default_factory=dict)
    unset_variables: tuple[str, ...] = ()


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
    min_context_tokens: int
    build_plan: Callable[[LaunchRequest], LaunchPlan]

    @property
    def install_command(self) -> str:
        """The command that installs it."""
        return f"npm install -g {self.package}"

    def prepare_plan(self, request: LaunchRequest) -> LaunchPlan:
        """The plan of a run."""
        plan = self.build_plan(request)
        return replace(plan, environment={**request.proxy_bypass, **plan.environment})


PROVIDER_API_NAMES = {
    "chat": "openai-completions",
    "responses": "openai-responses",
    "messages": "anthropic-messages",
}


def provider_base_url(request: LaunchRequest) -> str:
    """Clients of Anthropic's API add /v1 themselves."""
    address = request.target.address
    return address if request.api == "messages" else f"{address}/v1"


def build_provider_model(target: LaunchTarget) -> dict[str, Any]:
    """The model and its limits. It costs nothing that they could count."""
    entry: dict[str, Any] = {
        "id": target.model,
        "name": target.model,
        "reasoning": True,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    if target.context_length is not None:
        entry["contextWindow"] = target.context_length
        entry["maxTokens"] = target.max_output_tokens
    return entry
