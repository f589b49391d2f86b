"""The real Codex without a catalog, with Dovetail's, and with a profile.

A real server with a scripted model runs one command with 100 KB of output. The tests compare the
requests of Codex: how much of the output, which instructions, which tools, how much reasoning.
"""

import json
import os
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from client_sandbox import PROGRAMS
from recording_frontend import RecordingFrontend, front_of
from server_process import Running, dovetail, qwen_folder, served

pytestmark = pytest.mark.harness
MODEL = "openai/openai/gpt-5.5"  # with slashes: Codex alone does not know it
ALIAS = "short"
PROFILE = "gpt-5.5"
OUTPUT = "python3 -c \"print(('y' * 79 + chr(10)) * 1300)\""  # 104,000 characters
CALL = """<think>
I look at it all.
</think>

<tool_call>
<function=exec_command>
<parameter=cmd>
{cmd}
</parameter>
<parameter=max_output_tokens>
1000000
</parameter>
</function>
</tool_call>"""
PATCH = """<tool_call>
<function=apply_patch>
<parameter=input>
*** Begin Patch
*** Add File: greeting.txt
+grüße
*** End Patch
</parameter>
</function>
</tool_call>"""
IMAGE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEUlEQVR4nGP4z8AARGDiPwMAHfAD/aAzCYkAAAAASUVO"
    "RK5CYII="
)
END = "<think>\nSeen.\n</think>\n\nThat was long."


@dataclass(frozen=True)
class CodexSession:
    """The first and the last request of a Codex session with two calls."""

    first: Any
    last: Any
    output_text: str

    @property
    def output(self) -> int:
        """How many characters of the command's output were sent back."""
        outputs = [i["output"] for i in self.last["input"] if i["type"] == "function_call_output"]
        return len(outputs[0])

    @property
    def instructions(self) -> str:
        return str(self.first["input"][0]["content"][0]["text"])

    @property
    def tools(self) -> set[tuple[str, str]]:
        return {(tool["type"], tool.get("name", "")) for tool in self.first["tools"]}


@pytest.fixture(scope="module")
def codex() -> str:
    if not (PROGRAMS / "codex").exists():
        pytest.skip("the real codex is not at hand: make harnesses (it needs npm)")
    return str(PROGRAMS / "codex")


@pytest.fixture(scope="module")
def server(codex: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A reasoning model with a window of 200,000 tokens, under a name with slashes and an alias."""
    folder = tmp_path_factory.mktemp("catalog")
    model = qwen_folder(folder / "model")
    (model / "config.json").write_text('{"max_position_embeddings": 200000}')
    texts = (CALL.format(cmd=OUTPUT), PATCH, END)
    (folder / "script.yaml").write_text(json.dumps({"turns": [{"text": text} for text in texts]}))
    flags = ("--engine", "scripted", "--script", folder / "script.yaml")
    parsers = ("--tool-call-parser", "qwen3_coder", "--reasoning-parser", "qwen3")
    names = ("--served-model-name", MODEL, "--model-alias", f"{ALIAS}={MODEL}")
    with served(model, *flags, *parsers, *names, home=folder) as running:
        yield running


@pytest.fixture
def front(server: Running) -> Iterator[RecordingFrontend]:
    with front_of(server.url) as made:
        yield made


def session(
    front: RecordingFrontend,
    folder: Path,
    *arguments: str | Path,
    catalog: Path | None = None,
    model: str = MODEL,
    auth: bool = False,
) -> CodexSession:
    """Run a session. With `auth` a command creates the key; then Codex requests the list itself."""
    for name in ("home", "work"):
        (folder / name).mkdir(exist_ok=True)
    provider = ['name = "Lab"', f'base_url = "{front.url}/v1"', 'wire_api = "responses"']
    keyed = ["[model_providers.lab.auth]", 'command = "echo"', 'args = ["local"]']
    settings = [f'model = "{model}"', 'model_provider = "lab"']
    settings += [f'model_catalog_json = "{catalog}"'] if catalog else []
    settings += ["analytics.enabled = false", 'otel.metrics_exporter = "none"']
    settings += ["[model_providers.lab]", *provider, *(keyed if auth else ['env_key = "KEY"'])]
    (folder / "home" / "config.toml").write_text("\n".join(settings))
    command = [str(PROGRAMS / "codex"), "exec", "--skip-git-repo-check", *map(str, arguments)]
    home = str(folder / "home")
    done = subprocess.run(
        [*command, "--dangerously-bypass-approvals-and-sandbox", "--", "Look"],
        cwd=folder / "work",
        env={"PATH": os.environ["PATH"], "HOME": home, "CODEX_HOME": home, "KEY": "local"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    bodies = front.bodies("/v1/responses")
    return CodexSession(bodies[0], bodies[-1], done.stdout + done.stderr)


def written(server: Running, folder: Path, *flags: str) -> Path:
    """Return the catalog as the command writes it, with the real Codex on the path."""
    path = {"PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"}
    arguments = ("catalog", "codex", "--url", server.url, *flags)
    ended = dovetail(*arguments, home=folder, environment=path)
    assert ended.status == 0, ended.err
    (folder / "catalog.json").write_text(ended.out)
    return folder / "catalog.json"


def test_codex_without_a_catalog_uses_defaults(front: RecordingFrontend, tmp_path: Path) -> None:
    seen = session(front, tmp_path)
    assert "Model metadata for `openai/openai/gpt-5.5` not found" in seen.output_text
    assert 10_000 <= seen.output <= 10_500
    assert ("custom", "apply_patch") not in seen.tools
    assert "effort" not in seen.first["reasoning"]
    assert "text" not in seen.first


def test_catalog_entry_sets_what_codex_knows_of_the_model(
    server: Running, front: RecordingFrontend, tmp_path: Path
) -> None:
    path = written(server, tmp_path)
    seen = session(front, tmp_path, catalog=path)
    (own, _) = json.loads(path.read_text())["models"]
    assert "not found" not in seen.output_text
    assert 40_000 <= seen.output <= 40_500  # 10,000 tokens, estimated by Codex at four bytes each
    assert seen.instructions == own["base_instructions"]
    assert ("custom", "apply_patch") in seen.tools
    assert seen.first["reasoning"] == {"effort": "medium", "summary": "auto"}
    assert "text" not in seen.first  # no verbosity: the model does not support it
    assert "I look at it all." in seen.output_text  # reasoning is shown
    assert (tmp_path / "work" / "greeting.txt").read_text() == "grüße\n"


def test_alias_of_a_profile_uses_its_settings(
    server: Running, front: RecordingFrontend, tmp_path: Path
) -> None:
    path = written(server, tmp_path, "--codex-profile", PROFILE)
    seen = session(front, tmp_path, catalog=path)
    assert 40_000 <= seen.output <= 40_500
    assert "You are Codex" in seen.instructions
    assert len(seen.instructions) > 20_000
    assert ("custom", "apply_patch") in seen.tools
    assert ("tool_search", "") in seen.tools
    assert seen.first["reasoning"] == {"effort": "medium"}
    assert seen.first["text"] == {"verbosity": "low"}
    assert (tmp_path / "work" / "greeting.txt").read_text() == "grüße\n"


def test_image_is_omitted_for_a_text_only_model(
    server: Running, front: RecordingFrontend, tmp_path: Path
) -> None:
    """Without an entry Codex sends it, and the server has to reject the request."""
    image = tmp_path / "red.png"
    image.write_bytes(b64decode(IMAGE))
    seen = session(front, tmp_path, "-i", image, catalog=written(server, tmp_path))
    parts = seen.first["input"][-1]["content"]
    assert {part["type"] for part in parts} == {"input_text"}
    assert any("do not support image input" in part["text"] for part in parts)


def test_codex_fetches_the_catalog_by_itself(front: RecordingFrontend, tmp_path: Path) -> None:
    """It does so if a command creates its key. With a matching tag it requests it only at start."""
    seen = session(front, tmp_path, auth=True, model=ALIAS)
    assert "not found" not in seen.output_text
    assert seen.first["reasoning"]["effort"] == "medium"
    assert ("custom", "apply_patch") in seen.tools
    cache = json.loads((tmp_path / "home" / "models_cache.json").read_text())
    lists = [one for one in front.requests if one.path.startswith("/v1/models?client_version=")]
    assert [one["slug"] for one in cache["models"]] == [MODEL, ALIAS]
    assert {one.headers["etag"] for one in lists} == {cache["etag"]}
    responses = [one for one in front.requests if one.path == "/v1/responses"]
    assert {one.headers["x-models-etag"] for one in responses} == {cache["etag"]}
    first = front.requests.index(responses[0])
    assert not [one for one in front.requests[first:] if one.method == "GET"]


def test_codex_fetches_the_catalog_again_if_the_tag_changes(
    front: RecordingFrontend, tmp_path: Path
) -> None:
    front.more["x-models-etag"] = 'W/"another"'
    session(front, tmp_path, auth=True)
    responses = [at for at, one in enumerate(front.requests) if one.path == "/v1/responses"]
    assert [one for one in front.requests[responses[0] :] if one.path.startswith("/v1/models?")]


def test_unknown_profile_is_reported_with_the_known_ones(
    codex: str, server: Running, tmp_path: Path
) -> None:
    path = {"PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"}
    arguments = ("catalog", "codex", "--url", server.url, "--codex-profile", "gpt-0")
    ended = dovetail(*arguments, home=tmp_path, environment=path)
    assert (ended.status, ended.out) == (1, "")
    assert PROFILE in ended.err


def test_server_lists_its_models_with_a_profile(
    codex: str, server: Running, tmp_path: Path
) -> None:
    """The entries are the same whether the server or the command has the profile."""
    script = tmp_path / "script.txt"
    script.write_text("Hello.")
    model = qwen_folder(tmp_path / "model")
    (model / "config.json").write_text('{"max_position_embeddings": 200000}')
    flags = ("--engine", "scripted", "--script", script, "--codex-profile", PROFILE)
    path = {"PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"}
    with served(
        model, *flags, "--served-model-name", MODEL, home=tmp_path, environment=path
    ) as other:
        models = other.request("GET", "/v1/models?client_version=0.166.0").json["models"]
    assert (
        models
        == json.loads(written(server, tmp_path, "--codex-profile", PROFILE).read_text())["models"][
            :1
        ]
    )
