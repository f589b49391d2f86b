"""Launch plan of Claude Code: environment variables, repeated in a settings file for the run."""

import json
from collections.abc import Mapping

from dovetail.launch.plan import LaunchPlan, LaunchRequest, LaunchTarget

#: Variables that override or conflict with the address and key of the plan.
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
#: Variables for the models of conversations: main, subagents, model menu.
_MODEL_VARIABLES = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_DEFAULT_FABLE_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
    "CLAUDE_CODE_WORKFLOW_SUBAGENT_MODEL",
)
#: Variables for requests outside conversations: titles, summaries, the checks of permission modes.
_SMALL_MODEL_VARIABLES = (
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "CLAUDE_CODE_AUTO_MODE_MODEL",
    "CLAUDE_CODE_BG_CLASSIFIER_MODEL",
)


def build_plan(request: LaunchRequest) -> LaunchPlan:
    """Build the plan. The user's own settings and sessions stay in use.

    Variables in the user's settings.json override the environment, and many users configure a
    company gateway, its token and a proxy there. Settings on the command line override those, so
    requests go directly to our server and without that token.
    """
    target = request.target
    environment = {
        "ANTHROPIC_BASE_URL": target.address,
        # A bearer token is used as is. An API key has to be approved in a dialogue first.
        "ANTHROPIC_AUTH_TOKEN": target.auth_token,
        **dict.fromkeys(_MODEL_VARIABLES, target.model),
        **dict.fromkeys(_SMALL_MODEL_VARIABLES, target.side_model),
        "ANTHROPIC_CUSTOM_MODEL_OPTION": target.model,
        "ANTHROPIC_CUSTOM_MODEL_OPTION_NAME": target.model,
        "ANTHROPIC_CUSTOM_MODEL_OPTION_DESCRIPTION": f"served by Dovetail at {target.address}",
        "CLAUDE_CODE_DISABLE_1M_CONTEXT": "1",  # or its default is the model with 1M context
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
    """Return variables with the context limits.

    Claude Code assumes 200,000 tokens for unknown models (since 2.1.325: 1,000,000) and would
    compact only after an error.
    """
    window = target.context_length
    if window is None:
        return {}
    return {
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(window),
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(window),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(target.max_output_tokens),
    }
