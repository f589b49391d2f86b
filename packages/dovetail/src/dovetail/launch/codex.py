"""Codex: settings on its command line, its key in the environment, the catalog in a file."""

import json
from typing import Any

from dovetail.launch.plan import KEY_VARIABLE, PROVIDER, Order, Plan, Target

#: The Responses API over one connection for a whole session. HTTP is what Codex falls back to.
SOCKET = "websocket"


def plan(order: Order) -> Plan:
    """Settings stand before the user's arguments, where every subcommand of Codex reads them.

    They are stronger than the user's config.toml, which stays in use otherwise. A name of its own
    for the provider keeps Codex from asking for a login.
    """
    target = order.target
    provider: dict[str, str | bool] = {
        "name": "Dovetail",
        "base_url": f"{target.address}/v1",
        "wire_api": "responses",
        "env_key": KEY_VARIABLE,
    }
    if order.api == SOCKET:
        provider["supports_websockets"] = True
    told = ", ".join(f"{key}={json.dumps(value)}" for key, value in provider.items())
    settings = {
        "model": json.dumps(target.model),
        "model_provider": json.dumps(PROVIDER),
        f"model_providers.{PROVIDER}": f"{{{told}}}",
        "analytics.enabled": "false",  # it would send figures of this run to its maker
    }
    files = {}
    if target.catalog is not None:
        catalog = order.place / "catalog.json"
        files[catalog] = json.dumps(target.catalog, indent=1, ensure_ascii=False) + "\n"
        settings["model_catalog_json"] = json.dumps(str(catalog))
        settings |= _limits(target)
    flags = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    command = (order.executable, *flags, *order.arguments)
    return Plan(command, {KEY_VARIABLE: target.token}, files)


def _limits(target: Target) -> dict[str, str]:
    """Limits of its entry: those that a user's config.toml has for another model would win."""
    entries: list[dict[str, Any]] = (target.catalog or {}).get("models", [])
    own = next((one for one in entries if one.get("slug") == target.model), {})
    limits = {
        "model_context_window": own.get("context_window"),
        "model_auto_compact_token_limit": own.get("auto_compact_token_limit"),
    }
    return {name: str(limit) for name, limit in limits.items() if limit is not None}
