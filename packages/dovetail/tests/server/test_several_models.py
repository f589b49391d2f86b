"""Several models in one server, each with its engine; replicas; a remote engine; prefill ahead."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from collecting_sink import run_and_collect
from server_process import dovetail, qwen_folder, served

from dovetail.engines.engine import RemoteModel
from dovetail.engines.registry import EngineSetupError
from dovetail.engines.scripted import ScriptedEngine
from dovetail.pipeline.registry import TokenModel
from dovetail.routing.pool import ReplicaPool
from dovetail.server import engines as remote
from dovetail.server.build import build_service
from dovetail.settings.config import Config
from dovetail_model import Hints, Identity, Request, TextBlock, Turn

TWO = """
http-port = 0
store = "memory"

[[models]]
model = {model}
engine = "scripted"
script = {one}
served-model-name = "one"

[[models]]
model = {model}
engine = "scripted"
script = {two}
served-model-name = ["two", "deux"]
replicas = 2
context-length = 2000
"""


def two_models(folder: Path) -> Path:
    model = qwen_folder(folder / "model")
    scripts = {}
    for name in ("one", "two"):
        (folder / f"{name}.txt").write_text(f"I am {name}.")
        scripts[name] = json.dumps(str(folder / f"{name}.txt"))
    path = folder / "dovetail.toml"
    path.write_text(TWO.format(model=json.dumps(str(model)), **scripts))
    return path


def test_each_name_selects_its_model(tmp_path: Path) -> None:
    with served("--config", two_models(tmp_path)) as running:
        listed = running.request("GET", "/v1/models").json["data"]
        assert [(one["id"], one["max_model_len"]) for one in listed] == [
            ("one", 40960),
            ("two", 2000),
            ("deux", 2000),
        ]
        for name, expected in (("one", "I am one."), ("two", "I am two."), ("deux", "I am two.")):
            body = {"model": name, "messages": [{"role": "user", "content": "Who?"}]}
            reply = running.post("/v1/chat/completions", body)
            assert reply["choices"][0]["message"]["content"] == expected
        health = running.request("GET", "/health").json
        assert [one["ready"] for one in health["engines"]] == [True, True]
        assert "2 of 2 replicas" in health["engines"][1]["detail"]


def test_duplicate_model_name_is_rejected(tmp_path: Path) -> None:
    path = two_models(tmp_path)
    path.write_text(path.read_text().replace('"deux"', '"one"'))
    ended = dovetail("serve", "--config", path, home=tmp_path)
    assert ended.status == 1
    assert "two models have the name one" in ended.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--engine", "vllm"], "requires the package vllm"),
        (["--engine", "vllm", "--engine-url", "nowhere"], "--engine-url: expected an http://"),
        (["--engine", "vllm", "--engine-url", "http://127.0.0.1:9"], "is not available"),
        (
            ["--engine", "llamacpp", "--engine-url", "http://127.0.0.1:9"],
            "cannot be combined with the local engine",
        ),
        (["--engine", "scripted", "--engine-option", "speed"], "must be NAME=VALUE"),
    ],
)
def test_unservable_settings_are_reported_in_one_line(
    tmp_path: Path, arguments: list[str], expected: str
) -> None:
    remote = {"vllm", "--engine-url"} <= set(arguments)
    model = () if remote else (qwen_folder(tmp_path / "model"),)
    ended = dovetail("serve", *model, *arguments, home=tmp_path)
    assert ended.status == 1
    (line,) = [one for one in ended.err.splitlines() if "level=warning" not in one]
    assert expected in line


def config(folder: Path, script: Any) -> Config:
    (folder / "script.yaml").write_text(json.dumps(script))
    return Config(
        model=str(qwen_folder(folder / "model")),
        engine="scripted",
        script=folder / "script.yaml",
        served_model_name=("m",),
        data_dir=folder / "home",
        store="memory",
    )


def engine_of(entry: object) -> tuple[ReplicaPool, ScriptedEngine]:
    assert isinstance(entry, TokenModel)
    engine = entry.engine.replicas[0].engine
    assert isinstance(engine, ScriptedEngine)
    return entry.engine, engine


def test_next_prompt_is_prefilled_ahead_where_the_template_drops_reasoning(tmp_path: Path) -> None:
    """Qwen3 drops reasoning at a new user turn, so the tokens after it are not cached."""
    output = "<think>\n" + "Let me see. " * 20 + "\n</think>\n\n" + "It is a fine day. " * 10

    async def main() -> None:
        service = build_service(config(tmp_path, [{"text": output}]))
        await service.start()
        entry = service.find("m")
        pool, engine = engine_of(entry)
        turns: tuple[Turn, ...] = (Turn("user", (TextBlock("How is it?"),)),)
        request = Request("m", turns, hints=Hints(speculative_prefill=True))
        assert await run_and_collect(entry, request)
        while not pool.warmed_prompts:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)
        ahead = engine.requests[-1]
        assert ahead.max_tokens == 1
        text = entry.model.tokenizer.decode(ahead.prompt)  # type: ignore[union-attr]
        assert "Let me see" not in text
        assert text.rstrip().endswith("<|im_start|>user")
        assistant = Turn("assistant", (TextBlock("It is a fine day. " * 10),))
        turns = (*turns, assistant, Turn("user", (TextBlock("And tomorrow?"),)))
        await run_and_collect(entry, Request("m", turns))
        follows = engine.requests[-1].prompt
        assert follows[: len(ahead.prompt)] == ahead.prompt
        await service.stop()

    asyncio.run(main())


def test_next_prompt_is_prefilled_ahead_once_sessions_had_to_wait(tmp_path: Path) -> None:
    output = "<think>\n" + "Let me see. " * 20 + "\n</think>\n\n" + "It is a fine day. " * 10

    async def main() -> None:
        settings = replace(
            config(tmp_path, [{"text": output}]), session_scheduling="auto", kv_tokens=100
        )
        service = build_service(settings)
        await service.start()
        entry = service.find("m")
        pool, engine = engine_of(entry)
        turns = (Turn("user", (TextBlock("How is it?"),)),)
        await run_and_collect(entry, Request("m", turns))
        assert not pool.prefills_ahead  # it did not wait
        names = [Identity(session=name) for name in "abc"]
        sent = [Request("m", turns, identity=name) for name in names]
        await asyncio.gather(*(run_and_collect(entry, one) for one in sent))
        while not pool.warmed_prompts:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)
        assert [one.max_tokens == 1 for one in engine.requests] == [False] * 4 + [True]
        await service.stop()

    asyncio.run(main())


def test_no_prefill_ahead_without_a_benefit(tmp_path: Path) -> None:
    async def main() -> None:
        service = build_service(config(tmp_path, [{"text": "It is a fine day."}]))
        await service.start()
        entry = service.find("m")
        pool, engine = engine_of(entry)
        turns = (Turn("user", (TextBlock("How is it?"),)),)
        for hints in (Hints(), Hints(speculative_prefill=True)):
            await run_and_collect(entry, Request("m", turns, hints=hints))
            while not pool._warmer.is_idle:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0)
        assert len(engine.requests) == 2
        assert pool.warmed_prompts == 0
        await service.stop()

    asyncio.run(main())


def test_upstream_with_many_models_gets_the_client_model_name(tmp_path: Path) -> None:
    """The upstream has two models, and the settings of the server name none."""
    with (
        served("--config", two_models(tmp_path)) as behind,
        served("--engine", "openai", "--engine-url", behind.url) as all_of_them,
        served("deux", "--engine", "openai", "--engine-url", behind.url) as chosen,
        served(
            *("two", "--engine", "openai", "--engine-url", behind.url),
            *("--served-model-name", "one"),  # the name of the other model there
        ) as renamed,
    ):
        for front, name, expected in (
            (all_of_them, "one", "I am one."),
            (all_of_them, "two", "I am two."),
            (all_of_them, "claude-something", "I am one."),
            (chosen, "deux", "I am two."),
            (renamed, "one", "I am two."),
        ):
            body = {"model": name, "messages": [{"role": "user", "content": "Who?"}]}
            reply = front.post("/v1/chat/completions", body)
            assert reply["choices"][0]["message"]["content"] == expected
        listed = chosen.request("GET", "/v1/models").json["data"]
        assert [one["id"] for one in listed] == ["deux"]


@pytest.mark.long
def test_engine_key_is_stripped_and_never_shown(tmp_path: Path) -> None:
    secret = "sk-very-secret"
    with served(
        "--config", two_models(tmp_path), environment={"DOVETAIL_API_KEY": secret}
    ) as behind:
        flags = ["--engine", "openai", "--engine-url", behind.url, "--engine-option", "api=chat"]
        key = {"DOVETAIL_ENGINE_API_KEY": f"{secret}\n"}
        with served(*flags, environment=key) as front:
            body = {"model": "one", "messages": [{"role": "user", "content": "Who?"}]}
            assert front.request("POST", "/v1/chat/completions", body).status == 200
            assert secret not in front.log.read_text()
        home = tmp_path / "elsewhere"
        home.mkdir()
        bad = dovetail("serve", *flags, home=home, environment=_key("sk-é-secret"))
        assert "--engine-api-key" in bad.err
        assert "secret" not in bad.err
        wrong = dovetail("serve", *flags, home=home, environment=_key("wrong-secret"))
        assert wrong.status == 1
        assert "secret" not in wrong.err
        assert behind.request("GET", "/health").json == {"status": "ready"}
        health = behind.request("GET", "/health", x_api_key=secret).json["engines"][0]
        assert set(health) == {"engine", "ready", "detail", "facts"}


def _key(value: str) -> dict[str, str]:
    return {"DOVETAIL_ENGINE_API_KEY": value}


@pytest.mark.parametrize(
    ("model", "name", "names"),
    [(None, "base", ("base", "b")), ("b", "b", ("base", "b")), ("sql", "sql", ("sql",))],
)
def test_remote_model_is_selected_by_any_of_its_names(
    monkeypatch: pytest.MonkeyPatch, model: str | None, name: str, names: tuple[str, ...]
) -> None:
    async def discover(engine: str, endpoint: object) -> RemoteModel:
        return RemoteModel("base", ("base", "b"), "/models/base", adapters=("sql",))

    monkeypatch.setattr(remote, "discover_model", discover)
    found = remote.discover_remote_engine(
        Config(model, engine="vllm", engine_url=("http://gpu:8000/v1/",))
    )
    assert found is not None
    assert (found.model.name, found.model.names, found.model.root) == (name, names, "/models/base")
    assert str(found.endpoints[0]) == "http://gpu:8000"


def test_unknown_remote_model_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def discover(engine: str, endpoint: object) -> RemoteModel:
        return RemoteModel("base", ("base",), adapters=("sql",))

    monkeypatch.setattr(remote, "discover_model", discover)
    config = Config("other", engine="vllm", engine_url=("http://gpu:8000",), tokenizer="t")
    with pytest.raises(EngineSetupError, match="serves base, sql, not other"):
        remote.discover_remote_engine(config)
