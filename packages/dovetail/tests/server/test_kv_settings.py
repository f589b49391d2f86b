"""Settings of KV events that cannot work end the start with a message that names the remedy."""

from pathlib import Path

import pytest
from server_process import dovetail, qwen_folder

from dovetail.engines.registry import EngineSetupError
from dovetail.routing.kv_service import MissingKvExtra
from dovetail.server import engines
from dovetail.settings.config import Config

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kv-events", "tcp://*:5557"), "--kv-events requires --engine vllm or sglang"),
        (("--kv-events-replay", "tcp://*:5557"), "--kv-events-replay requires --kv-events"),
    ],
)
def test_invalid_settings(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    script = tmp_path / "script.json"
    script.write_text("[]")
    model = qwen_folder(tmp_path / "model")
    ended = dovetail(
        "serve", model, "--engine", "scripted", "--script", script, *arguments, home=tmp_path
    )
    assert ended.status != 0
    assert message in ended.err.replace("\n", " ")


def test_unsupported_auto_is_reported_before_a_missing_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise MissingKvExtra("install the extra")

    monkeypatch.setattr(engines, "create_kv_service", fail)
    config = Config(engine="vllm", engine_url=("http://gpu1:8000",), kv_events=("auto",))
    with pytest.raises(EngineSetupError, match="auto requires --engine sglang"):
        engines._create_index(config, "vllm")
