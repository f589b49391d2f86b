"""A provider in the words that Pi and OpenClaw share."""

from typing import Any

from dovetail.launch.plan import LaunchRequest, LaunchTarget

PROVIDER_API_NAMES = {
    "chat": "openai-completions",
    "responses": "openai-responses",
    "messages": "anthropic-messages",
}


def provider_base_url(request: LaunchRequest) -> str:
    """Clients of Anthropic's API add /v1 themselves."""
    address = request.target.address
    return address if request.api == "messages" else f"{address}/v1"


def build_provider_model(target: LaunchTarget) -> dict[str, Any]:
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
        entry["maxTokens"] = target.max_output_tokens
    return entry
