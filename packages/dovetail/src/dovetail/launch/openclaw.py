"""Launch plan of OpenClaw: a separate configuration file and state folder."""

import json

from dovetail.launch.plan import (
    API_KEY_VARIABLE,
    PROVIDER_API_NAMES,
    PROVIDER_NAME,
    LaunchPlan,
    LaunchRequest,
    build_provider_model,
    provider_base_url,
)

#: Chat in this terminal, without a gateway.
_DEFAULT_ARGUMENTS = ("chat",)


def build_plan(request: LaunchRequest) -> LaunchPlan:
    """Build the plan. The user's own OpenClaw configuration, channels and sessions are not used."""
    target = request.target
    config = {
        "agents": {"defaults": {"model": {"primary": f"{PROVIDER_NAME}/{target.model}"}}},
        "models": {
            "mode": "merge",
            "providers": {
                PROVIDER_NAME: {
                    "baseUrl": provider_base_url(request),
                    "apiKey": f"${{{API_KEY_VARIABLE}}}",
                    "api": PROVIDER_API_NAMES[request.api],
                    "models": [build_provider_model(target)],
                }
            },
        },
    }
    file = request.state_dir / "openclaw.json"
    environment = {
        "OPENCLAW_CONFIG_PATH": str(file),
        "OPENCLAW_STATE_DIR": str(request.state_dir / "state"),
        API_KEY_VARIABLE: target.auth_token,
    }
    command = (request.executable, *(request.arguments or _DEFAULT_ARGUMENTS))
    return LaunchPlan(command, environment, {file: json.dumps(config, indent=2) + "\n"})
