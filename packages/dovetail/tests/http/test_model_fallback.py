"""`fallback`: another model serves requests while no replica of the requested one is available."""

from dataclasses import replace
from typing import Any

import pytest
from http_fixture import NAME, run, service, serving

from dovetail.pipeline.registry import ModelRegistry, TokenModel


def _registry() -> tuple[ModelRegistry, list[TokenModel]]:
    """Two models of one engine: the first falls back to the second."""
    found, _ = service(count=2)
    first, second = (one for one in found.entries if isinstance(one, TokenModel))
    first = replace(first, fallback=(second.name,))
    return ModelRegistry([first, second]), [first, second]


BODY: dict[str, Any] = {
    "model": NAME,
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Hello there."}],
}


def test_fallback_is_used_between_turns_and_reported() -> None:
    async def scene() -> None:
        registry, (first, second) = _registry()
        async with serving(registry=registry) as stage:
            usual = await stage.request("POST", "/v1/messages", BODY)
            assert usual.status == 200
            assert "model_fallback" not in usual.headers.get("x-dovetail-diagnostics", "")
            first.engine.replicas[0].is_available = False
            other = await stage.request("POST", "/v1/messages", BODY)
            assert other.status == 200
            assert "model_fallback" in other.headers["x-dovetail-diagnostics"]
            metrics = (await stage.request("GET", "/metrics")).body.decode()
            labels = f'{{fallback="{second.name}",model="{NAME}"}}'
            assert f"dovetail_model_fallbacks_total{labels} 1.0" in metrics
            first.engine.replicas[0].is_available = True
            again = await stage.request("POST", "/v1/messages", BODY)
            assert "model_fallback" not in again.headers.get("x-dovetail-diagnostics", "")

    run(scene)


def test_without_an_available_fallback_the_model_itself_is_used() -> None:
    registry, entries = _registry()
    for entry in entries:
        entry.engine.replicas[0].is_available = False
    assert registry.find_available(NAME) is entries[0]
    assert not registry.fallbacks


@pytest.mark.parametrize("name", ["unknown", NAME])
def test_fallback_must_be_another_model(name: str) -> None:
    _, (first, second) = _registry()
    with pytest.raises(ValueError, match="must be another served model"):
        ModelRegistry([replace(first, fallback=(name,)), second])
