"""The rules of docs/adding-an-engine.md that can be checked on any engine, and the registry."""

import asyncio
import re
import sys
from array import array
from collections.abc import Callable
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from completions_fixture import EngineWithServer
from scripted_fixture import END, TOKENIZER, engine, ids
from sglang_fixture import EngineWithFakeSglang

from dovetail.engines.engine import EngineRequest, TokenDelta, TokenEngine
from dovetail.engines.registry import (
    ENGINE_EXTRAS,
    ENGINES,
    EngineSetup,
    EngineSetupError,
    create_engine,
)
from dovetail.engines.scripted import ScriptedEngine
from dovetail.engines.token_stream import iter_deltas
from dovetail_model import EngineError

DOCS = Path(__file__).resolve().parents[4] / "docs"
BLOCK = r"^```{}\n(.*?)^```"
LONG = "a" * 1000


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(BLOCK.format(language), text, re.M | re.S)


def mirror() -> TokenEngine:
    """Return the engine that the page builds."""
    names: dict[str, Any] = {"__name__": "mirror"}
    exec(compile(blocks("adding-an-engine.md", "python")[0], "adding-an-engine.md", "exec"), names)
    created: TokenEngine = names["create"](EngineSetup(TOKENIZER))
    return created


def scripted() -> TokenEngine:
    return engine(f"[{{text: '{LONG}'}}]")


def sglang() -> TokenEngine:
    """Return the adapter with a fake server."""
    return EngineWithFakeSglang()


def vllm() -> TokenEngine:
    """Return the adapter with the scripted engine's server, which implements vLLM's protocol."""
    return EngineWithServer("vllm", f"[{{text: '{LONG}'}}]")


ENGINE_FACTORIES = pytest.mark.parametrize("create", [mirror, scripted, sglang, vllm])
EngineFactory = Callable[[], TokenEngine]


def make_request(max_tokens: int = 5000, prompt: str = "<|end|>" + LONG) -> EngineRequest:
    stop_ids = frozenset({END})
    return EngineRequest("r", array("I", ids(prompt)), max_tokens=max_tokens, stop_ids=stop_ids)


def run(create: EngineFactory, request: EngineRequest) -> list[TokenDelta]:
    async def main() -> list[TokenDelta]:
        running = create()
        await running.start()
        assert (await running.health()).ready
        try:
            return [delta async for delta in iter_deltas(running, request)]
        finally:
            await running.stop()

    return asyncio.run(main())


@ENGINE_FACTORIES
def test_only_the_last_delta_has_a_finish(create: EngineFactory) -> None:
    deltas = run(create, make_request())
    assert [delta.finish for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish == "stop"
    assert deltas[-1].ids[-1] == END


@ENGINE_FACTORIES
@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_max_tokens_is_enforced(create: EngineFactory, limit: int) -> None:
    deltas = run(create, make_request(limit))
    assert sum(len(delta.ids) for delta in deltas) == limit
    assert deltas[-1].finish == "length"


@ENGINE_FACTORIES
def test_cached_tokens_are_reported_once(create: EngineFactory) -> None:
    reported = [delta.cached for delta in run(create, make_request())]
    assert sum(cached is not None for cached in reported) <= 1


@ENGINE_FACTORIES
def test_prompt_is_not_modified(create: EngineFactory) -> None:
    request = make_request()
    before = array("I", request.prompt)
    run(create, request)
    assert request.prompt == before


@ENGINE_FACTORIES
def test_engine_serves_requests_after_a_cancelled_one(create: EngineFactory) -> None:
    async def main() -> None:
        running = create()
        await running.start()
        async with aclosing(iter_deltas(running, make_request())) as first:
            await anext(first)
        again = [delta async for delta in iter_deltas(running, make_request())]
        assert again[-1].finish == "stop"
        await running.stop()

    asyncio.run(main())


@ENGINE_FACTORIES
def test_stop_fails_running_generations(create: EngineFactory) -> None:
    async def main() -> None:
        running = create()
        await running.start()
        async with aclosing(iter_deltas(running, make_request())) as deltas:
            await anext(deltas)
            await running.stop()
            with pytest.raises(EngineError):
                async for _ in deltas:
                    pass
        assert not (await running.health()).ready

    asyncio.run(main())


@pytest.mark.parametrize("path", ENGINES.values())
def test_every_engine_has_a_module(path: str) -> None:
    assert find_spec(path.partition(":")[0]) is not None


def setup(**options: Any) -> EngineSetup:
    return EngineSetup(TOKENIZER, context_length=100, stop_ids=(END,), options=options)


def test_scripted_engine_is_created_by_name(tmp_path: Path) -> None:
    script = tmp_path / "answer.txt"
    script.write_text("hello")
    created = create_engine("scripted", setup(script=script, decode_rate="50", chunk="4"))
    assert isinstance(created, ScriptedEngine)
    assert (created.options.decode_rate, created.options.chunk) == (50.0, 4)
    assert created.capabilities.context_length == 100


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("skripted", {}, "unknown engine 'skripted': use dynamo, llamacpp, openai"),
        ("scripted", {}, "requires a script: set --script FILE"),
        ("scripted", {"script": "/no/such"}, "/no/such: cannot be read"),
        ("scripted", {"script": __file__, "speed": 1}, "unknown field `speed`"),
        ("scripted", {"script": __file__, "chunk": "x"}, r"\$.chunk"),
        ("no_such_package.mirror:create", {}, "module no_such_package.mirror of the engine"),
        ("dovetail.engines.engine:create", {}, "has no 'create'"),
    ],
)
def test_setup_errors_are_explained(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineSetupError, match=message):
        create_engine(name, setup(**options))


def test_missing_package_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needy_engine.py").write_text("import package_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    name = "needy_engine:create"
    with pytest.raises(EngineSetupError, match="package_nobody_has: install package_nobody_has"):
        create_engine(name, setup())
    monkeypatch.setitem(ENGINE_EXTRAS, name, "extra")
    with pytest.raises(EngineSetupError, match=r"pip install 'dovetail\[extra\]'"):
        create_engine(name, setup())
    assert "needy_engine" not in sys.modules


def test_third_party_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = blocks("adding-an-engine.md", "python")[0]
    (tmp_path / "somebodys_mirror.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert create_engine("somebodys_mirror:create", setup()).name == "mirror"
