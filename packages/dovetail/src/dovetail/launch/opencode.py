"""OpenCode: a provider in a variable that is joined with the user's own configuration."""

import json

from dovetail.launch.plan import KEY_VARIABLE, PROVIDER, Order, Plan

_MODEL_FLAGS = ("-m", "--model")
#: Both come with OpenCode: nothing is fetched.
_SDKS = {"chat": "@ai-sdk/openai-compatible", "responses": "@ai-sdk/openai"}


def plan(order: Order) -> Plan:
    """The variable is the strongest of its sources, and no file."""
    target = order.target
    model: dict[str, object] = {"name": target.model, "reasoning": True, "tool_call": True}
    if target.context_length is not None:
        model["limit"] = {"context": target.context_length, "output": target.longest_answer}
    if order.api == "chat":
        # Thoughts are given back under the name that they came by.
        model["interleaved"] = {"field": "reasoning_content"}
    provider = {
        "name": "Dovetail",
        "npm": _SDKS[order.api],
        "options": {"baseURL": f"{target.address}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}"},
        "models": {target.model: model},
    }
    name = f"{PROVIDER}/{target.model}"
    config = {
        "provider": {PROVIDER: provider},
        "model": name,
        "small_model": name,
        # A list of the user's, of those to be offered or not, would leave ours out.
        "enabled_providers": [PROVIDER],
        "disabled_providers": [],
    }
    environment = {
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
        # The list of all models of the world is of no use here, and without a network it waits.
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        KEY_VARIABLE: target.token,
    }
    command = (order.executable, *_with_model(order.arguments, name))
    return Plan(command, environment)


def _with_model(arguments: tuple[str, ...], name: str) -> tuple[str, ...]:
    """With the model named where that is understood, and no other is.

    A session that is resumed asks for the model that it had, which may be served no more.
    """
    at = 1 if arguments[:1] == ("run",) else 0
    understood = at or not arguments or arguments[0].startswith("-")
    named = any(one.startswith(_MODEL_FLAGS) for one in arguments)
    if named or not understood:
        return arguments
    return (*arguments[:at], "-m", name, *arguments[at:])
