"""API keys without a server: files, headers, rotation, and the warning."""

import hmac
import logging
import os
import time
from hashlib import sha256
from pathlib import Path

import pytest

from dovetail.access import auth
from dovetail.access.auth import ApiKeys, Caller, exposure_warning, extract_keys
from dovetail.access.key_file import (
    MAX_KEYS,
    ApiKey,
    Budgets,
    KeyFileError,
    read_keys,
    writable_key_file_warning,
)
from dovetail.access.limits import RateLimits
from dovetail_model import Unauthenticated


def hashed(key: str) -> str:
    return sha256(key.encode()).hexdigest()


HASH = hashed("key")


def sent(key: str) -> dict[str, str]:
    return {"x-api-key": key}


def test_key_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\n\nteam-a:{HASH}  # since May\nb/c:{hashed('other').upper()}\n")
    assert [key.tenant for key in read_keys(file)] == ["team-a", "b/c"]
    keys = ApiKeys(file=file)
    assert keys.authenticate(sent("key")).tenant == "team-a"
    assert keys.authenticate(sent("other")).tenant == "b/c"


def test_options_of_a_line_and_defaults_of_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(
        f"\ufeffa:{hashed('1')} requests=60 tokens=none admin\r\n"
        f"a:{hashed('2')}\tconcurrent=8  expires=2027-01-31\n"
        f"b:{hashed('3')} expires=2027-01-31T12:00:00+02:00"
    )
    one, two, three = read_keys(file, RateLimits(5, 500, 3))
    assert (one.limits, one.admin, one.expires) == (RateLimits(60, None, 3), True, None)
    assert (two.limits, two.admin) == (RateLimits(5, 500, 8), False)
    assert two.expires == 1_801_440_000.0  # the end of that day
    assert three.expires == 1_801_389_600.0


def test_budgets_of_keys_and_tenants(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    other = sha256(b"other").hexdigest()
    file.write_text(
        "team:* tokens-per-month=500 cost-per-month=9.5\n"
        f"team:{HASH} name=ci tokens-per-day=none tokens-per-month=7\n"
        f"solo:{other}\n"
    )
    default = Budgets(tokens_per_day=10)
    named, plain = read_keys(file, budgets=default)
    assert (named.usage_name, plain.usage_name) == ("ci", other[:12])
    assert named.budgets == Budgets(tokens_per_month=7)
    assert named.tenant_budgets == Budgets(None, 500, 9.5)
    assert (plain.budgets, plain.tenant_budgets) == (default, Budgets())
    assert ApiKeys(file=file).have_budgets
    assert not ApiKeys(["key"]).have_budgets
    assert ApiKeys(budgets=default).authenticate({}).budgets == default


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no key"),
        ("# none\n", "no key"),
        (f"{HASH}\n", "line 1"),
        (f":{HASH}\n", "line 1"),
        ("\nteam:abc\n", "line 2"),
        (f"two words:{HASH}\n", "line 1"),
        (f"team:{HASH} requests=0\n", "positive number"),
        (f"team:{HASH} tokens=1e9\n", "positive number"),
        (f"team:{HASH} tokens=\n", "positive number"),
        (f"team:{HASH} requests=1 requests=2\n", "more than once"),
        (f"team:{HASH} expires=soon\n", "a date"),
        (f"team:{HASH} expires=9999-12-31\n", "year"),
        (f"team:{HASH} expires=2027-02-30\n", "a date"),
        (f"team:{HASH} admin=yes\n", "after the hash"),
        (f"team:{HASH} secret-that-was-meant-as-a-key\n", "after the hash"),
        (f"a:{HASH}\nb:{HASH.upper()}\n", "duplicate of the key in line 1"),
        (f"team:{HASH} tokens-per-day=0\n", "positive number"),
        (f"team:{HASH} cost-per-month=-1\n", "a number such as"),
        (f"team:{HASH} cost-per-month=1e3\n", "a number such as"),
        (f"team:{HASH} name=\n", "1 to 128 characters"),
        (f"team:{HASH}\nteam:* tokens=5\n", "line 2: .* only budgets"),
        (f"team:{HASH}\nother:* tokens-per-day=5\n", "line 2: the tenant has no key"),
        (f"team:{HASH}\nteam:* tokens-per-day=5\nteam:* tokens-per-day=6\n", "tenant in line 2"),
        (":* tokens-per-day=5\n", "line 1"),
        ("team:* tokens-per-day=5\n", "no key"),
        ("team:\udcff", "UTF-8"),
        ("".join(f"t:{at:064x}\n" for at in range(MAX_KEYS + 1)), "more than"),
        ("#" * (5 << 20), "MiB"),
    ],
)
def test_invalid_key_files_are_rejected(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(KeyFileError, match=expected) as refused:
        read_keys(file)
    assert str(file) in str(refused.value)
    assert HASH not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_key_file_that_others_can_write_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    assert writable_key_file_warning(None) is None
    assert writable_key_file_warning(file) is None
    file.touch()
    for mode, warned in ((0o600, False), (0o644, False), (0o660, True), (0o666, True)):
        file.chmod(mode)
        warning = writable_key_file_warning(file)
        assert (warning is not None) == warned
        assert warning is None or (f"{mode:04o}" in warning and f"chmod go-w {file}" in warning)


def test_missing_key_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="No such file"):
        ApiKeys(file=tmp_path / "none")


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
def test_keys_are_extracted_from_headers(headers: dict[str, str], found: list[str]) -> None:
    assert extract_keys(headers) == found


def test_without_keys_all_callers_have_access_and_share_the_limits() -> None:
    caller = ApiKeys(limits=RateLimits(requests=5)).authenticate({})
    assert (caller.tenant, caller.limits, caller.admin) == ("", RateLimits(requests=5), True)
    assert not ApiKeys([""])


def test_key_of_the_command_line_is_an_admin_key() -> None:
    caller = ApiKeys(["key"], limits=RateLimits(tokens=9)).authenticate(sent("key"))
    assert (caller.tenant, caller.limits, caller.admin) == ("", RateLimits(tokens=9), True)


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "né"}, {"authorization": "Bearer ke"}])
def test_unknown_keys_are_rejected(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated):
        ApiKeys(["key"]).authenticate(headers)


def test_key_expires_at_the_end_of_its_day() -> None:
    now = [99.0]
    old = ApiKey("a", bytes.fromhex(hashed("old")), expires=100.0)
    keys = ApiKeys(hashed=[old, ApiKey("a", bytes.fromhex(HASH))], clock=lambda: now[0])
    caller = keys.authenticate(sent("old"))
    assert keys.revalidate(caller) == caller
    now[0] = 100.0
    with pytest.raises(Unauthenticated, match="expired"):
        keys.authenticate(sent("old"))
    with pytest.raises(Unauthenticated, match="expired"):
        keys.revalidate(caller)
    both = {"x-api-key": "old", "authorization": "Bearer key"}
    assert keys.authenticate(both).tenant == "a"


class Watched:
    """A key file whose changes are detected immediately, not after `CHECK_INTERVAL_SECONDS`."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.elapsed_seconds = 0.0
        self.write(f"a:{HASH} requests=7")
        self.keys = ApiKeys(file=file, clock=lambda: time.time() + self.elapsed_seconds)
        self.keys.check_interval_seconds = 0.0

    def write(self, text: str) -> None:
        """Replace the file atomically, as an operator should."""
        new = self.file.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.file)

    def knows(self, key: str) -> bool:
        try:
            self.keys.authenticate(sent(key))
        except Unauthenticated:
            return False
        return True


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "keys")


def test_keys_are_reloaded_while_the_server_runs(watched: Watched) -> None:
    before = watched.keys.authenticate(sent("key"))
    watched.write(f"a:{HASH} requests=8\na:{hashed('next')}\n")
    assert watched.knows("next")
    assert watched.keys.revalidate(before).limits == RateLimits(requests=8)
    watched.write(f"a:{hashed('next')}\n")
    assert not watched.knows("key")
    with pytest.raises(Unauthenticated, match="no longer"):
        watched.keys.revalidate(before)
    assert watched.knows("next")


def test_invalid_version_is_not_used(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.write(f"a:{HASH}\nb:{hashed('next')}  requests=many\n")
    with caplog.at_level(logging.INFO):
        assert watched.knows("key")
        assert not watched.knows("next")
        watched.file.unlink()
        assert watched.knows("key")
    reasons = [vars(record)["fields"]["reason"] for record in caplog.records]
    assert "line 2" in reasons[0]
    assert "No such file" in reasons[-1]
    count = len(reasons)
    with caplog.at_level(logging.INFO):
        assert watched.knows("key")
    assert len(caplog.records) == count  # logged once per version, not per request
    watched.write(f"b:{hashed('next')}\n")
    assert watched.knows("next")


@pytest.mark.parametrize("text", ["", "# nobody any more\n"])
def test_last_key_can_be_removed(watched: Watched, text: str) -> None:
    before = watched.keys.authenticate(sent("key"))
    watched.write(text)
    assert watched.knows("key")  # the file may be being written
    watched.elapsed_seconds = 60.0
    assert not watched.knows("key")
    assert not watched.knows("")
    with pytest.raises(Unauthenticated):
        watched.keys.revalidate(before)
    assert watched.keys  # the server still requires a key
    watched.write(f"b:{hashed('next')}\n")
    assert watched.knows("next")


def test_restarted_worker_accepts_an_empty_key_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# nobody\n")
    with pytest.raises(KeyFileError):
        ApiKeys(file=file)
    keys = ApiKeys(file=file, may_be_empty=True)
    assert keys
    with pytest.raises(Unauthenticated):
        keys.authenticate(sent(""))


def test_pipe_is_read_once() -> None:
    reading, writing = os.pipe()
    os.write(writing, f"a:{HASH}\n".encode())
    os.close(writing)
    keys = ApiKeys(file=Path(f"/dev/fd/{reading}"))
    keys.check_interval_seconds = 0.0
    for _ in range(2):
        assert keys.authenticate(sent("key")).tenant == "a"
        keys.reload()
    os.close(reading)


def test_change_in_place_is_detected_immediately(watched: Watched) -> None:
    """Two versions of the same size within the resolution of the file system's clock."""
    stamp = os.stat(watched.file)
    for _ in range(3):
        watched.file.write_text(f"a:{hashed('next')} requests=7")
        os.utime(watched.file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        assert watched.knows("next")
        watched.file.write_text(f"a:{HASH} requests=7")
        os.utime(watched.file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        assert watched.knows("key")


def test_file_is_checked_at_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text(f"a:{HASH}")
    looks: list[Path] = []
    keys = ApiKeys(file=file)
    keys.check_interval_seconds = 1e9
    monkeypatch.setattr(auth, "get_file_version", lambda path, now: looks.append(path))
    for _ in range(100):
        keys.authenticate(sent("key"))
    assert looks == []
    file.write_text(f"a:{hashed('next')}")
    keys.reload()  # SIGHUP reloads immediately
    assert keys.authenticate(sent("next")).tenant == "a"


def test_lookup_time_is_independent_of_the_number_of_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One comparison of complete digests in constant time, whether the key exists or not."""
    keys = ApiKeys(["key"], [ApiKey("t", at.to_bytes(32, "big")) for at in range(1, 5000)])
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert keys.authenticate(sent("key")).admin
    with pytest.raises(Unauthenticated):
        keys.authenticate(sent("guess"))
    assert [len(a) == len(b) == 32 for a, b in compared] == [True, True]


def test_missing_key_is_rejected_if_the_server_has_keys() -> None:
    with pytest.raises(Unauthenticated):
        ApiKeys(["key"]).revalidate(Caller())


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
def test_exposure_warning(host: str, warned: bool) -> None:
    assert (exposure_warning(host, ApiKeys()) is not None) == warned
    assert exposure_warning(host, ApiKeys(["key"])) is None
