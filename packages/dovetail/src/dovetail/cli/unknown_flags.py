"""Explain flags that a command does not have, but that users know from other tools."""

from typing import Any

from typer.core import TyperCommand

#: Flags of vLLM, SGLang, llama.cpp and uvicorn, and the flag or argument to use here.
_FOREIGN_FLAGS = {
    "--model": "model",
    "--model-path": "model",
    "--max-model-len": "--context-length",
    "--ctx-size": "--context-length",
    "--chat-template": "--custom-jinja-template",
    "--default-chat-template-kwargs": "--chat-template-kwargs",
    "--n-gpu-layers": "--gpu-layers",
    "--ssl-certfile": "--tls-cert-path",
    "--ssl-keyfile": "--tls-key-path",
}


class HintingCommand(TyperCommand):
    """A command that explains an unknown flag if another tool has a flag of that name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and add a hint to the error for an unknown flag."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Typer's `NoSuchOption` is a class of click or of Typer, depending on its version.
            if type(error).__name__ == "NoSuchOption":
                self._explain(error)
            raise

    def _explain(self, error: Any) -> None:
        known = _FOREIGN_FLAGS.get(error.option_name)
        if known and known in {name for one in self.params for name in one.opts}:
            use = known if known.startswith("--") else f"the argument {known.upper()}"
            error.message = f"{error.message.rstrip('.')}: use {use}"
            error.possibilities = None  # flags with a similar spelling


class LaunchCommand(HintingCommand):
    """A command that passes arguments on to a harness."""

    def _explain(self, error: Any) -> None:
        super()._explain(error)
        usage = f"dovetail launch HARNESS -- {error.option_name}"
        if error.option_name not in _FOREIGN_FLAGS:
            error.message += f": put arguments of the harness after --, as in `{usage}`"
