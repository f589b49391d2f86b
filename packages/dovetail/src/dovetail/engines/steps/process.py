"""The child process of an engine that is served over the step protocol.

Its connection is private: it listens on a unix socket in a folder that only the current user can
access, or on a loopback port that the system selects. It requires a key that is generated at each
start.
"""

import importlib.util
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dovetail.engines.process import EngineProcess, ProcessSpec
from dovetail.engines.steps import child_main
from dovetail.engines.steps.client import StepAddress
from dovetail_model import EngineUnavailable

#: Run by its path: the interpreter of the engine may not have Dovetail.
CHILD_SCRIPT = Path(child_main.__file__)
DOVETAIL_PACKAGES = ("dovetail", "dovetail_model", "dovetail_tokenizers")
#: What Python prints before 3.11, which introduced the flag `-P`.
_OLD_PYTHON_OUTPUT = "Unknown option: -P"


@dataclass(frozen=True)
class ListenOptions:
    """A TCP address for clients on other machines, with its certificate and the key of clients."""

    host: str
    port: int
    key: str
    certificate: Path | None = None
    certificate_key: Path | None = None


class StepProcess(EngineProcess):
    """One process, which can be started only once.

    `module`: the module in the child with the function `load`, which returns the engine.
    """

    __slots__ = ("_module", "_name", "_program")

    def __init__(self, spec: ProcessSpec, module: str) -> None:
        super().__init__(spec)
        self._name = spec.name
        self._program = spec.command[0]
        self._module = module

    async def start(
        self, config: Mapping[str, Any], *, tcp: bool = False, listen: ListenOptions | None = None
    ) -> StepAddress:
        """Load the model. Raise `EngineUnavailable` with the reason if that fails."""
        key = listen.key if listen is not None else secrets.token_urlsafe(32)
        private_socket = None if tcp or listen is not None else self._socket.create("engine.sock")
        message = {
            "module": self._module,
            "packages": package_folders(),
            "engine": config,
            "key": key,
            "socket": private_socket,
            **_listen_fields(listen),
        }
        try:
            response = await self._child.start(message)
            if "address" not in response:
                reason = response.get("error") or self._describe_old_python()
                raise EngineUnavailable(self.describe_failure(reason))
        except BaseException:
            await self.stop()
            raise
        return _parse_address(response["address"], key)

    def _describe_old_python(self) -> str | None:
        """Return the error of an interpreter that cannot run Dovetail's packages."""
        if any(line.startswith(_OLD_PYTHON_OUTPUT) for line in self._child.log):
            return f"{self._program} is older than Python 3.11, which is required"
        return None

    def describe_failure(self, error: str | None) -> str:
        """Describe why the model was not loaded. `error` is what the process reported."""
        return error or self.describe_exit()


def _listen_fields(listen: ListenOptions | None) -> dict[str, Any]:
    if listen is None:
        return {}
    return {
        "host": listen.host,
        "port": listen.port,
        "certificate": listen.certificate and str(listen.certificate),
        "certificate_key": listen.certificate_key and str(listen.certificate_key),
    }


def _parse_address(url: str, key: str) -> StepAddress:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return StepAddress(key, parts.path)
    return StepAddress(key, None, parts.hostname or "", parts.port or 0)


def package_folders() -> dict[str, str]:
    """Return the folders of Dovetail's packages by name, for an interpreter without them."""
    specs = {name: importlib.util.find_spec(name) for name in DOVETAIL_PACKAGES}
    return {
        name: str(Path(spec.origin).parent) for name, spec in specs.items() if spec and spec.origin
    }


def has_package(name: str) -> bool:
    """Return whether this interpreter has a package. It is not imported."""
    return name in sys.modules or importlib.util.find_spec(name) is not None
