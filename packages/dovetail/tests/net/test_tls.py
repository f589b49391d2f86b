"""HTTPS with real certificates: negotiation, rejection and renewal."""

import asyncio
import logging
import math
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import anthropic
import openai
import pytest
from certificates import Authority, serial_of
from server_process import NAME, TIMEOUT_SECONDS, Running, dovetail, qwen_folder, served

from dovetail.access.auth import ApiKeys
from dovetail.net.tls import CertificateError, TlsCertificate
from dovetail.server.supervisor import reload_on_change


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def shaken(
    certificate: TlsCertificate, client: ssl.SSLContext
) -> tuple[int, str | None, str | None]:
    """Run a handshake in memory: the certificate's serial, TLS version and protocol."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    ours = certificate.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (theirs, ours):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return serial_of(theirs), theirs.version(), theirs.selected_alpn_protocol()


def test_negotiated_parameters(authority: Authority) -> None:
    issued = authority.issue("server")
    certificate = TlsCertificate(issued.cert, issued.key)
    client = authority.trust()
    client.set_alpn_protocols(["h2", "http/1.1"])
    assert shaken(certificate, client) == (issued.serial, "TLSv1.3", "http/1.1")
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shaken(certificate, client)[1] == "TLSv1.2"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_old_tls_versions_are_rejected(authority: Authority) -> None:
    issued = authority.issue("server")
    certificate = TlsCertificate(issued.cert, issued.key)
    client = authority.trust()
    client.set_ciphers("ALL:@SECLEVEL=0")
    client.minimum_version = ssl.TLSVersion.TLSv1
    client.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        shaken(certificate, client)


def test_key_and_certificate_may_share_a_file(authority: Authority) -> None:
    issued = authority.issue("server")
    both = issued.cert.with_name("both.pem")
    both.write_bytes(issued.key.read_bytes() + issued.cert.read_bytes())
    assert shaken(TlsCertificate(both), authority.trust())[0] == issued.serial


def test_unusable_certificates_are_reported(authority: Authority, tmp_path: Path) -> None:
    one, other = authority.issue("one"), authority.issue("other")
    locked = authority.issue("locked", password=b"secret")
    (tmp_path / "text").write_text("hello")
    for cert, key, expected in [
        (tmp_path / "none", one.key, "file not found"),
        (one.cert, tmp_path / "none", "file not found"),
        (one.cert, other.key, "does not match the certificate"),
        (tmp_path / "text", one.key, "not PEM files"),
        (one.cert, tmp_path / "text", "not PEM files"),
        (locked.cert, locked.key, "passphrase"),
    ]:
        with pytest.raises(CertificateError, match=expected):
            TlsCertificate(cert, key)


def test_new_connections_get_a_renewed_certificate(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    first = authority.issue("server")
    certificate, client = TlsCertificate(first.cert, first.key), authority.trust()
    second = authority.issue("server")
    certificate.reload_if_changed()
    assert shaken(certificate, client)[0] == second.serial
    third = authority.issue("other")
    first.cert.write_bytes(third.cert.read_bytes())  # the key has not been replaced yet
    certificate.reload_if_changed()
    assert shaken(certificate, client)[0] == second.serial
    assert "does not match the certificate" in vars(caplog.records[-1])["fields"]["reason"]
    first.key.write_bytes(third.key.read_bytes())
    certificate.reload_if_changed()
    assert shaken(certificate, client)[0] == third.serial


def test_missing_key_is_reported(authority: Authority) -> None:
    with pytest.raises(CertificateError, match="set --tls-key-path"):
        TlsCertificate(authority.issue("server").cert)


def test_expiry_may_be_unknown(authority: Authority) -> None:
    """OpenSSL accepts certificate formats that the `cryptography` package does not."""
    issued = authority.issue("server")
    certificate = TlsCertificate(issued.cert, issued.key)
    text = issued.cert.read_text()
    issued.cert.write_text(text.replace(" CERTIFICATE-", " TRUSTED CERTIFICATE-"))
    certificate.reload_if_changed()
    assert math.isnan(certificate.expires_at)
    issued.cert.write_text(text)
    certificate.reload_if_changed()
    assert certificate.expires_at > time.time()


def test_expiring_certificate_is_logged(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    issued = authority.issue("server")
    certificate = TlsCertificate(issued.cert, issued.key)
    assert not caplog.records
    assert certificate.expires_at > time.time() + 80 * 86_400
    for days, event in ((1, "certificate_expiring"), (-1, "certificate_expired")):
        authority.issue("server", days=days)
        certificate.reload_if_changed()
        assert caplog.records[-1].getMessage() == event
        assert certificate.expires_at == pytest.approx(time.time() + days * 86_400, abs=3600)
    assert caplog.records[-1].levelno == logging.WARNING


def test_unchanged_certificate_is_not_reloaded(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    issued = authority.issue("server")
    # Old files, so that their versions can be compared.
    certificate = TlsCertificate(issued.cert, issued.key, clock=lambda: time.time() + 60)
    with caplog.at_level(logging.INFO):
        certificate.reload_if_changed()
        assert not caplog.records
        authority.issue("server")
        certificate.reload_if_changed()
        certificate.reload_if_changed()
    assert [record.getMessage() for record in caplog.records] == ["certificate_reloaded"]


@pytest.mark.parametrize("terminal", [True, False])
def test_sighup_is_not_handled_in_a_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> bool:
        async with reload_on_change(ApiKeys(), None):
            return signal.getsignal(signal.SIGHUP) is not before

    before = signal.getsignal(signal.SIGHUP)
    ours, theirs = os.openpty() if terminal else os.pipe()
    with os.fdopen(theirs if terminal else ours, "rb", buffering=0) as entry:
        monkeypatch.setattr(sys, "stdin", entry)
        assert asyncio.run(scene()) is not terminal
    os.close(ours if terminal else theirs)
    # Removing the loop's handler restores the default action, not the previous handler.
    assert signal.getsignal(signal.SIGHUP) in (before, signal.SIG_DFL)


MESSAGE: Any = [{"role": "user", "content": "Hi"}]
KEY, NEXT = "a-key-that-must-not-be-seen", "the-next-key-that-must-not-be-seen"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> list[str | Path]:
    place = tmp_path_factory.mktemp("tls")
    folder = qwen_folder(place / "qwen")
    (place / "hello.txt").write_text("Hello.")
    return [folder, "--engine", "scripted", "--script", place / "hello.txt",
            "--served-model-name", NAME]  # fmt: skip


def line(key: str) -> str:
    return f"team:{sha256(key.encode()).hexdigest()}\n"


@pytest.fixture
def secure(
    model: list[str | Path], authority: Authority, tmp_path: Path
) -> Iterator[tuple[Running, Authority]]:
    issued = authority.issue("server")
    (tmp_path / "keys").write_text(line(KEY))
    flags: list[str | Path] = ["--tls-cert-path", issued.cert, "--tls-key-path", issued.key,
             "--api-key-file", tmp_path / "keys", "--trusted-proxy", "127.0.0.1"]  # fmt: skip
    with served(*model, *flags) as running:
        yield running, authority


def test_server_over_https(secure: tuple[Running, Authority], tmp_path: Path) -> None:
    """The official SDKs, renewal by SIGHUP, and no key in logs or process lists."""
    running, authority = secure
    assert running.url.startswith("https://127.0.0.1:")
    trusting = anthropic.DefaultHttpxClient(verify=authority.trust())
    claude = running.anthropic(KEY, http_client=trusting)
    assert _chat(claude) == "Hello."
    client = running.openai(KEY, http_client=openai.DefaultHttpxClient(verify=authority.trust()))
    stream = client.chat.completions.create(model=NAME, messages=MESSAGE, stream=True)
    parts = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(parts) == "Hello."
    with pytest.raises(anthropic.APIConnectionError):
        _chat(running.anthropic(KEY))  # which does not trust our authority

    _refuses_plain_http(running)

    first = _shown(running, authority)
    renewed = authority.issue("server")
    (tmp_path / "keys").write_text(line(NEXT))
    running.process.send_signal(signal.SIGHUP)
    _until(lambda: _shown(running, authority) == renewed.serial != first)
    with pytest.raises(anthropic.AuthenticationError, match="not valid for this server"):
        _chat(claude.with_options(default_headers={"x-forwarded-for": "203.0.113.9"}))
    assert _chat(claude.with_options(api_key=NEXT)) == "Hello."
    log = running.log.read_text()
    assert "event=tls_handshake_failed peer=127.0.0.1 reason=untrusted detail=" in log
    assert (
        "event=tls_handshake_failed peer=127.0.0.1 reason=plain_http detail=HTTP_REQUEST\n" in log
    )
    assert " status=401 peer=203.0.113.9 " in log
    assert " status=200 peer=127.0.0.1 " in log
    assert "event=keys_reloaded" in log
    assert "event=certificate_reloaded" in log
    assert "must-not-be-seen" not in log
    assert "Traceback" not in log


def _chat(client: anthropic.Anthropic) -> str:
    message = client.messages.create(model=NAME, max_tokens=50, messages=MESSAGE)
    [block] = message.content
    assert block.type == "text"
    return block.text


def _refuses_plain_http(running: Running) -> None:
    host, port = running.url.removeprefix("https://").split(":")
    with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"HTTP/1.1 200" not in plain.recv(1000)


def _shown(running: Running, authority: Authority) -> int:
    host, port = running.url.removeprefix("https://").split(":")
    with (
        socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as plain,
        authority.trust().wrap_socket(plain, server_hostname=host) as wrapped,
    ):
        return serial_of(wrapped)


def _until(true: Callable[[], bool]) -> None:
    deadline = monotonic() + TIMEOUT_SECONDS
    while not true():
        assert monotonic() < deadline
        sleep(0.05)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--tls-key-path", "one.key"], "--tls-cert-path"),
        (["--tls-cert-path", "one.crt", "--tls-key-path", "other.key"], "does not match"),
        (["--api-key-file", "one.crt"], "one.crt, line 1: expected tenant:sha256"),
    ],
)
def test_startup_failure_states_the_reason(
    flags: list[str], expected: str, model: list[str | Path], authority: Authority, tmp_path: Path
) -> None:
    authority.issue("one"), authority.issue("other")
    ended = dovetail("serve", *model, "--http-port", "0", *flags, home=tmp_path)
    assert ended.status != 0
    assert expected in ended.err
    assert "Traceback" not in ended.err


def test_keys_from_the_environment_are_not_in_process_lists(
    model: list[str | Path], tmp_path: Path
) -> None:
    with served(*model, environment={"DOVETAIL_API_KEY": f"{KEY},{NEXT}"}) as running:
        assert running.request("GET", "/v1/models").status == 401
        for key in (KEY, NEXT):
            assert running.request("GET", "/v1/models", x_api_key=key).status == 200
        shown = b"".join(
            path.read_bytes()
            for pid in _family(running.process.pid)
            if (path := Path(f"/proc/{pid}/cmdline")).exists()
        )
        assert sys.executable.encode() in shown
        assert b"must-not-be-seen" not in shown
        assert running.request("GET", "/v1/models", x_api_key=KEY[:-1]).status == 401
        running.stop()
        assert "must-not-be-seen" not in running.log.read_text() + running.greeting


def _family(pid: int) -> list[int]:
    """Return a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(child) for child in children.read_text().split()] if children.exists() else []
    return [pid, *(one for child in found for one in _family(child))]
