"""Launch plan of Claude Code: environment variables, repeated in a settings file of the run."""

import json
from collections.abc import Mapping

from dovetail.launch.plan import LaunchPlan, LaunchRequest, LaunchTarget

#: Each would override or conflict with the address and key that are set.
_CONFLICTING_VARIABLES = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_CUSTOM_HEADERS",
    "ANTHROPIC_UNIX_SOCKET",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_ANTHROPIC_AWS",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_FOUNDRY",
    "CLAUDE_CODE_USE_GATEWAY",
    "CLAUDE_CODE_USE_MANTLE",
    "CLAUDE_CODE_USE_VERTEX",
)
#: Every model that it requests by itself: subagents, titles, the models of its own menu.
_MODEL_VARIABLES = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_DEFAULT_FABLE_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)


def build_plan(request: LaunchRequest) -> LaunchPlan:
    """Build the plan. The user's own settings and sessions stay in use.

    Variables that stand in the user's settings.json are stronger than the environment, and many
    have their company's gateway, its token and a proxy there. Settings of the command line are
    stronger still: nothing of that reaches our server, or stands before it.
    """
    target = request.target
    environment = {
        "ANTHROPIC_BASE_URL": target.address,
        # A bearer token is taken as it is. An API key has to be approved in a dialogue first.
        "ANTHROPIC_AUTH_TOKEN": target.auth_token,
        **dict.fromkeys(_MODEL_VARIABLES, target.model),
        "ANTHROPIC_CUSTOM_MODEL_OPTION": target.model,
        "ANTHROPIC_CUSTOM_MODEL_OPTION_NAME": target.model,
        "ANTHROPIC_CUSTOM_MODEL_OPTION_DESCRIPTION": f"served by Dovetail at {target.address}",
        "CLAUDE_CODE_DISABLE_1M_CONTEXT": "1",  # else its default is the model with a window of 1M
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        **_build_window_environment(target),
        **request.proxy_bypass,
    }
    settings = request.run_dir / "settings.json"
    settings_json = {
        "apiKeyHelper": "",
        "env": {**dict.fromkeys(_CONFLICTING_VARIABLES, ""), **environment},
    }
    text = json.dumps(settings_json, indent=2)
    command = (request.executable, "--settings", str(settings), *request.arguments)
    return LaunchPlan(command, environment, {settings: f"{text}\n"}, _CONFLICTING_VARIABLES)


def _build_window_environment(target: LaunchTarget) -> Mapping[str, str]:
    """It takes 200,000 for any model that it does not know, and waits for an error to compact."""
    window = target.context_length
    if window is None:
        return {}
    return {
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(window),
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(window),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(target.max_output_tokens),
    }
