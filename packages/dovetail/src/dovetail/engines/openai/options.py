"""Options of the engine `openai`."""

from typing import Literal

import msgspec

from dovetail.engines.registry import EngineSetupError


class OpenAIOptions(msgspec.Struct, frozen=True):
    """The engine's own options, as its page documents them.

    `raw` says that the server returns unparsed text; `tool_parser` and `reasoning_parser` then
    name our parsers. `reasoning_field` is the field from which the server reads the reasoning of
    a history; by default it is probed. `custom_tools` says that the server supports tools with
    free-text input; None detects it. `body` is a JSON object of fields that are added to every
    request.
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
        """The fields of `body`. Raises where it is not an object."""
        try:
            return msgspec.json.decode(self.body or "{}", type=dict[str, object])
        except msgspec.DecodeError as error:
            raise EngineSetupError(f"the option body is no JSON object: {error}") from error
