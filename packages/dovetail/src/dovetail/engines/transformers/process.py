"""The child process that runs torch and the model."""

import importlib.util
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from dovetail.engines.process import ProcessSpec
from dovetail.engines.steps.process import CHILD_SCRIPT, StepProcess
from dovetail.engines.transformers.options import TransformersOptions
from dovetail.settings.installation import install_command
from dovetail_model import EngineUnavailable

CHILD_MODULE = "dovetail.engines.transformers.child.server"
REQUIRED_PACKAGES = ("torch", "transformers")
INTERPRETER_HINT = "or set the option python to an interpreter that has it"
ERROR_LINE = re.compile(r"^[\w.]*(Error|Exception|Interrupt)\b.*")  # the last line of a traceback


class TransformersProcess(StepProcess):
    """The process of one model, which can be started only once."""

    __slots__ = ("_model", "_python")

    def __init__(self, model: Path, options: TransformersOptions) -> None:
        self._model = model
        self._python = options.python and str(Path(options.python).expanduser())
        super().__init__(
            ProcessSpec(
                name="transformers",
                command=(self._python or sys.executable, "-P", str(CHILD_SCRIPT)),
                start_timeout=options.start_timeout,
                forward_logs=options.logs,
            ),
            CHILD_MODULE,
        )

    def check_installed(self) -> None:
        """Raise an error if this interpreter is used and lacks torch or transformers."""
        for package in REQUIRED_PACKAGES if self._python is None else ():
            if importlib.util.find_spec(package) is None:
                raise EngineUnavailable(
                    f"the engine 'transformers' requires the package {package}: "
                    f"{install_command('transformers')}, {INTERPRETER_HINT}"
                )

    def describe_failure(self, error: str | None) -> str:
        """Describe why the model was not loaded, with what to install if a module is missing.

        The first line of the library's errors has the reason; the others are advice.
        """
        reason = (error or self.describe_exit()).strip().partition("\n")[0]
        if reason.startswith("No module named"):
            reason += f" ({install_command('transformers')}, {INTERPRETER_HINT})"
        return f"transformers cannot serve {self._model}: {reason}"

    def describe_exit(self) -> str:
        """Describe how the process ended, with its last error."""
        error = last_error_line(self._child.log)
        exit_text = self._child.describe_exit()
        return f"{exit_text}: {error}" if error and not self.alive else exit_text


def last_error_line(log: Iterable[str]) -> str:
    """Return the last error in a log."""
    found = [line for line in log if ERROR_LINE.match(line)]
    return found[-1][:300] if found else ""
