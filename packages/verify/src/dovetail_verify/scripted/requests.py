"""Requests as the clients of each API send them: a question, and the history that they replay."""

from collections.abc import Sequence
from typing import Any

from dovetail_verify.exchange import Exchange
from dovetail_verify.scripted.response import Shape, Shown, read
from dovetail_verify.scripted.scenarios import LOOK_UP, NEXT, WRITE, Scene
from dovetail_verify.target import PATHS, Json, Stage

MOST = 16384  # tokens of an answer: no scene comes near it
SYSTEM = "You look up the weather. Use the tools."
_TEXT = {"type": "string"}
_TOOLS: dict[str, Json] = {
    LOOK_UP: {"city": _TEXT, "days": {"type": "integer"}},
    WRITE: {"path": _TEXT, "content": _TEXT},
}
#: What Codex says in every request.
_CODEX: Json = {
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "medium", "summary": "auto"},
    "tool_choice": "auto",
    "parallel_tool_calls": True,
}
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


def words(scene: Scene, nonce: str) -> str:
    """The user's message that gets a scene; the nonce finds its prompt in the recording."""
    return f"{scene.word} {nonce}: what is the weather like?"


def question(api: str, stage: Stage, text: str, *, stream: bool) -> Json:
    """A first request."""
    body: Json = {"model": stage.model, "tools": [_tool(api, name) for name in _TOOLS]}
    if stream:
        body["stream"] = True
    if api == "messages":
        parts = [{"type": "text", "text": text, **EPHEMERAL}]
        system = [{"type": "text", "text": SYSTEM, **EPHEMERAL}]
        turns = [{"role": "user", "content": parts}]
        return {**body, "max_tokens": MOST, "system": system, "messages": turns}
    if api == "responses":
        turns = [_message("developer", SYSTEM), _message("user", text)]
        return {**body, **_CODEX, "input": turns}
    if stream:
        body["stream_options"] = {"include_usage": True}
    turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    return {**body, "max_tokens": MOST, "messages": turns}


async def ask(api: str, stage: Stage, body: Json, **headers: str) -> Exchange:
    """The exchange. In header names _ stands for -."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await stage.post(PATHS[api], body, named)


async def play(api: str, stage: Stage, scene: Scene, *, stream: bool = True) -> Shape:
    """A scene, asked for and read; kept for all checks that look at it."""

    async def make(stage: Stage) -> Shape:
        return await play_again(api, stage, scene, stream=stream)

    return await stage.once(f"{api} {scene.name} {'stream' if stream else 'whole'}", make)


async def play_again(api: str, stage: Stage, scene: Scene, *, stream: bool = True) -> Shape:
    """A scene, whether it was played before or not."""
    body = question(api, stage, words(scene, stage.unique()), stream=stream)
    return read(api, await ask(api, stage, body))


def replayed(api: str, body: Json, shape: Shape, nonce: str, *, moved: bool = False) -> Json:
    """The next request, with the results of the calls, the last call's first.

    `moved`: calls stand behind everything else, as Claude Code sends a turn with text in it.
    """
    results = [(part, f"{NEXT} {nonce} {n}: sunny") for n, part in enumerate(shape.of("call"))]
    results.reverse()
    if api == "messages":
        return {**body, "messages": _messages(body, shape, results, moved=moved)}
    if api == "responses":
        outputs = [
            {"type": "function_call_output", "call_id": part.id, "output": text}
            for part, text in results
        ]
        return {**body, "input": [*body["input"], *shape.items, *outputs]}
    return {**body, "messages": [*body["messages"], *_chat(shape, results)]}


def _messages(
    body: Json, shape: Shape, results: Sequence[tuple[Shown, str]], *, moved: bool
) -> list[Json]:
    """The first turn flips from a list to a string, and inputs come back in another order."""
    parts = shape.parts
    if moved:
        parts = [part for part in parts if part.kind != "call"] + shape.of("call")
    asked = body["messages"][0]["content"][0]["text"]
    returned: list[Json] = [
        {"type": "tool_result", "tool_use_id": part.id, "content": text} for part, text in results
    ]
    returned[-1] |= EPHEMERAL
    return [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": [_content(part) for part in parts]},
        {"role": "user", "content": returned},
    ]


def _content(part: Shown) -> Json:
    if part.kind == "thought":
        return {"type": "thinking", "thinking": part.text, "signature": part.seal}
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    given = dict(reversed(part.input.items()))
    return {"type": "tool_use", "id": part.id, "name": part.name, "input": given}


def _chat(shape: Shape, results: Sequence[tuple[Shown, str]]) -> list[Json]:
    """One message has one field for thoughts and one for text, whatever their order was."""
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.text}}
        for c in shape.of("call")
    ]
    said = {"content": shape.text("text") or None, "reasoning_content": shape.text("thought")}
    answers = [{"role": "tool", "tool_call_id": part.id, "content": text} for part, text in results]
    return [{"role": "assistant", **said, "tool_calls": calls}, *answers]


def _message(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def _tool(api: str, name: str) -> Json:
    schema: dict[str, Any] = {"type": "object", "properties": _TOOLS[name]}
    about = f"The tool {name}."
    if api == "messages":
        return {"name": name, "description": about, "input_schema": schema}
    function = {"name": name, "description": about, "parameters": schema}
    if api == "responses":
        return {"type": "function", **function, "strict": False}
    return {"type": "function", "function": function}
