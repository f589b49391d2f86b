"""Detect that a remote server serves another model than the one that it was set up for.

The prompts of a model are tokenized here. A server that was restarted with another model would
interpret the token ids of its predecessor as other text, without an error.
"""

import logging
from collections.abc import Mapping

_log = logging.getLogger(__name__)


class ServedModelCheck:
    """Compares the models of a server with the one that it had at first.

    `server`: the name and the address of the server, for messages.
    `name`: the name of the model; None for the first model that is seen.
    `problem`: the result of the last check; empty if the server has the model.
    """

    __slots__ = ("_name", "_root", "_server", "problem")

    def __init__(self, server: str, name: str | None = None) -> None:
        self._server = server
        self._name = name
        self._root: str | None = None
        self.problem = ""

    def check(self, models: Mapping[str, str]) -> str:
        """Return what is wrong with the models of the server, by name with their origin.

        A server that reports no models cannot be checked.
        """
        if not models:
            return self.problem
        self._name = self._name or next(iter(models))
        root = models.get(self._name)
        problem = ""
        if root is None:
            problem = f"{self._server} does not serve {self._name!r}: it serves {', '.join(models)}"
        elif self._root is None:
            self._root = root
        elif root != self._root:
            problem = f"{self._server} serves {root} as {self._name!r}, not {self._root} any more"
        self._log_change(problem)
        self.problem = problem
        return problem

    def _log_change(self, problem: str) -> None:
        if problem == self.problem or self._root is None:
            return  # `start` raises the problem of a server that never had the model
        if problem:
            remedy = "start the previous model, or restart this server"
            fields = {"engine": self._server, "problem": problem, "remedy": remedy}
            _log.warning("engine_model_changed", extra={"fields": fields})
        else:
            _log.warning("engine_model_restored", extra={"fields": {"engine": self._server}})
