"""The scripted engine: generates replies from a file instead of a model.

It is part of the product: the demo, the tests and load tests use it. It simulates the environment
of a model (a prefix cache, prefill and decode times, failures), but not a model. In process it is
`ScriptedEngine`; as a separate process (`python -m dovetail.engines.scripted`) it serves vLLM's
completions protocol.

A plain text file is the reply to every request. A YAML file contains turns and rules:

    rules:
      - when: {text: "title for this conversation", tail: 400}
        text: "Weather in Paris"
      - times: 1
        fail: {kind: overloaded, message: "no room"}
    turns:
      - text: "<think>I need the weather.</think><tool_call>…</tool_call>"
        chunks: 4
        delay: {first: 0.2, between: 0.01}
      - text: "It is sunny."

A request gets the reply of the first rule that matches it, or else the next turn of its session.
Text is tokenized with the model's tokenizer, so control tokens can be written as text. The token
that ends a turn is added automatically. See docs/scripts.md for all keys.
"""

from pathlib import Path
from typing import Any

from dovetail.engines.registry import EngineSetup, EngineSetupError, parse_options
from dovetail.engines.scripted.engine import ScriptedEngine, ScriptedOptions
from dovetail.engines.scripted.loader import load_script, parse_script
from dovetail.engines.scripted.script import Script, ScriptedReply, ScriptError

__all__ = [
    "Script",
    "ScriptError",
    "ScriptedEngine",
    "ScriptedOptions",
    "ScriptedReply",
    "create",
    "load_script",
    "parse_script",
]


def create(setup: EngineSetup) -> ScriptedEngine:
    """Create the engine for the registry. The option `script` is the path of the script."""
    options: dict[str, Any] = dict(setup.options)
    path = options.pop("script", None)
    if not isinstance(path, str | Path):
        raise EngineSetupError("the scripted engine requires a script: set --script FILE")
    options.setdefault("context_length", setup.context_length)
    try:
        return ScriptedEngine(
            setup.tokenizer,
            load_script(path),
            options=parse_options(options, ScriptedOptions),
            stop_ids=setup.stop_ids,
        )
    except ScriptError as error:
        raise EngineSetupError(str(error)) from error
