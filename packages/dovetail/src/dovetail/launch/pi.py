"""Launch plan of Pi: an extension that registers our provider."""

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


def build_plan(request: LaunchRequest) -> LaunchPlan:
    """Build the plan. The extension is loaded in addition to the user's folder.

    A models.json would have to be written to the user's folder, or to a new folder without the
    user's settings.
    """
    target = request.target
    provider = {
        "name": "Dovetail",
        "baseUrl": provider_base_url(request),
        "apiKey": API_KEY_VARIABLE,
        "api": PROVIDER_API_NAMES[request.api],
        "models": [build_provider_model(target)],
    }
    extension = request.run_dir / "dovetail.js"
    text = (
        "export default function (pi) {\n"
        f"  pi.registerProvider({json.dumps(PROVIDER_NAME)}, {json.dumps(provider, indent=2)});\n"
        "}\n"
    )
    flags = ("--extension", str(extension), "--provider", PROVIDER_NAME, "--model", target.model)
    command = (request.executable, *flags, *request.arguments)
    return LaunchPlan(command, {API_KEY_VARIABLE: target.auth_token}, {extension: text})
