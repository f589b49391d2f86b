"""Settings of KV events that cannot work end the start with a message that names the remedy."""

from pathlib import Path

import pytest
from server_process import dovetail, qwen_folder

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
