"""Data types of a launch: the target, the request and the resulting plan."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from dovetail.launch.client_version import ClientNeeds, Version, find_version, select_needs

#: Environment variable for the API key, if the harness allows a custom name.
API_KEY_VARIABLE = "KEY_OF_DOVETAIL"
#: Sent to a server without API keys: most harnesses require a key.
PLACEHOLDER_API_KEY = "none"
#: Name of Dovetail in the provider lists of harnesses.
PROVIDER_NAME = "dovetail"
#: Upper bound of the output limit, which is an eighth of the context window.
MAX_OUTPUT_TOKENS = 32_000


class LaunchError(Exception):
    """Raised if a harness cannot be run; the message is for the user."""


@dataclass(frozen=True)
class LaunchTarget:
    """A server and the models to use on it.

    `catalog` is the server's list of models in the format of Codex. `small_model` is for requests
    of the harness outside the conversation, such as titles; None: the same model.
    """

    address: str
    model: str
    key: str | None = field(default=None, repr=False)
    context_length: int | None = None
    catalog: Mapping[str, Any] | None = field(default=None, repr=False)
    small_model: str | None = None

    @property
    def side_model(self) -> str:
        """The model for requests outside the conversation."""
        return self.small_model or self.model

    @property
    def auth_token(self) -> str:
        """The key to give to a harness."""
        return self.key or PLACEHOLDER_API_KEY

    @property
    def max_output_tokens(self) -> int:
        """Output limit. Harnesses reserve it, and their default would fill a small context."""
        window = self.context_length
        return MAX_OUTPUT_TOKENS if window is None else min(MAX_OUTPUT_TOKENS, max(1, window // 8))


@dataclass(frozen=True)
class LaunchRequest:
    """The harness to launch, its arguments and its target.

    `state_dir` is for files that the harness reuses between runs. `proxy_bypass` are environment
    variables that exclude the server from the user's proxy.
    """

    target: LaunchTarget
    api: str
    arguments: tuple[str, ...]
    executable: str
    state_dir: Path
    proxy_bypass: Mapping[str, str] = field(default_factory=dict)

    @property
    def run_dir(self) -> Path:
        """Folder per server and model: harnesses reread files while they run."""
        models = " ".join(dict.fromkeys((self.target.model, self.target.side_model)))
        identity = f"{self.target.address} {models}".encode()
        return self.state_dir / sha256(identity).hexdigest()[:12]


@dataclass(frozen=True)
class LaunchPlan:
    """A command to run, with changes to the user's environment.

    `files` are private files to write first. `unset_variables` are variables that would redirect
    the harness to another server.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[Path, str] = field(default_factory=dict)
    unset_variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class Harness:
    """A client that can be launched.

    `apis` are the APIs that it supports, the default first. `needs` are what its measured versions
    need. `has_small_model`: it can use another model for requests outside the conversation.
    """

    name: str
    title: str
    package: str
    executable: str
    apis: tuple[str, ...]
    needs: tuple[ClientNeeds, ...]
    build_plan: Callable[[LaunchRequest], LaunchPlan]
    has_small_model: bool = False

    @property
    def install_command(self) -> str:
        """Shell command that installs the harness."""
        return f"npm install -g {self.package}"

    @property
    def min_context_tokens(self) -> int:
        """The smallest context length with which a version of the harness works."""
        return min(one.min_context_tokens for one in self.needs)

    def find_needs(self, executable: str, window: int | None) -> tuple[ClientNeeds, Version | None]:
        """Return what the installed version needs, and the version if it makes a difference.

        It makes none if the context length is sufficient for every version: running a harness to
        find its version may take seconds.
        """
        largest = select_needs(self.needs, None)
        if len(self.needs) == 1 or (window is not None and window >= largest.min_context_tokens):
            return largest, None
        version = find_version(executable)
        return select_needs(self.needs, version), version

    def prepare_plan(self, request: LaunchRequest) -> LaunchPlan:
        """Build the plan and add the proxy bypass."""
        plan = self.build_plan(request)
        return replace(plan, environment={**request.proxy_bypass, **plan.environment})


PROVIDER_API_NAMES = {
    "chat": "openai-completions",
    "responses": "openai-responses",
    "messages": "anthropic-messages",
}


def provider_base_url(request: LaunchRequest) -> str:
    """Return the base URL. Clients of Anthropic's API add /v1 themselves."""
    address = request.target.address
    return address if request.api == "messages" else f"{address}/v1"


def build_provider_model(target: LaunchTarget) -> dict[str, Any]:
    """Return the entry of the model for a provider list, with its limits and zero cost."""
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
