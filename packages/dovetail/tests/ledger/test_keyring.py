"""Keys from files and folders, and derived keys."""

import base64
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.ledger.keyring import (
    Keyring,
    KeyringError,
    SealKey,
    load_or_create_keyring,
    read_keyring,
)

ONE, TWO = bytes(range(32)), bytes(range(223, 255))


def _file(folder: Path, text: str) -> Path:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "line",
    [
        ONE.hex(),
        ONE.hex().upper(),
        base64.b64encode(ONE).decode(),
        base64.urlsafe_b64encode(ONE).decode().rstrip("="),
        f"  {ONE.hex()}  # made in May",
        f"# the old one is below\n\n{ONE.hex()}\r\n",
    ],
)
def test_keys_are_read_in_hex_and_base64(tmp_path: Path, line: str) -> None:
    keyring = read_keyring(_file(tmp_path, line))
    assert keyring.sealing.is_same(SealKey(ONE))
    assert keyring.warnings == ()


def test_keys_are_read_in_base64url(tmp_path: Path) -> None:
    key = b"\xff\xfe" * 16
    text = base64.urlsafe_b64encode(key).decode()
    assert "_" in text
    assert read_keyring(_file(tmp_path, text)).sealing.is_same(SealKey(key))


def test_the_first_key_seals_and_all_keys_open(tmp_path: Path) -> None:
    keyring = read_keyring(_file(tmp_path, f"{TWO.hex()}\n{ONE.hex()}\n{TWO.hex()}\n"))
    assert keyring.sealing.is_same(SealKey(TWO))
    for secret in (ONE, TWO):
        found = keyring.find(SealKey(secret).id)
        assert found is not None
        assert found.is_same(SealKey(secret))
    assert keyring.find(b"none") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "contains no key"),
        ("# nothing\n\n", "contains no key"),
        ("\nsecret password\n", "line 2: a key must be in hex or base64"),
        ("ab" * 31, "line 1: "),
        (base64.b64encode(bytes(33)).decode(), "got 33"),
        ("é" * 32, "a key must be in hex or base64"),
    ],
)
def test_errors_name_an_invalid_file_but_not_its_content(
    tmp_path: Path, text: str, message: str
) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(KeyringError, match=message) as refused:
        read_keyring(path)
    assert str(path) in refused.value.message
    assert not text.strip() or text.strip() not in refused.value.message


@pytest.mark.parametrize("kind", ["missing", "folder", "binary"])
def test_unreadable_files_are_rejected(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "keys"
    if kind == "folder":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"\xff\x00\xfe")
    with pytest.raises(KeyringError, match="cannot read the key file"):
        read_keyring(path)


def test_empty_keyrings_and_short_keys_are_rejected() -> None:
    with pytest.raises(KeyringError):
        Keyring([])
    with pytest.raises(KeyringError, match="32 bytes"):
        Keyring([b"short"])


def test_files_accessible_to_other_users_give_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = _file(tmp_path, ONE.hex())
    path.chmod(0o640)
    (warning,) = read_keyring(path).warnings
    assert str(path) in warning
    assert "640" in warning
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_key_is_created_once_per_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "dovetail"
    made = load_or_create_keyring(folder)
    again = load_or_create_keyring(folder)
    assert made.sealing.is_same(again.sealing)
    assert made.warnings == again.warnings == ()
    (file,) = folder.iterdir()
    assert file.name == "seal.key"
    assert file.stat().st_mode & 0o777 == 0o600
    assert not made.sealing.is_same(load_or_create_keyring(tmp_path / "other").sealing)


def test_errors_name_a_folder_that_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyringError, match=r"seal\.key"):
        load_or_create_keyring(tmp_path / "file" / "data")


_MAKER = """
import sys
from pathlib import Path
from dovetail.ledger.keyring import load_or_create_keyring
sys.stdin.readline()
print(load_or_create_keyring(Path(sys.argv[1])).sealing.id.hex())
"""


def test_processes_that_start_together_use_the_same_key(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": ":".join(part for part in sys.path if part)}
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", _MAKER, str(tmp_path / "data")],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.write("go\n")
        maker.stdin.flush()
    ids = {maker.communicate(timeout=60)[0].strip() for maker in makers}
    assert ids == {load_or_create_keyring(tmp_path / "data").sealing.id.hex()}
    assert len(list((tmp_path / "data").iterdir())) == 1


def test_chain_keys_differ_per_tenant_and_survive_rotation() -> None:
    old, rotated, other = Keyring([ONE]), Keyring([TWO, ONE]), Keyring([TWO])
    assert old.chain_key("a") == rotated.chain_key("a")
    assert len({keyring.chain_key(t) for keyring in (old, other) for t in ("", "a", "b")}) == 6
    assert len(old.chain_key("a")) == 32
    assert old.chain_key("a") not in (old.sealing.sealing, ONE)


def test_repr_does_not_reveal_the_key() -> None:
    shown = repr(SealKey(ONE)) + repr(Keyring([ONE]))
    assert ONE.hex() not in shown
    assert repr(ONE)[2:-1] not in shown
