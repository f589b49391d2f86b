"""Launch plan of OpenCode: a provider in a variable, merged with the user's own settings."""

import json

from dovetail.launch.plan import API_KEY_VARIABLE, PROVIDER_NAME, LaunchPlan, LaunchRequest

_MODEL_FLAGS = ("-m", "--model")
#: Both are bundled with OpenCode, so nothing is downloaded.
_SDK_PACKAGES = {"chat": "@ai-sdk/openai-compatible", "responses": "@ai-sdk/openai"}


def build_plan(request: LaunchRequest) -> LaunchPlan:
    """Build the plan. The variable overrides all files."""
    target = request.target
    provider = {
        "name": "Dovetail",
        "npm": _SDK_PACKAGES[request.api],
        "options": {"baseURL": f"{target.address}/v1", "apiKey": f"{{env:{API_KEY_VARIABLE}}}"},
        "models": _build_models(request),
    }
    name = f"{PROVIDER_NAME}/{target.model}"
    config = {
        "provider": {PROVIDER_NAME: provider},
        "model": name,
        "small_model": f"{PROVIDER_NAME}/{target.side_model}",
        # The user's own lists of enabled and disabled providers could exclude ours.
        "enabled_providers": [PROVIDER_NAME],
        "disabled_providers": [],
    }
    environment = {
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
        # The list of public models is not needed, and fetching it blocks without a network.
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        API_KEY_VARIABLE: target.auth_token,
    }
    command = (request.executable, *_add_model_flag(request.arguments, name))
    return LaunchPlan(command, environment)


def _build_models(request: LaunchRequest) -> dict[str, dict[str, object]]:
    """Return the entries of the models, of which the context length is known for the main one."""
    target, models = request.target, {}
    for name in dict.fromkeys((target.model, target.side_model)):
        model: dict[str, object] = {"name": name, "reasoning": True, "tool_call": True}
        if name == target.model and target.context_length is not None:
            model["limit"] = {"context": target.context_length, "output": target.max_output_tokens}
        if request.api == "chat":
            # OpenCode then sends reasoning back in the field in which it received it.
            model["interleaved"] = {"field": "reasoning_content"}
        models[name] = model
    return models


def _add_model_flag(arguments: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Add the model flag where the subcommand accepts one and none is given.

    Without it, a resumed session uses its former model, which may not be served any more.
    """
    at = 1 if arguments[:1] == ("run",) else 0
    is_accepted = at or not arguments or arguments[0].startswith("-")
    has_model = any(one.startswith(_MODEL_FLAGS) for one in arguments)
    if has_model or not is_accepted:
        return arguments
    return (*arguments[:at], "-m", name, *arguments[at:])
