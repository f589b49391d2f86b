"""Run two turns over each API, with logprobs if it supports them, and check what is stored.

The expected values are those that the engine returned.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any

import pytest

from dovetail.engines.engine import EngineHealth, EngineRequest, TokenDelta, TokenEngine, TokenSink
from dovetail_model import TokenLogprob

APIS = ("messages", "chat", "responses")
#: APIs without `keep_logprobs`, and one with it that cannot request logprobs.
REQUESTED_OR_STORED = [(api, False) for api in APIS] + [("messages", True)]
LIMIT = 10  # tokens of the first turn, which no model ends by itself
TIMEOUT_SECONDS = 120.0
SHAPE = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
    "additionalProperties": False,
}
_PATHS = {
    "messages": "/v1/messages",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
}


@dataclass
class EngineOutput:
    """One generation as the engine returned it. None: the logprob of a token is not known."""

    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    cached: int | None = None


class Session:
    """A client that requests logprobs if its API supports them."""

    def __init__(self, url: str, api: str, model: str, name: str) -> None:
        self._host = url.removeprefix("http://")
        self._api = api
        self._headers = {"content-type": "application/json", "x-session-id": name}
        self._common = {"model": model, "temperature": 1.0}
        self._history: list[Any] = []

    def run(self) -> list[list[float]]:
        """Run a truncated turn and a complete one. Return the logprobs in the responses."""
        first = self._turn("Tell me of the sea.", LIMIT, None)
        return [first, self._turn("Where was that?", 200, SHAPE)]

    def _turn(self, text: str, limit: int, shape: Mapping[str, Any] | None) -> list[float]:
        self._history.append({"role": "user", "content": text})
        request = getattr(self, f"_{self._api}")(limit, shape)
        response = self._post({**self._common, **request})
        return getattr(self, f"_read_{self._api}")(response)  # type: ignore[no-any-return]

    def _messages(self, limit: int, shape: Mapping[str, Any] | None) -> dict[str, Any]:
        form = {"format": {"type": "json_schema", "schema": shape}}
        return {
            "messages": self._history,
            "max_tokens": limit,
            "thinking": {"type": "disabled"},
            **({"output_config": form} if shape else {}),
        }

    def _read_messages(self, response: Any) -> list[float]:
        self._history.append({"role": "assistant", "content": response["content"]})
        assert "logprob" not in json.dumps(response)
        return []

    def _chat(self, limit: int, shape: Mapping[str, Any] | None) -> dict[str, Any]:
        form = {"type": "json_schema", "json_schema": {"name": "place", "schema": shape}}
        return {
            "messages": self._history,
            "max_tokens": limit,
            "reasoning_effort": "none",
            "logprobs": True,
            "top_logprobs": 3,
            **({"response_format": form} if shape else {}),
        }

    def _read_chat(self, response: Any) -> list[float]:
        (choice,) = response["choices"]
        self._history.append(choice["message"])
        for one in choice["logprobs"]["content"]:
            top_logprobs = [top["logprob"] for top in one["top_logprobs"]]
            assert len(top_logprobs) == 3
            assert top_logprobs == sorted(top_logprobs, reverse=True)
        return [one["logprob"] for one in choice["logprobs"]["content"]]

    def _responses(self, limit: int, shape: Mapping[str, Any] | None) -> dict[str, Any]:
        form = {"format": {"type": "json_schema", "name": "place", "schema": shape}}
        return {
            "input": self._history,
            "max_output_tokens": limit,
            "reasoning": {"effort": "none"},
            "store": False,
            "include": ["message.output_text.logprobs"],
            **({"text": form} if shape else {}),
        }

    def _read_responses(self, response: Any) -> list[float]:
        self._history += response["output"]
        parts = [part for item in response["output"] for part in item.get("content") or ()]
        return [one["logprob"] for part in parts for one in part.get("logprobs") or ()]

    def _post(self, body: Mapping[str, Any]) -> Any:
        connection = HTTPConnection(self._host, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("POST", _PATHS[self._api], json.dumps(body), self._headers)
            reply = connection.getresponse()
            content = reply.read()
            assert reply.status == 200, content
            return json.loads(content)
        finally:
            connection.close()


class RecordingEngine:
    """An engine that records its requests and outputs."""

    name = "overheard"

    def __init__(self, engine: TokenEngine) -> None:
        self.engine = engine
        self.capabilities = engine.capabilities
        self.requests: list[EngineRequest] = []
        self.outputs: list[EngineOutput] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def health(self) -> EngineHealth:
        return await self.engine.health()

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        output = EngineOutput(request.prompt.tolist())
        self.requests.append(request)
        self.outputs.append(output)
        await self.engine.generate(request, _RecordingSink(output, sink))


class _RecordingSink:
    def __init__(self, output: EngineOutput, sink: TokenSink) -> None:
        self._output = output
        self._sink = sink
        self.drain = sink.drain

    def push(self, delta: TokenDelta) -> bool:
        self._output.ids += delta.ids
        self._output.logprobs += map(_known, delta.logprobs)
        if delta.cached is not None:
            self._output.cached = delta.cached
        return self._sink.push(delta)


def _known(one: TokenLogprob) -> float | None:
    return None if one.logprob == -9999.0 else one.logprob


def check_samples(
    samples: Sequence[Mapping[str, Any]], outputs: Sequence[EngineOutput], *, known: bool = True
) -> None:
    """Check that each turn is exported once, with the engine's ids and logprobs.

    Logprobs that are not `known` were not requested.
    """
    turns = [(sample, turn) for sample in samples for turn in sample["turns"]]
    assert len(turns) == len(outputs) > 0
    for output in outputs:
        sample, turn = next(
            one for one in turns if one[0]["ids"][: one[1]["prompt_end"]] == output.prompt
        )
        generated = slice(turn["prompt_end"], turn["end"])
        count = turn["end"] - turn["prompt_end"]
        # The next prompt may have another stop id than the one that ended the turn.
        assert count >= len(output.ids) - (turn["stop"] is not None)
        assert sample["ids"][generated] == output.ids[:count]
        assert set(sample["loss_mask"][generated]) == {1}
        if not known:
            assert sample["logprobs"] is None
            continue
        logprobs = sample["logprobs"]
        assert logprobs[generated] == [
            None if one is None else pytest.approx(one, rel=1e-6) for one in output.logprobs[:count]
        ]
        assert any(logprobs[generated])


def check_shown(api: str, shown: Sequence[list[float]], outputs: Sequence[EngineOutput]) -> None:
    """Chat Completions returns the logprobs of all tokens, Responses those of the text."""
    for logprobs, output in zip(shown, outputs, strict=True):
        if api == "chat":
            assert logprobs == pytest.approx(output.logprobs)
        elif api == "responses":
            assert len(logprobs) >= LIMIT - 1
            assert logprobs == pytest.approx(output.logprobs[: len(logprobs)])
        else:
            assert logprobs == []
