"""`dovetail keys`: keys are created, shown once, and validated as by a server."""

import re
from pathlib import Path

import pytest
from server_process import dovetail
from typer.testing import CliRunner, Result

from dovetail.access.auth import ApiKeys
from dovetail.access.limits import RateLimits
from dovetail.cli.keys import app
from dovetail_model import Unauthenticated


def ran(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_new_prints_a_key_and_its_line(tmp_path: Path) -> None:
    words = ["requests=60", "tokens=none", "concurrent=8", "admin"]
    made = dovetail("keys", "new", "team-a", *words, home=tmp_path)
    assert made.status == 0, made.err
    [key] = re.findall(r"^key:  (dvt_[\w-]{43})$", made.out, re.MULTILINE)
    [line] = re.findall(r"^line: (team-a:.*)$", made.out, re.MULTILINE)
    assert key not in line
    (tmp_path / "keys").write_text(line)
    keys = ApiKeys(file=tmp_path / "keys", limits=RateLimits(1, 1, 1))
    caller = keys.authenticate({"authorization": f"Bearer {key}"})
    assert (caller.tenant, caller.admin) == ("team-a", True)
    assert caller.limits == RateLimits(60, None, 8)


def test_new_appends_keys_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    first = ran("new", "a", "--file", file)
    file.write_text(f"# ours\n{file.read_text().strip()}")  # without a final line break
    second = ran("new", "a", "expires=2099-01-31", "--file", file)
    assert first.exit_code == second.exit_code == 0
    keys = ApiKeys(file=file)
    for made in (first, second):
        assert keys.authenticate({"x-api-key": made.output.strip()}).tenant == "a"
    with pytest.raises(Unauthenticated):
        keys.authenticate({"x-api-key": first.output.strip()[:-1]})


def test_new_key_file_is_private(tmp_path: Path) -> None:
    assert ran("new", "a", "--file", tmp_path / "keys").exit_code == 0
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o600


def test_invalid_key_file_is_not_modified(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("nonsense\n")
    refused = ran("new", "a", "--file", file)
    assert refused.exit_code == 1
    assert "line 1" in refused.output
    assert file.read_text() == "nonsense\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["two words"], "tenant:sha256"),
        (["a:b"], "tenant:sha256"),
        (["a#b"], "tenant:sha256"),
        ([""], "tenant:sha256"),
        (["a", "requests=0"], "must be a positive number"),
        (["a", "expires=tomorrow"], "must be a date"),
        (["a", "boss"], "admin"),
        (["a", "admin\nb:" + "0" * 64], "must not contain line breaks"),
        (["a", "requests=5#tokens=6"], "comment"),
    ],
)
def test_words_are_validated_as_in_the_file(words: list[str], expected: str) -> None:
    refused = ran("new", *words)
    assert refused.exit_code == 1
    assert expected in refused.output


def test_check_lists_keys_and_limits(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    lines = (["a", "tokens=5"], ["b", "expires=2020-01-31"], ["c", "requests=none", "admin"])
    for words in lines:
        ran("new", *words, "--file", file)
    shown = ran("check", file)
    assert shown.exit_code == 0
    first, second, third = shown.output.splitlines()
    assert re.fullmatch(r"a:[0-9a-f]{12}…  tokens=5", first)
    assert "expired 2020-02-01 00:00 UTC" in second
    assert third.endswith("…  requests=none  admin")
    ran("new", "d", "name=ci", "tokens-per-day=9", "cost-per-month=2.5", "--file", file)
    with file.open("a") as more:
        more.write("d:* tokens-per-month=5\n")
    fourth = ran("check", file).output.splitlines()[3]
    assert fourth.endswith(
        "…  name=ci  tokens-per-day=9  cost-per-month=2.5  d:* tokens-per-month=5"
    )
    with file.open("a") as more:
        more.write("d:short\n")
    broken = ran("check", file)
    assert broken.exit_code == 1
    assert "line 6" in broken.output
    assert ran("check", tmp_path / "none").exit_code == 1
