"""A provider in the words that Pi and OpenClaw share."""

from typing import Any

from dovetail.launch.plan import Order, Target

API_NAMES = {
    "chat": "openai-completions",
    "responses": "openai-responses",
    "messages": "anthropic-messages",
}


def base_url(order: Order) -> str:
    """Clients of Anthropic's API add /v1 themselves."""
    address = order.target.address
    return address if order.api == "messages" else f"{address}/v1"


def model_entry(target: Target) -> dict[str, Any]:
    """The model and its limits. It costs nothing that they could count."""
    entry: dict[str, Any] = {
        "id": target.model,
        "name": target.model,
        "reasoning": True,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    if target.context_length is not None:
        entry["contextWindow"] = target.context_length
        entry["maxTokens"] = target.longest_answer
    return entry
