"""Launch plan of Codex: settings on the command line and the model catalog in a file."""

import json
from typing import Any

from dovetail.launch.plan import (
    API_KEY_VARIABLE,
    PROVIDER_NAME,
    LaunchPlan,
    LaunchRequest,
    LaunchTarget,
)

#: The Responses API over one connection per session. Codex falls back to HTTP.
WEBSOCKET_API = "websocket"


def build_plan(request: LaunchRequest) -> LaunchPlan:
    """Build the plan. Settings precede the user's arguments, where every subcommand reads them.

    They override the user's config.toml, which stays in use otherwise. With a custom provider name,
    Codex does not require a login.
    """
    target = request.target
    provider: dict[str, str | bool] = {
        "name": "Dovetail",
        "base_url": f"{target.address}/v1",
        "wire_api": "responses",
        "env_key": API_KEY_VARIABLE,
    }
    if request.api == WEBSOCKET_API:
        provider["supports_websockets"] = True
    provider_toml = ", ".join(f"{key}={json.dumps(value)}" for key, value in provider.items())
    settings = {
        "model": json.dumps(target.model),
        "model_provider": json.dumps(PROVIDER_NAME),
        f"model_providers.{PROVIDER_NAME}": f"{{{provider_toml}}}",
        "analytics.enabled": "false",  # or Codex would send usage statistics to OpenAI
    }
    files = {}
    if target.catalog is not None:
        catalog = request.run_dir / "catalog.json"
        models = [_add_small_model(entry, target) for entry in target.catalog["models"]]
        text = json.dumps({**target.catalog, "models": models}, indent=1, ensure_ascii=False)
        files[catalog] = f"{text}\n"
        settings["model_catalog_json"] = json.dumps(str(catalog))
        settings |= _build_limit_settings(target)
    flags = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    command = (request.executable, *flags, *request.arguments)
    return LaunchPlan(command, {API_KEY_VARIABLE: target.auth_token}, files)


def _add_small_model(entry: dict[str, Any], target: LaunchTarget) -> dict[str, Any]:
    """Return an entry with the model that reviews actions before they are approved."""
    if target.small_model is None:
        return entry
    return {**entry, "auto_review_model_override": target.small_model}


def _build_limit_settings(target: LaunchTarget) -> dict[str, str]:
    """Return the limits of the model. Limits in the user's config.toml are for another model."""
    entries: list[dict[str, Any]] = (target.catalog or {}).get("models", [])
    own = next((one for one in entries if one.get("slug") == target.model), {})
    limits = {
        "model_context_window": own.get("context_window"),
        "model_auto_compact_token_limit": own.get("auto_compact_token_limit"),
    }
    return {name: str(limit) for name, limit in limits.items() if limit is not None}
