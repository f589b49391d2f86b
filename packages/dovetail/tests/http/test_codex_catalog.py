"""The catalog for Codex: its entries, the profiles that they can use, and how it is served."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from http_fixture import ALIAS, NAME, THINKING_TEMPLATE, StageEngine, run, service, serving
from hypothesis import given
from hypothesis import strategies as st
from real_models import PAIRS, model, require
from server_process import dovetail, qwen_folder, served

from dovetail.engines.engine import EngineCapabilities, RemoteModel
from dovetail.engines.registry import UpstreamSetup, create_upstream
from dovetail.http.codex_catalog import (
    CodexCatalog,
    CodexProfileError,
    apply_profile,
    build_catalog,
    build_entry,
    default_level,
    load_instructions,
    read_profile,
    supported_levels,
)
from dovetail.http.options import HttpOptions, build_http_options
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.ledger.seal import Sealer
from dovetail.net.http_client import Endpoint
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import ModelRegistry, TokenModel, UpstreamModel
from dovetail.pipeline.rendering import PromptSettings
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.prompt.volatile_text import NormalizationOptions
from dovetail.routing.pool import ReplicaPool
from dovetail.settings.sources import load_config

LIST = "/v1/models?client_version=0.166.0"
SLASHED = "openai/openai/gpt-5.5"

#: Fields that Codex 0.166 requires in an entry, and their types.
REQUIRED = {
    "slug": str,
    "display_name": str,
    "supported_reasoning_levels": list,
    "shell_type": str,
    "visibility": str,
    "supported_in_api": bool,
    "priority": int,
    "support_verbosity": bool,
    "truncation_policy": dict,
    "experimental_supported_tools": list,
    "base_instructions": str,
}
PROFILE = {
    **{name: kind() for name, kind in REQUIRED.items()},
    "slug": "gpt-0",
    "truncation_policy": {"mode": "tokens", "limit": 8_000},
    "context_window": 272_000,
    "auto_compact_token_limit": 250_000,
    "base_instructions": "You are somebody else.",
    "support_verbosity": True,
    "apply_patch_tool_type": "freeform",
    "input_modalities": ["text", "image"],
    "upgrade": {"model": "gpt-1"},
    "service_tiers": [{"id": "priority"}],
    "supports_search_tool": True,
    "use_responses_lite": True,
    "something_new": 7,
}


class Unstarted(StageEngine):
    """An engine that has reported only its context length."""

    def __init__(self, window: int | None) -> None:
        self.capabilities = EngineCapabilities(context_length=window)


def offered(
    name: str, settings: PromptSettings | None = None, window: int | None = None
) -> TokenModel:
    """A model with a real template. Entries are available before an engine is started."""
    pair = next(pair for pair in PAIRS if pair.name == name)
    require(pair)
    found = replace(model(pair), context_length=None)
    preparer = ChatPreparer(found, Ledger(MemoryLedgerStore()), Keyring([bytes(32)]), settings)
    return TokenModel((name,), found, preparer, ReplicaPool([Unstarted(window)]))


small = cache(lambda: offered("Qwen2.5"))
OFF = PromptSettings(default_thinking="disabled")
CASES: list[tuple[str, PromptSettings | None, tuple[str, ...], str | None]] = [
    ("Qwen3", None, ("none", "medium"), "medium"),
    ("Qwen3", OFF, ("none", "medium"), "none"),
    (
        "Qwen3",
        PromptSettings(template_switches={"enable_thinking": False}),
        ("none", "medium"),
        "none",
    ),
    ("Qwen3-Coder", None, (), None),
    ("Kimi-K2-Thinking", None, (), None),
    ("Ministral-3", None, (), None),
    ("DeepSeek-V3.1", None, ("none", "medium"), "medium"),
    ("gpt-oss", None, ("low", "medium", "high"), "medium"),
    (
        "gpt-oss",
        PromptSettings(template_switches={"reasoning_effort": "high"}),
        ("low", "medium", "high"),
        "high",
    ),
]


@pytest.mark.parametrize(("name", "settings", "taken", "usual"), CASES)
def test_levels_are_those_that_the_template_supports(
    name: str, settings: PromptSettings | None, taken: tuple[str, ...], usual: str | None
) -> None:
    one = offered(name, settings)
    assert supported_levels(one) == taken
    assert default_level(one, taken) == usual


@pytest.mark.parametrize("name", ["Qwen3", "Qwen3-Coder", "Kimi-K2-Thinking", "gpt-oss"])
def test_entry_describes_the_model(name: str) -> None:
    one = offered(name)
    made = build_entry(name, one)
    assert {key: type(made[key]) for key in REQUIRED} == REQUIRED
    thinks = one.model.reasoning_parser is not None
    assert made["default_reasoning_summary"] == ("auto" if thinks else "none")
    assert made["supports_reasoning_summary_parameter"] is thinks
    assert made["supports_parallel_tool_calls"] is one.model.profile.many_calls
    assert made["input_modalities"] == ["text"]
    assert made["apply_patch_tool_type"] == "freeform"
    assert made["support_verbosity"] is False
    assert "*** Begin Patch" in made["base_instructions"]
    assert 1_000 < len(made["base_instructions"]) < 2_500


def test_upstream_entry_has_only_known_fields() -> None:
    """It may reason and it accepts images; the reasoning levels are unknown."""
    engine = create_upstream("openai", UpstreamSetup(Endpoint(), RemoteModel("m", ("m",))))
    sealer = Sealer(Keyring([bytes(32)]))
    made = build_entry(
        "m",
        UpstreamModel(
            ("m",), engine, PromptNormalizer(NormalizationOptions()), sealer, max_context=65_536
        ),
    )
    assert {key: type(made[key]) for key in REQUIRED} == REQUIRED
    assert made["context_window"] == 65_536
    assert made["input_modalities"] == ["text", "image"]
    assert (made["default_reasoning_level"], made["supported_reasoning_levels"]) == (None, [])
    assert made["default_reasoning_summary"] == "auto"


@given(window=st.integers(1_000, 2_000_000))
def test_limits_reserve_space_in_every_context_window(window: int) -> None:
    made = build_entry("m", replace(small(), max_context=window))
    assert made["context_window"] == made["max_context_window"] == window
    left = made["context_window"] - made["auto_compact_token_limit"]
    assert min(window // 4, 20_000) <= left < window // 2
    assert 1_000 <= made["truncation_policy"]["limit"] <= 10_000


@pytest.mark.parametrize(
    ("window", "compacts", "output"),
    [
        (8_192, 5_462, 1_000),
        (32_768, 21_846, 2_048),
        (131_072, 111_072, 8_192),
        (262_144, 242_144, 10_000),
    ],
)
def test_limits_grow_with_the_context_window(window: int, compacts: int, output: int) -> None:
    made = build_entry("m", offered("Qwen2.5", window=window))
    assert made["auto_compact_token_limit"] == compacts
    assert made["truncation_policy"] == {"mode": "tokens", "limit": output}


def test_all_names_except_patterns_have_an_entry() -> None:
    offers, _ = service(count=2)
    made = build_catalog(offers.iter_entries())["models"]
    assert [one["slug"] for one in made] == [NAME, "second-name", "model-1", ALIAS]
    assert [one["priority"] for one in made] == [1, 2, 3, 4]


def test_alias_has_the_profiles_tools_and_the_models_limits() -> None:
    offers, _ = service()
    own = build_entry(NAME, offers.entries[0])
    made = apply_profile(own, PROFILE)
    own_fields = ("slug", "display_name", "context_window", "auto_compact_token_limit")
    assert [made[key] for key in own_fields] == [own[key] for key in own_fields]
    assert made["input_modalities"] == ["text"]
    profile_fields = (
        "base_instructions",
        "support_verbosity",
        "apply_patch_tool_type",
        "something_new",
    )
    assert [made[key] for key in profile_fields] == [PROFILE[key] for key in profile_fields]
    # Fields that only the profile's own service has: offers, tiers, formats of its API.
    assert (made["upgrade"], made["service_tiers"]) == (None, [])
    assert (made["supports_search_tool"], made["use_responses_lite"]) == (True, False)


@pytest.mark.parametrize(
    ("theirs", "window", "given_to_tools"),
    [
        ({"mode": "tokens", "limit": 10_000}, 262_144, {"mode": "tokens", "limit": 10_000}),
        ({"mode": "tokens", "limit": 10_000}, 32_768, {"mode": "tokens", "limit": 2_048}),
        ({"mode": "bytes", "limit": 10_000}, 262_144, {"mode": "bytes", "limit": 10_000}),
        ({"mode": "bytes", "limit": 10_000}, 32_768, {"mode": "tokens", "limit": 2_048}),
        ({"mode": "lines", "limit": 10}, 32_768, {"mode": "tokens", "limit": 2_048}),
        ({"mode": "tokens"}, 32_768, {"mode": "tokens", "limit": 2_048}),
        (None, 32_768, {"mode": "tokens", "limit": 2_048}),
    ],
)
def test_alias_has_the_smaller_budget(
    theirs: Mapping[str, Any] | None, window: int, given_to_tools: Mapping[str, Any]
) -> None:
    own = build_entry("m", offered("Qwen2.5", window=window))
    assert apply_profile(own, {**PROFILE, "truncation_policy": theirs})["truncation_policy"] == (
        given_to_tools
    )


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Install a program named `codex` that runs this script, as the only one on the path."""
    program = folder / "codex"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_profile_is_read_from_the_installed_codex(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = json.dumps({"models": [PROFILE, {**PROFILE, "slug": "gpt-1"}]})
    arguments = '[ "$*" = "debug models --bundled" ] || exit 3'
    installed(tmp_path, monkeypatch, f"{arguments}\necho WARNING >&2\necho '{output}'")
    assert read_profile("gpt-1")["slug"] == "gpt-1"
    with pytest.raises(
        CodexProfileError, match="no profile 'gpt-2'; available profiles: gpt-0, gpt-1"
    ):
        read_profile("gpt-2")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo one >&2; echo 'unknown command' >&2; exit 2", "outdated: unknown command"),
        ("echo 'error: no models' >&2; echo Usage >&2; exit 2", "outdated: error: no models"),
        ("exit 1", "no error output"),
        ("echo soup", "printed no model catalog"),
        ("echo '[]'", "printed no model catalog"),
        ("printf '\\377\\376'", "printed no model catalog"),
        ("echo '{\"models\": [{}]}'", "printed no model catalog"),
    ],
)
def test_codex_without_output_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: str
) -> None:
    installed(tmp_path, monkeypatch, script)
    with pytest.raises(CodexProfileError, match=expected):
        read_profile("gpt-0")


def test_missing_codex_is_reported_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CodexProfileError, match=r"not installed.* npm install -g @openai/codex"):
        read_profile("gpt-0")


def test_etag_depends_only_on_the_entries() -> None:
    """Replicas share it. A context length that an engine reports and a profile change it."""
    (one, engine), (other, _) = service(), service()
    first = CodexCatalog(one)
    before = first.current()
    assert CodexCatalog(other).current() == before
    assert first.current() is before
    profiled = ModelRegistry([replace(one.entries[0], codex_profile="gpt-0")])
    with_profile = CodexCatalog(profiled, {"gpt-0": PROFILE}).current()
    assert with_profile.etag != CodexCatalog(profiled).current().etag
    engine.capabilities = EngineCapabilities(context_length=2048)
    assert first.current().etag != before.etag
    assert first.current().models[0]["context_window"] == 2048


def test_each_model_has_its_own_profile() -> None:
    entry = service()[0].entries[0]
    first, second = (replace(entry, codex_profile=slug) for slug in ("gpt-0", "gpt-1"))
    profiles = {"gpt-0": PROFILE, "gpt-1": {**PROFILE, "base_instructions": "Be brief."}}
    named = [("a", first), ("b", second), ("c", entry)]
    made = build_catalog(named, profiles)["models"]
    assert [one["slug"] for one in made] == ["a", "b", "c"]
    assert [one["base_instructions"] for one in made] == [
        PROFILE["base_instructions"],
        "Be brief.",
        load_instructions(),
    ]


def test_profiles_in_the_settings_of_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [{"slug": slug} for slug in ("gpt-0", "gpt-1")]
    installed(tmp_path, monkeypatch, f"echo '{json.dumps({'models': models})}'")
    file = tmp_path / "dovetail.toml"
    file.write_text('[[models]]\nmodel = "a"\ncodex-profile = "gpt-1"\n[[models]]\nmodel = "b"\n')
    config = load_config({"codex_profile": "gpt-0"}, {}, file).config
    assert sorted(build_http_options(config).codex_profiles) == ["gpt-0", "gpt-1"]
    assert sorted(build_http_options(replace(config, codex_profile=None)).codex_profiles) == [
        "gpt-1"
    ]


def test_codex_gets_both_lists_and_other_clients_their_own() -> None:
    async def scene() -> None:
        async with serving(template=THINKING_TEMPLATE) as stage:
            reply = await stage.request("GET", LIST)
            names = [one["id"] for one in reply.json["data"]]
            assert [one["slug"] for one in reply.json["models"]] == names
            assert names == [NAME, "second-name", ALIAS]
            assert reply.headers["etag"] == reply.headers["x-models-etag"]
            plain = await stage.request("GET", "/v1/models")
            assert "models" not in plain.json
            assert plain.json["data"] == reply.json["data"]
            other = await stage.request("GET", LIST, anthropic_version="2023-06-01")
            assert "models" not in other.json

    run(scene)


def test_known_list_is_not_sent_again() -> None:
    async def scene() -> None:
        async with serving() as stage:
            etag = (await stage.request("GET", LIST)).headers["etag"]
            strong = etag.removeprefix("w/")  # the fixture reads header names in lower case
            for known in (strong, f"W/{strong}", f'"other", {strong}', "*"):
                reply = await stage.request("GET", LIST, if_none_match=known)
                assert (reply.status, reply.body) == (304, b"")
                assert reply.headers["etag"] == etag
            for other in ('"other"', strong.strip('"')):
                assert (await stage.request("GET", LIST, if_none_match=other)).status == 200
            assert (await stage.request("HEAD", LIST)).headers["etag"] == etag

    run(scene)


def test_every_response_has_the_etag_of_the_catalog() -> None:
    async def scene() -> None:
        made, _ = service()
        profiled = ModelRegistry([replace(made.entries[0], codex_profile="gpt-0")])
        options = HttpOptions(codex_profiles={"gpt-0": PROFILE})
        async with serving(options, registry=profiled) as stage:
            etag = (await stage.request("GET", LIST)).headers["etag"]
            body = {"model": NAME, "input": "Hello"}
            for more in ({}, {"stream": True}, {"model": "nobody"}, {"input": "x" * 9000}):
                reply = await stage.request("POST", "/v1/responses", {**body, **more})
                assert reply.headers["x-models-etag"] == etag
            chat = {"model": NAME, "messages": [{"role": "user", "content": "Hello"}]}
            reply = await stage.request("POST", "/v1/chat/completions", chat)
            assert "x-models-etag" not in reply.headers

    run(scene)


def test_slashed_names_resolve_everywhere() -> None:
    async def scene() -> None:
        made, _ = service()
        offers = ModelRegistry(made.entries, {SLASHED: NAME})
        async with serving(registry=offers) as stage:
            for path in (SLASHED, SLASHED.replace("/", "%2F")):
                assert (await stage.request("GET", f"/v1/models/{path}")).json["id"] == SLASHED
            listed = (await stage.request("GET", LIST)).json
            assert listed["models"][-1]["slug"] == listed["data"][-1]["id"] == SLASHED
            reply = await stage.request("POST", "/v1/responses", {"model": SLASHED, "input": "Hi"})
            assert (reply.status, reply.json["model"]) == (200, SLASHED)

    run(scene)


@pytest.mark.long
def test_command_prints_the_catalog_of_a_server(tmp_path: Path) -> None:
    model_folder, script = qwen_folder(tmp_path / "model"), tmp_path / "script.txt"
    script.write_text("Hello.")
    flags = ("--engine", "scripted", "--script", script, "--served-model-name", SLASHED)
    alias = ("--model-alias", f"short={SLASHED}")
    arguments = (model_folder, *flags, *alias)
    before = dovetail("catalog", "codex", *arguments, home=tmp_path)
    assert before.status == 0, before.err
    made = json.loads(before.out)["models"]
    assert [one["slug"] for one in made] == [SLASHED, "short"]
    with served(*arguments, "--api-key", "k", home=tmp_path) as running:
        command = ("catalog", "codex", "--url", running.url)
        assert json.loads(dovetail(*command, "--api-key", "k", home=tmp_path).out)["models"] == made
        refused = dovetail(*command, home=tmp_path)
        assert (refused.status, refused.out) == (1, "")
        assert "requires an API key" in refused.err


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (("claude",), 2, "only for codex"),
        (("codex", "--url", "http://127.0.0.1:9"), 1, "cannot reach a server"),
        (("codex", "/nowhere"), 1, "model '/nowhere' not found"),
        (("codex", "--codex-profile", "gpt-0"), 1, "npm install -g @openai/codex"),
    ],
)
def test_command_reports_errors(
    tmp_path: Path, arguments: tuple[str, ...], status: int, expected: str
) -> None:
    without_codex = {"PATH": str(tmp_path)}
    ended = dovetail("catalog", *arguments, home=tmp_path, environment=without_codex)
    assert (ended.status, ended.out) == (status, "")
    assert expected in ended.err


def test_server_does_not_start_without_its_profile(tmp_path: Path) -> None:
    model_folder = qwen_folder(tmp_path / "model")
    flags = ("--engine", "scripted", "--codex-profile", "gpt-0")
    without_codex = {"PATH": str(tmp_path)}
    ended = dovetail("serve", model_folder, *flags, home=tmp_path, environment=without_codex)
    assert ended.status == 1
    assert ended.err.startswith("dovetail serve: codex is not installed")
