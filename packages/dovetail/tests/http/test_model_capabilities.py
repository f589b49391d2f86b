"""`capabilities` of models in Anthropic's format: what has an effect on this server."""

from typing import Any

from http_fixture import NAME, run, serving

HEADERS: Any = {"anthropic_version": "2023-06-01"}
#: All that the types of the SDK declare.
KEYS = {
    *("batch", "citations", "code_execution", "context_management", "effort", "image_input"),
    *("pdf_input", "server_tools", "structured_outputs", "thinking"),
}


def supported(value: Any) -> Any:
    """Reduce capabilities to whether they are supported."""
    parts = {name: supported(one) for name, one in value.items() if name != "supported"}
    return (
        {"": value["supported"], **parts}
        if parts and "supported" in value
        else (parts or value["supported"])
    )


def test_capabilities_are_those_of_the_model_and_the_engine() -> None:
    async def scene() -> None:
        async with serving() as stage:
            reply = await stage.request("GET", f"/v1/models/{NAME}", **HEADERS)
            listed = await stage.request("GET", "/v1/models", **HEADERS)
            assert listed.json["data"][0]["capabilities"] == reply.json["capabilities"]
            found = supported(reply.json["capabilities"])
            assert set(found) == KEYS
            assert found["context_management"] == {
                "": True,
                "clear_thinking_20251015": True,
                "clear_tool_uses_20250919": True,
                "compact_20260112": True,
            }
            assert found["thinking"] == {
                "": True,
                "types": {
                    "adaptive": True,
                    "between_tools": False,
                    "disabled": True,
                    "enabled": True,
                },
            }
            assert (found["image_input"], found["pdf_input"], found["batch"]) == (
                False,
                True,
                False,
            )
            assert not any(found["server_tools"].values())
            constraints = stage.app.service.entries[0].engine.capabilities.constraints
            assert found["structured_outputs"] is bool(constraints)
            levels = {"low", "medium", "high", "xhigh", "max"}
            assert set(found["effort"]) == {"", *levels}
            types = found["thinking"]["types"]
            for kind, accepted in types.items():
                body = {
                    "model": NAME,
                    "max_tokens": 2000,
                    "messages": [{"role": "user", "content": "Hi."}],
                    "thinking": {"type": kind, "budget_tokens": 1024},
                }
                assert ((await stage.request("POST", "/v1/messages", body)).status == 200) is (
                    accepted
                )

    run(scene)
