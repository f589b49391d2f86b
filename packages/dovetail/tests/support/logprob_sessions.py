"""Two turns over each API with logprobs asked for where one can, and what is kept of them.

The truth is what the engine said on its own wire, or to who stood beside it.
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
#: Where logprobs are kept for those who ask, and an API that has no word for them otherwise, too.
ASKED_OR_KEPT = [(api, False) for api in APIS] + [("messages", True)]
LIMIT = 10  # tokens of the first turn, which no model ends by itself
PATIENCE = 120.0
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
class Truth:
    """One generation as the engine tells it. None: of this token it said nothing."""

    prompt: list[int]
    answer: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    cached: int | None = None


class Session:
    """A client that asks for logprobs, if its API has a word for them."""

    def __init__(self, url: str, api: str, model: str, name: str) -> None:
        self._host = url.removeprefix("http://")
        self._api = api
        self._headers = {"content-type": "application/json", "x-session-id": name}
        self._common = {"model": model, "temperature": 1.0}
        self._history: list[Any] = []

    def play(self) -> list[list[float]]:
        """A turn that ends at its limit, one that ends by itself. Gives the logprobs shown."""
        first = self._turn("Tell me of the sea.", LIMIT, None)
        return [first, self._turn("Where was that?", 200, SHAPE)]

    def _turn(self, text: str, limit: int, shape: Mapping[str, Any] | None) -> list[float]:
        self._history.append({"role": "user", "content": text})
        asked = getattr(self, f"_{self._api}")(limit, shape)
        answer = self._post({**self._common, **asked})
        return getattr(self, f"_hear_{self._api}")(answer)  # type: ignore[no-any-return]

    def _messages(self, limit: int, shape: Mapping[str, Any] | None) -> dict[str, Any]:
        form = {"format": {"type": "json_schema", "schema": shape}}
        return {
            "messages": self._history,
            "max_tokens": limit,
            "thinking": {"type": "disabled"},
            **({"output_config": form} if shape else {}),
        }

    def _hear_messages(self, answer: Any) -> list[float]:
        self._history.append({"role": "assistant", "content": answer["content"]})
        assert "logprob" not in json.dumps(answer)
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

    def _hear_chat(self, answer: Any) -> list[float]:
        (choice,) = answer["choices"]
        self._history.append(choice["message"])
        for one in choice["logprobs"]["content"]:
            beside = [top["logprob"] for top in one["top_logprobs"]]
            assert len(beside) == 3
            assert beside == sorted(beside, reverse=True)
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

    def _hear_responses(self, answer: Any) -> list[float]:
        self._history += answer["output"]
        parts = [part for item in answer["output"] for part in item.get("content") or ()]
        return [one["logprob"] for part in parts for one in part.get("logprobs") or ()]

    def _post(self, body: Mapping[str, Any]) -> Any:
        connection = HTTPConnection(self._host, timeout=PATIENCE)
        try:
            connection.request("POST", _PATHS[self._api], json.dumps(body), self._headers)
            reply = connection.getresponse()
            content = reply.read()
            assert reply.status == 200, content
            return json.loads(content)
        finally:
            connection.close()


class Overhearing:
    """An engine whose words are noted."""

    name = "overheard"

    def __init__(self, engine: TokenEngine) -> None:
        self.engine = engine
        self.capabilities = engine.capabilities
        self.asked: list[EngineRequest] = []
        self.truths: list[Truth] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def health(self) -> EngineHealth:
        return await self.engine.health()

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        truth = Truth(request.prompt.tolist())
        self.asked.append(request)
        self.truths.append(truth)
        await self.engine.generate(request, _Noting(truth, sink))


class _Noting:
    def __init__(self, truth: Truth, sink: TokenSink) -> None:
        self._truth = truth
        self._listener = sink
        self.drain = sink.drain

    def push(self, delta: TokenDelta) -> bool:
        self._truth.answer += delta.ids
        self._truth.logprobs += map(_known, delta.logprobs)
        if delta.cached is not None:
            self._truth.cached = delta.cached
        return self._listener.push(delta)


def _known(one: TokenLogprob) -> float | None:
    return None if one.logprob == -9999.0 else one.logprob


def check_kept(
    samples: Sequence[Mapping[str, Any]], truths: Sequence[Truth], *, known: bool = True
) -> None:
    """Each turn of a session once, its ids and logprobs as the engine told them.

    Where they are not `known`, nobody asked for them.
    """
    turns = [(sample, turn) for sample in samples for turn in sample["turns"]]
    assert len(turns) == len(truths) > 0
    for truth in truths:
        sample, turn = next(
            one for one in turns if one[0]["ids"][: one[1]["prompt_end"]] == truth.prompt
        )
        said = slice(turn["prompt_end"], turn["end"])
        count = turn["end"] - turn["prompt_end"]
        # The next prompt may have another id than the one that ended the turn.
        assert count >= len(truth.answer) - (turn["stop"] is not None)
        assert sample["ids"][said] == truth.answer[:count]
        assert set(sample["loss_mask"][said]) == {1}
        if not known:
            assert sample["logprobs"] is None
            continue
        kept = sample["logprobs"]
        assert kept[said] == [
            None if one is None else pytest.approx(one, rel=1e-6) for one in truth.logprobs[:count]
        ]
        assert any(kept[said])


def check_shown(api: str, shown: Sequence[list[float]], truths: Sequence[Truth]) -> None:
    """Chat Completions shows those of all tokens, Responses those of the text."""
    for told, truth in zip(shown, truths, strict=True):
        if api == "chat":
            assert told == pytest.approx(truth.logprobs)
        elif api == "responses":
            assert len(told) >= LIMIT - 1
            assert told == pytest.approx(truth.logprobs[: len(told)])
        else:
            assert told == []
