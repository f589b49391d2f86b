"""A server whose store files are damaged or deleted, or whose data folder is not private."""

from pathlib import Path

from server_process import NAME, Running, dovetail, qwen_folder, served

from dovetail.server.build import LEDGER_FILE, RESPONSES_FILE

GARBAGE = b"not a database at all" * 1000


def flags(folder: Path) -> tuple[str | Path, ...]:
    model, script = folder / "model", folder / "script.txt"
    if not model.exists():
        qwen_folder(model)
        script.write_text("Fine.")
    return (
        *(model, "--engine", "scripted", "--script", script, "--served-model-name", NAME),
        *("--data-dir", folder / "data"),
    )


def create_response(running: Running) -> str:
    return str(running.post("/v1/responses", {"model": NAME, "input": "Hi"})["id"])


def test_server_moves_a_damaged_ledger_aside_and_starts(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / LEDGER_FILE).write_bytes(GARBAGE)
    with served(*flags(tmp_path)) as running:
        create_response(running)
        log = running.log.read_text()
    assert "event=store_file_damaged store=ledger" in log
    (moved,) = data.glob(f"{LEDGER_FILE}.damaged-*")
    assert moved.read_bytes() == GARBAGE


def test_server_does_not_start_with_damaged_responses(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    file = data / RESPONSES_FILE
    file.write_bytes(GARBAGE)
    ended = dovetail("serve", *flags(tmp_path), "--http-port", "0", home=tmp_path)
    assert ended.status != 0
    message = " ".join(ended.err.split())
    assert f"{file} is damaged" in message
    assert "Restore it from a backup, or move it" in message
    assert "Traceback" not in ended.err
    assert file.read_bytes() == GARBAGE


def test_server_continues_after_its_files_were_deleted(tmp_path: Path) -> None:
    with served(*flags(tmp_path)) as running:
        create_response(running)
        for file in (tmp_path / "data").glob("*.sqlite*"):
            if not file.name.endswith(".gap"):
                file.unlink()
        second = create_response(running)
        assert running.request("GET", f"/v1/responses/{second}").status == 200
        running.stop()  # the ledger is written in the background
        log = running.log.read_text()
    assert log.count("event=store_file_deleted") == 3  # turns, responses, usage
    with served(*flags(tmp_path)) as running:
        assert running.request("GET", f"/v1/responses/{second}").status == 200


def test_data_folder_that_is_not_private_is_reported(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    data.chmod(0o755)
    with served(*flags(tmp_path)) as running:
        log = running.log.read_text()
    assert f"the data folder {data} has mode 0755" in log
