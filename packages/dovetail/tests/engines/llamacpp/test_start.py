"""How the embedded engine starts, fails to, and ends."""

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
    served = LlamaCppEngine(WEIGHTS, tokenizer, context_length=256, options=options)
    return served, request(array("i", tokenizer.encode("Once upon a time")), 200)


def test_port_asks_for_a_key_made_anew() -> None:
    served, _ = tcp_engine()

    async def life() -> Endpoint:
        await served.start()
        await served.start()  # already there
        assert (await served.health()).ready
        endpoint = served.endpoint
        assert endpoint is not None
        assert endpoint.host == "127.0.0.1"
        stranger = Endpoint(endpoint.host, endpoint.port)
        assert (await fetch(stranger, ClientRequest("POST", "/completion", b"{}")))[0] == 401
        await served.stop()
        return endpoint

    async def main() -> None:
        first, second = await life(), await life()
        assert first.headers != second.headers

    asyncio.run(main())


def test_killed_while_it_speaks() -> None:
    served, once = tcp_engine()

    async def main() -> None:
        await served.start()
        async with aclosing(iter_deltas(served, once)) as deltas:
            await anext(deltas)
            os.kill(served.pid or 0, signal.SIGKILL)
            with pytest.raises(EngineUnavailable, match="was killed"):
                async for _ in deltas:
                    pass
        health = await served.health()
        assert not health.ready
        assert "killed" in health.detail
        await served.stop()
        await served.start()
        assert (await collect(served, msgspec.structs.replace(once, max_tokens=1)))[-1].finish
        await served.stop()

    asyncio.run(main())


def test_stopped_while_it_speaks() -> None:
    served, once = tcp_engine()

    async def main() -> None:
        with pytest.raises(EngineUnavailable, match="not running"):
            await collect(served, once)
        assert not (await served.health()).ready
        await served.start()
        async with aclosing(iter_deltas(served, once)) as deltas:
            await anext(deltas)
            await served.stop()
            await served.stop()
            assert not alive(served.pid)
            with pytest.raises(EngineUnavailable):
                async for _ in deltas:
                    pass

    asyncio.run(main())


def test_socket_goes_with_the_engine() -> None:
    need_weights()
    served = engine(WEIGHTS, slots=1, threads=1)

    async def main() -> str:
        await served.start()
        assert served.endpoint is not None
        assert served.endpoint.socket is not None
        path = served.endpoint.socket
        await fetch(served.endpoint, ClientRequest("GET", "/health"))
        await served.stop()
        return path

    path = asyncio.run(main())
    assert not os.path.exists(os.path.dirname(path))


def test_given_up_start_leaves_no_process() -> None:
    need_weights()
    served = engine(WEIGHTS, slots=1, threads=1)

    async def main() -> None:
        start = asyncio.create_task(served.start())
        for _ in range(100_000):
            if served.pid is not None:
                break
            await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert not alive(served.pid)

    asyncio.run(main())


def test_files_that_cannot_be_served(tmp_path: Path) -> None:
    junk, cut = tmp_path / "junk.gguf", tmp_path / "cut.gguf"
    junk.write_bytes(b"hello" * 100)
    cases = [(tmp_path / "none.gguf", "no such file"), (junk, "is not a GGUF file")]
    if WEIGHTS.exists() and importlib.util.find_spec("xllamacpp"):
        with WEIGHTS.open("rb") as whole:
            cut.write_bytes(whole.read(20_000_000))
        cases.append((cut, "model is corrupted or incomplete"))
    for path, reason in cases:
        served = engine(path)
        with pytest.raises(EngineUnavailable, match=reason) as raised:
            asyncio.run(served.start())
        assert str(path) in raised.value.message
        assert not asyncio.run(served.health()).ready


def test_too_much_is_asked_for() -> None:
    need_weights()
    with pytest.raises(EngineUnavailable, match="n_seq_max must be <= 256"):
        asyncio.run(engine(WEIGHTS, slots=300).start())


def test_not_enough_memory() -> None:
    need_weights()
    greedy = LlamaCppEngine(WEIGHTS, BYTES, context_length=2**24)
    with pytest.raises(EngineUnavailable, match="not enough memory"):
        asyncio.run(greedy.start())


def test_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    need_weights()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineUnavailable, match=r"pip install 'dovetail\[llamacpp\]'"):
        asyncio.run(engine(WEIGHTS).start())


def test_start_takes_too_long() -> None:
    need_weights()
    with pytest.raises(EngineUnavailable, match=r"not ready in 0\.01 s"):
        asyncio.run(engine(WEIGHTS, start_timeout=0.01).start())


def test_folders_and_options(tmp_path: Path) -> None:
    with pytest.raises(EngineSetupError, match="needs a GGUF file"):
        create(EngineSetup(BYTES))
    with pytest.raises(EngineSetupError, match="a folder without one"):
        create(EngineSetup(BYTES, tmp_path))
    (tmp_path / "m.gguf").touch()
    with pytest.raises(EngineSetupError, match=r"such as m\.gguf"):
        create(EngineSetup(BYTES, tmp_path))
    with pytest.raises(EngineSetupError, match=r"options are wrong: .*slots"):
        create(EngineSetup(BYTES, tmp_path / "m.gguf", options={"slots": 0}))
