"""Start, start failures and stop of the embedded engine."""

import asyncio
import importlib.util
import os
import signal
from array import array
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
from llamacpp_environment import WEIGHTS, collect, load_tokenizer, need_weights, request

from dovetail.engines.engine import EngineRequest
from dovetail.engines.llamacpp import LlamaCppEngine, LlamaCppOptions, create
from dovetail.engines.registry import EngineSetup, EngineSetupError, create_engine
from dovetail.engines.token_stream import iter_deltas
from dovetail.net.http_client import ClientRequest, Endpoint, fetch
from dovetail_model import EngineUnavailable
from dovetail_tokenizers import ByteTokenizer

BYTES = ByteTokenizer()


def engine(path: Path, **options: int | bool | float) -> LlamaCppEngine:
    made = create_engine("llamacpp", EngineSetup(BYTES, path, context_length=256, options=options))
    assert isinstance(made, LlamaCppEngine)
    return made


def alive(pid: int | None) -> bool:
    assert pid is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def tcp_engine() -> tuple[LlamaCppEngine, EngineRequest]:
    need_weights()
    tokenizer = load_tokenizer()
    options = LlamaCppOptions(slots=1, threads=1, tcp=True)
    started = LlamaCppEngine(WEIGHTS, tokenizer, context_length=256, options=options)
    return started, request(array("i", tokenizer.encode("Once upon a time")), 200)


def test_port_requires_a_new_key_at_each_start() -> None:
    started, _ = tcp_engine()

    async def life() -> Endpoint:
        await started.start()
        await started.start()  # already running
        assert (await started.health()).ready
        endpoint = started.endpoint
        assert endpoint is not None
        assert endpoint.host == "127.0.0.1"
        other = Endpoint(endpoint.host, endpoint.port)
        assert (await fetch(other, ClientRequest("POST", "/completion", b"{}")))[0] == 401
        await started.stop()
        return endpoint

    async def main() -> None:
        first, second = await life(), await life()
        assert first.headers != second.headers

    asyncio.run(main())


def test_killed_during_a_stream() -> None:
    started, endless_request = tcp_engine()

    async def main() -> None:
        await started.start()
        async with aclosing(iter_deltas(started, endless_request)) as deltas:
            await anext(deltas)
            os.kill(started.pid or 0, signal.SIGKILL)
            with pytest.raises(EngineUnavailable, match="was killed"):
                async for _ in deltas:
                    pass
        health = await started.health()
        assert not health.ready
        assert "killed" in health.detail
        await started.stop()
        await started.start()
        assert (await collect(started, msgspec.structs.replace(endless_request, max_tokens=1)))[
            -1
        ].finish
        await started.stop()

    asyncio.run(main())


def test_stopped_during_a_stream() -> None:
    started, endless_request = tcp_engine()

    async def main() -> None:
        with pytest.raises(EngineUnavailable, match="not running"):
            await collect(started, endless_request)
        assert not (await started.health()).ready
        await started.start()
        async with aclosing(iter_deltas(started, endless_request)) as deltas:
            await anext(deltas)
            await started.stop()
            await started.stop()
            assert not alive(started.pid)
            with pytest.raises(EngineUnavailable):
                async for _ in deltas:
                    pass

    asyncio.run(main())


def test_socket_is_removed_with_the_engine() -> None:
    need_weights()
    started = engine(WEIGHTS, slots=1, threads=1)

    async def main() -> str:
        await started.start()
        assert started.endpoint is not None
        assert started.endpoint.socket is not None
        path = started.endpoint.socket
        await fetch(started.endpoint, ClientRequest("GET", "/health"))
        await started.stop()
        return path

    path = asyncio.run(main())
    assert not os.path.exists(os.path.dirname(path))


def test_cancelled_start_leaves_no_process() -> None:
    need_weights()
    started = engine(WEIGHTS, slots=1, threads=1)

    async def main() -> None:
        start = asyncio.create_task(started.start())
        for _ in range(100_000):
            if started.pid is not None:
                break
            await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert not alive(started.pid)

    asyncio.run(main())


def test_files_that_cannot_be_served(tmp_path: Path) -> None:
    junk, truncated = tmp_path / "junk.gguf", tmp_path / "truncated.gguf"
    junk.write_bytes(b"hello" * 100)
    cases = [(tmp_path / "none.gguf", "no such file"), (junk, "is not a GGUF file")]
    if WEIGHTS.exists() and importlib.util.find_spec("xllamacpp"):
        with WEIGHTS.open("rb") as whole:
            truncated.write_bytes(whole.read(20_000_000))
        cases.append((truncated, "model is corrupted or incomplete"))
    for path, reason in cases:
        started = engine(path)
        with pytest.raises(EngineUnavailable, match=reason) as raised:
            asyncio.run(started.start())
        assert str(path) in raised.value.message
        assert not asyncio.run(started.health()).ready


def test_too_many_slots() -> None:
    need_weights()
    with pytest.raises(EngineUnavailable, match="n_seq_max must be <= 256"):
        asyncio.run(engine(WEIGHTS, slots=300).start())


def test_not_enough_memory() -> None:
    need_weights()
    greedy = LlamaCppEngine(WEIGHTS, BYTES, context_length=2**24)
    with pytest.raises(EngineUnavailable, match="not enough memory"):
        asyncio.run(greedy.start())


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    need_weights()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineUnavailable, match=r"pip install 'dovetail\[llamacpp\]'"):
        asyncio.run(engine(WEIGHTS).start())


def test_start_timeout() -> None:
    need_weights()
    with pytest.raises(EngineUnavailable, match=r"not ready within 0\.01 s"):
        asyncio.run(engine(WEIGHTS, start_timeout=0.01).start())


def test_folders_and_options(tmp_path: Path) -> None:
    with pytest.raises(EngineSetupError, match="requires a GGUF file"):
        create(EngineSetup(BYTES))
    with pytest.raises(EngineSetupError, match=r"the folder .* has none"):
        create(EngineSetup(BYTES, tmp_path))
    (tmp_path / "m.gguf").touch()
    with pytest.raises(EngineSetupError, match=r"such as m\.gguf"):
        create(EngineSetup(BYTES, tmp_path))
    with pytest.raises(EngineSetupError, match=r"options are invalid: .*slots"):
        create(EngineSetup(BYTES, tmp_path / "m.gguf", options={"slots": 0}))
    with pytest.raises(EngineSetupError, match=r"the adapter nowhere\.gguf is not a file"):
        create(EngineSetup(BYTES, tmp_path / "m.gguf", options={"adapter": "nowhere.gguf"}))
