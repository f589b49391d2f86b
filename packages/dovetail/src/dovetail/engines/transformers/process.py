"""The child process that runs torch and the model.

Its server is private: it listens on a unix socket in a folder that only the current user can
access, or on a loopback port that the system selects. It requires a key that is generated at each
start.
"""

import importlib.util
import re
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dovetail.engines.engine import ConstraintSyntax, OptionalSampling
from dovetail.engines.process import EngineProcess, ProcessSpec
from dovetail.engines.transformers.options import TransformersChildConfig, TransformersOptions
from dovetail.net.http_client import Endpoint
from dovetail.settings.installation import install_command
from dovetail_model import EngineUnavailable

CHILD_SCRIPT = Path(__file__).parent / "child" / "__main__.py"
REQUIRED_PACKAGES = ("torch", "transformers")
DOVETAIL_PACKAGES = ("dovetail", "dovetail_model", "dovetail_protocols", "dovetail_tokenizers")
ERROR_LINE = re.compile(r"^[\w.]*(Error|Exception|Interrupt)\b.*")  # the last line of a traceback


class TransformersChildReady(msgspec.Struct, frozen=True):
    """The child's response when it is ready. `facts` are reported with the engine's health."""

    address: str
    context_length: int
    cached_tokens: bool = False
    constraints: tuple[ConstraintSyntax, ...] = ()
    sampling: tuple[OptionalSampling, ...] = ()
    logprobs: bool = False
    facts: dict[str, str | int] = {}


class TransformersProcess(EngineProcess):
    """The process of one model, which can be started only once."""

    __slots__ = ("_options",)

    def __init__(self, options: TransformersOptions) -> None:
        self._options = options
        super().__init__(
            ProcessSpec(
                name="transformers",
                command=(options.python or sys.executable, "-P", str(CHILD_SCRIPT)),
                start_timeout=options.start_timeout,
                forward_logs=options.logs,
            )
        )

    async def start(
        self, model: Path, context_length: int | None
    ) -> tuple[Endpoint, TransformersChildReady]:
        """Load the model. Raise `EngineUnavailable` with the reason if that fails."""
        if self._options.python is None:
            check_packages()
        key = secrets.token_urlsafe(32)
        config = TransformersChildConfig(
            str(model),
            key,
            None if self._options.tcp else self._socket.create("engine.sock"),
            context_length,
            self._options,
            package_roots() if self._options.python is not None else (),
        )
        try:
            response = await self._child.start(msgspec.to_builtins(config))
            if "address" not in response:
                reason = response.get("error") or self.describe_exit()
                raise EngineUnavailable(f"transformers cannot serve {model}: {reason}")
        except BaseException:
            await self.stop()
            raise
        ready = msgspec.convert(response, TransformersChildReady)
        return Endpoint.parse(ready.address, {"authorization": f"Bearer {key}"}), ready

    def describe_exit(self) -> str:
        """Describe how the process ended, with its last error."""
        error = last_error_line(self._child.log)
        exit_text = self._child.describe_exit()
        return f"{exit_text}: {error}" if error and not self.alive else exit_text


def check_packages() -> None:
    """Raise an error if this interpreter does not have torch or transformers."""
    for package in REQUIRED_PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise EngineUnavailable(
                f"the engine 'transformers' requires the package {package}: "
                f"{install_command('transformers')}, "
                "or set the option python to an interpreter that has it"
            )


def package_roots() -> tuple[str, ...]:
    """Return the import paths of Dovetail's packages, for an interpreter without them."""
    specs = [importlib.util.find_spec(name) for name in DOVETAIL_PACKAGES]
    roots = [str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin]
    return tuple(dict.fromkeys(roots))


def last_error_line(log: Iterable[str]) -> str:
    """Return the last error in a log."""
    found = [line for line in log if ERROR_LINE.match(line)]
    return found[-1][:300] if found else ""
