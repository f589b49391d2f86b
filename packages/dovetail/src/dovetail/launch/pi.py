"""Pi: an extension that makes our provider known, beside the user's own settings."""

import json

from dovetail.launch.plan import KEY_VARIABLE, PROVIDER, Order, Plan
from dovetail.launch.providers import API_NAMES, base_url, model_entry


def plan(order: Order) -> Plan:
    """An extension is read beside the user's folder, where settings and sessions stay.

    A models.json would have to be in that folder, or in another that has neither.
    """
    target = order.target
    provider = {
        "name": "Dovetail",
        "baseUrl": base_url(order),
        "apiKey": KEY_VARIABLE,
        "api": API_NAMES[order.api],
        "models": [model_entry(target)],
    }
    extension = order.place / "dovetail.js"
    text = (
        "export default function (pi) {\n"
        f"  pi.registerProvider({json.dumps(PROVIDER)}, {json.dumps(provider, indent=2)});\n"
        "}\n"
    )
    flags = ("--extension", str(extension), "--provider", PROVIDER, "--model", target.model)
    command = (order.executable, *flags, *order.arguments)
    return Plan(command, {KEY_VARIABLE: target.token}, {extension: text})
