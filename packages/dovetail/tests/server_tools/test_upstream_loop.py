"""Server tools in front of an upstream engine: those of the Messages API run here."""

from collections.abc import AsyncGenerator
from typing import Any

import anthropic
import openai
import pytest
from http_fixture import NAME, run, serving
from server_tools_fixture import CLIENT_TOOL, SEARCH_TOOL, create_tools

from dovetail.engines.engine import EngineCapabilities, EngineHealth
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.seal import Sealer
from dovetail.pipeline.registry import ModelRegistry, UpstreamModel
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.prompt.volatile_text import NormalizationOptions
from dovetail.server_tools.runner import ServerTools
from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Event,
    Finish,
    Request,
    SpanEnd,
    TextBlock,
    TextDelta,
    ToolResultBlock,
    Usage,
)
from dovetail_protocols import UpstreamDialect, build_chat_request, build_responses_request

SEARCH: list[Event] = [
    CallOpen(0, "web_search", "theirs"),
    CallArgs(0, '{"query":"Oslo"}'),
    CallClose(0),
    Usage(10, 5),
    Finish("tool_calls"),
]
FINAL: list[Event] = [TextDelta("Rain [1]."), SpanEnd("text"), Usage(20, 4), Finish("stop")]


class Upstream:
    """Streams one batch of events for each request."""

    name = "openai"

    def __init__(self, *batches: list[Event], api: str | None = None) -> None:
        self.capabilities = EngineCapabilities(context_length=4096, api=api)
        self.batches = list(batches)
        self.requests: list[Request] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def health(self) -> EngineHealth:
        return EngineHealth(True)

    async def stream(self, request: Request) -> AsyncGenerator[list[Event]]:
        self.requests.append(request)
        yield self.batches.pop(0)


def make_registry(upstream: Upstream, tools: ServerTools | None) -> ModelRegistry:
    normalizer, sealer = PromptNormalizer(NormalizationOptions()), Sealer(Keyring([bytes(32)]))
    model = UpstreamModel((NAME,), upstream, normalizer, sealer)
    return ModelRegistry([model], server_tools=tools)


def test_search_of_the_messages_api_runs_here() -> None:
    async def main() -> None:
        upstream = Upstream(SEARCH, FINAL)
        async with serving(registry=make_registry(upstream, create_tools())) as stage:
            messages: Any = [{"role": "user", "content": "Weather?"}]
            tools: Any = [SEARCH_TOOL]
            message: Any = await stage.anthropic().messages.create(
                model=NAME, max_tokens=64, messages=messages, tools=tools
            )
            assert [block.type for block in message.content] == [
                "server_tool_use",
                "web_search_tool_result",
                "text",
            ]
            assert len(message.content[2].citations) == 1
            assert message.usage.output_tokens == 9
            assert [tool.name for tool in upstream.requests[0].tools] == ["web_search"]
            (result,) = upstream.requests[1].turns[-1].blocks
            assert isinstance(result, ToolResultBlock)

    run(main)


def test_tools_of_the_responses_api_are_left_to_the_upstream() -> None:
    async def main() -> None:
        upstream = Upstream(FINAL)
        async with serving(registry=make_registry(upstream, create_tools())) as stage:
            tools: Any = [{"type": "web_search"}]
            await stage.openai().responses.create(model=NAME, input="Weather?", tools=tools)
            assert upstream.requests[0].tools == ()
            assert upstream.requests[0].client.tools == (("tools[0]", {"type": "web_search"}),)

    run(main)


def test_search_of_the_responses_api_runs_here_for_a_chat_upstream() -> None:
    async def main() -> None:
        upstream = Upstream(SEARCH, FINAL, api="chat")
        async with serving(registry=make_registry(upstream, create_tools())) as stage:
            tools: Any = [{"type": "web_search"}]
            response = await stage.openai().responses.create(
                model=NAME, input="Weather?", tools=tools, max_tool_calls=3
            )
            assert response.output[0].type == "web_search_call"
            assert response.output_text == "Rain [1]."
            build_chat_request(upstream.requests[0], "m", UpstreamDialect())
            assert [tool.name for tool in upstream.requests[0].tools] == ["web_search"]

    run(main)


def test_search_of_the_chat_api_runs_here_for_a_responses_upstream() -> None:
    async def main() -> None:
        upstream = Upstream(SEARCH, FINAL, api="responses")
        async with serving(registry=make_registry(upstream, create_tools())) as stage:
            messages: Any = [{"role": "user", "content": "Weather?"}]
            completion = await stage.openai().chat.completions.create(
                model=NAME, messages=messages, web_search_options={}
            )
            assert completion.choices[0].message.content == "Rain [1]."
            build_responses_request(upstream.requests[0], "m", UpstreamDialect())

    run(main)


def test_search_of_another_api_without_a_provider_fails() -> None:
    async def main() -> None:
        upstream = Upstream(FINAL, api="chat")
        async with serving(registry=make_registry(upstream, None)) as stage:
            tools: Any = [{"type": "web_search"}]
            with pytest.raises(openai.BadRequestError, match="is not available"):
                await stage.openai().responses.create(model=NAME, input="?", tools=tools)

    run(main)


def test_search_without_a_provider_is_not_shown() -> None:
    async def main() -> None:
        upstream = Upstream(FINAL)
        async with serving(registry=make_registry(upstream, None)) as stage:
            messages: Any = [{"role": "user", "content": "Weather?"}]
            tools: Any = [SEARCH_TOOL, CLIENT_TOOL]
            raw = await stage.anthropic().messages.with_raw_response.create(
                model=NAME, max_tokens=64, messages=messages, tools=tools
            )
            assert "tool_unavailable:web_search" in raw.headers["x-dovetail-diagnostics"]
            assert [tool.name for tool in upstream.requests[0].tools] == ["look_up"]
            (block,) = upstream.requests[0].turns[0].blocks
            assert isinstance(block, TextBlock)
            assert block.text.endswith("are not available on this server: web_search")
            with pytest.raises(anthropic.BadRequestError, match="is not available"):
                await stage.anthropic().messages.create(
                    model=NAME, max_tokens=64, messages=messages, tools=tools[:1]
                )

    run(main)
