"""Options of the engine `openai`."""

from typing import Literal

import msgspec

from dovetail.engines.registry import EngineSetupError
from dovetail_model import ServerToolKind


class OpenAIOptions(msgspec.Struct, frozen=True):
    """The engine's options, by the names in its documentation.

    `raw`: the server returns unparsed text, which `tool_parser` and `reasoning_parser` parse.
    `reasoning_field`: the field from which the server reads the reasoning of earlier turns. It is
    probed by default.
    `custom_tools`: the server supports tools with free-text input. None detects it.
    `hosted_tools`: the server tools that the server runs for clients of other APIs, separated by
    commas. Only `web_search` of a Responses server is supported.
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
    hosted_tools: str = ""
    body: str = ""

    def hosted_kinds(self) -> frozenset[ServerToolKind]:
        """Return the kinds of `hosted_tools`. Raise an error if one is not supported."""
        names = [name.strip() for name in self.hosted_tools.split(",") if name.strip()]
        if unknown := [name for name in names if name != "web_search"]:
            raise EngineSetupError(f"the option hosted_tools must be web_search, got {unknown[0]}")
        if names and self.api != "responses":
            raise EngineSetupError("the option hosted_tools requires --upstream-api responses")
        return frozenset({"web_search"} if names else ())

    def extra_fields(self) -> dict[str, object]:
        """Return the fields of `body`. Raise an error if it is not a JSON object."""
        try:
            return msgspec.json.decode(self.body or "{}", type=dict[str, object])
        except msgspec.DecodeError as error:
            raise EngineSetupError(f"the option body must be a JSON object: {error}") from error
