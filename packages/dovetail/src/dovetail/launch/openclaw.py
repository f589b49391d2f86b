"""OpenClaw: a configuration and a state folder of its own, since it has one file for everything."""

import json

from dovetail.launch.plan import KEY_VARIABLE, PROVIDER, Order, Plan
from dovetail.launch.providers import API_NAMES, base_url, model_entry

#: What is run when nothing is said: it talks in this terminal, without a gateway.
_USUAL = ("chat",)


def plan(order: Order) -> Plan:
    """The user's own OpenClaw, its channels and its sessions are not touched."""
    target = order.target
    config = {
        "agents": {"defaults": {"model": {"primary": f"{PROVIDER}/{target.model}"}}},
        "models": {
            "mode": "merge",
            "providers": {
                PROVIDER: {
                    "baseUrl": base_url(order),
                    "apiKey": f"${{{KEY_VARIABLE}}}",
                    "api": API_NAMES[order.api],
                    "models": [model_entry(target)],
                }
            },
        },
    }
    file = order.folder / "openclaw.json"
    environment = {
        "OPENCLAW_CONFIG_PATH": str(file),
        "OPENCLAW_STATE_DIR": str(order.folder / "state"),
        KEY_VARIABLE: target.token,
    }
    command = (order.executable, *(order.arguments or _USUAL))
    return Plan(command, environment, {file: json.dumps(config, indent=2) + "\n"})
