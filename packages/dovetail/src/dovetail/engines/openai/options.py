"""Options of the engine `openai`."""

from typing import Literal

import msgspec

from dovetail.engines.registry import EngineSetupError


class OpenAIOptions(msgspec.Struct, frozen=True):
    """The engine's options, by the names in its documentation.

    `raw`: the server returns unparsed text, which `tool_parser` and `reasoning_parser` parse.
    `reasoning_field`: the field from which the server reads the reasoning of earlier turns. It is
    probed by default.
    `custom_tools`: the server supports tools with free-text input. None detects it.
    `body`: a JSON object of fields that are added to every request.
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
        """Return the fields of `body`. Raise an error if it is not a JSON object."""
        try:
            return msgspec.json.decode(self.body or "{}", type=dict[str, object])
        except msgspec.DecodeError as error:
            raise EngineSetupError(f"the option body must be a JSON object: {error}") from error
