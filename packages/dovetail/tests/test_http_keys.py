"""Keys without a server: files, headers, and the warning."""

from hashlib import sha256
from pathlib import Path

import pytest

from dovetail.http.auth import KeyFileError, Keys, candidates, exposure, read_keys
from dovetail_model import Unauthenticated

HASH = sha256(b"key").hexdigest()


def test_a_file_of_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\n\nteam-a:{HASH}  # since May\nb/c:{HASH.upper()}\n")
    assert [tenant for tenant, _ in read_keys(file)] == ["team-a", "b/c"]
    assert Keys(hashed=read_keys(file)[:1]).tenant({"x-api-key": "key"}) == "team-a"


@pytest.mark.parametrize(
    "text", ["", "# none\n", f"{HASH}\n", f":{HASH}\n", "team:abc\n", f"two words:{HASH}\n"]
)
def test_a_file_that_is_no_file_of_keys(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(KeyFileError) as refused:
        read_keys(file)
    assert HASH not in str(refused.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError):
        read_keys(tmp_path / "none")


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, []),
        ({"x-api-key": "a"}, ["a"]),
        ({"authorization": "Bearer b"}, ["b"]),
        ({"authorization": "bearer  b "}, ["b"]),
        ({"authorization": "Basic b"}, []),
        ({"x-api-key": "a", "authorization": "Bearer b"}, ["a", "b"]),
        ({"x-api-key": " ", "authorization": "Bearer "}, []),
    ],
)
def test_where_keys_are_sent(headers: dict[str, str], found: list[str]) -> None:
    assert candidates(headers) == found


def test_without_keys_everybody_may_ask() -> None:
    assert Keys().tenant({}) == ""
    assert not Keys([""])


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "né"}, {"authorization": "Bearer ke"}])
def test_with_keys_not_everybody_may(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated):
        Keys(["key"]).tenant(headers)


@pytest.mark.parametrize(
    ("host", "warned"),
    [
        ("127.0.0.1", False),
        ("127.8.0.1", False),
        ("::1", False),
        ("[::1]", False),
        ("localhost", False),
        ("0.0.0.0", True),
        ("::", True),
        ("example.org", True),
    ],
)
def test_the_warning(host: str, warned: bool) -> None:
    assert (exposure(host, Keys()) is not None) == warned
    assert exposure(host, Keys(["key"])) is None
