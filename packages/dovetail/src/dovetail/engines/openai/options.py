"""What can be said about an upstream."""

from typing import Literal

import msgspec

from dovetail.engines.registry import EngineSetupError


class OpenAIOptions(msgspec.Struct, frozen=True):
    """The engine's own options, as its page documents them.

    `raw` says that the server gives text which nobody has parsed; `tool_parser` and
    `reasoning_parser` then name ours. `reasoning_field` is where the server reads the thoughts of a
    history; by default that is found out. `custom_tools` says that it knows tools of free text;
    None leaves it to what is known. `body` is a JSON object of fields that every request gets.
    """

    api: Literal["auto", "chat", "responses"] = "auto"
    raw: bool = False
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    reasoning_field: Literal[
        "auto", "none", "reasoning_content", "reasoning", "reasoning_segments"
    ] = "auto"
    custom_tools: bool | None = None
    images: bool = True
    timeout: float = 300.0
    body: str = ""

    def extra_fields(self) -> dict[str, object]:
        """The fields of `body`. Raises where it is no object."""
        try:
            return msgspec.json.decode(self.body or "{}", type=dict[str, object])
        except msgspec.DecodeError as error:
            raise EngineSetupError(f"the option body is no JSON object: {error}") from error
