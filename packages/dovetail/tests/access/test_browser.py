"""Which hosts and origins may use a server, with and without keys."""

import pytest

from dovetail.access.browser import BrowserPolicy
from dovetail_model import Forbidden

LOOPBACK = ["localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1:1", "127.8.9.10", "[::1]:8000"]
FOREIGN = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.example, localhost",
    "localhost@evil.example",
    "",
    "[::1",
    "localhost:port",
]


def accepts_host(policy: BrowserPolicy, host: str, *, has_keys: bool = False) -> bool:
    try:
        policy.require_host({"host": host}, has_keys=has_keys)
    except Forbidden:
        return False
    return True


def accepts_page(policy: BrowserPolicy, *, has_keys: bool = False, **headers: str) -> bool:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        policy.require_origin(named, has_keys=has_keys)
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_hosts_are_accepted(host: str) -> None:
    assert accepts_host(BrowserPolicy(), host)


@pytest.mark.parametrize("host", [*FOREIGN, "10.0.0.1", "8.8.8.8:8000"])
def test_other_hosts_are_rejected_without_keys(host: str) -> None:
    assert not accepts_host(BrowserPolicy(), host)
    assert accepts_host(BrowserPolicy(), host, has_keys=True)


def test_allowed_hosts_are_checked_with_keys_too() -> None:
    policy = BrowserPolicy(["models.example", "*.lab.example"])
    for has_keys in (False, True):
        for host in ("models.example:443", "Models.Example", "a.lab.example", "a.b.lab.example"):
            assert accepts_host(policy, host, has_keys=has_keys)
        for host in ("x.models.example", "lab.example", "evillab.example", *FOREIGN):
            assert not accepts_host(policy, host, has_keys=has_keys)
        assert accepts_host(policy, "localhost:8000", has_keys=has_keys)
    assert accepts_host(BrowserPolicy(["*"]), "evil.example")


def test_server_for_other_machines_accepts_addresses_but_no_names() -> None:
    policy = BrowserPolicy(exposed=True)
    assert accepts_host(policy, "192.168.1.5:8000")
    assert accepts_host(policy, "[fd00::5]:8000")
    assert not any(accepts_host(policy, host) for host in FOREIGN)


def test_request_without_host_is_no_browsers() -> None:
    BrowserPolicy().require_host({}, has_keys=False)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://localhost:8000", "null", "", "file://"]
)
def test_origins_are_rejected_without_keys(origin: str) -> None:
    assert not accepts_page(BrowserPolicy(), origin=origin)
    assert accepts_page(BrowserPolicy(), origin=origin, has_keys=True)


def test_allowed_origins_are_accepted() -> None:
    policy = BrowserPolicy(allowed_origins=["https://App.example", "http://localhost:3000"])
    assert accepts_page(policy, origin="https://app.example")
    assert accepts_page(policy, origin="http://localhost:3000")
    for origin in ("https://app.example:444", "http://app.example", "https://app.example.evil"):
        assert not accepts_page(policy, origin=origin)
    assert accepts_page(BrowserPolicy(allowed_origins=["*"]), origin="https://any.example")


def test_requests_of_other_sites_without_an_origin_are_rejected() -> None:
    policy = BrowserPolicy()
    assert not accepts_page(policy, sec_fetch_site="cross-site", sec_fetch_mode="no-cors")
    assert not accepts_page(policy, sec_fetch_site="same-site", sec_fetch_mode="no-cors")
    assert accepts_page(policy, sec_fetch_site="cross-site", sec_fetch_mode="navigate")
    assert accepts_page(policy, sec_fetch_site="none", sec_fetch_mode="navigate")
    assert accepts_page(policy, sec_fetch_mode="cors")  # sent by Node.js


def test_preflight_allows_the_headers_that_were_requested() -> None:
    policy = BrowserPolicy(allowed_origins=["https://app.example"])
    headers = {
        "origin": "https://app.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
        "access-control-request-private-network": "true",
    }
    assert policy.is_preflight("OPTIONS", headers)
    assert not policy.is_preflight("OPTIONS", {**headers, "origin": "https://evil.example"})
    assert not policy.is_preflight("POST", headers)
    allowed = dict(policy.preflight_headers(headers))
    assert allowed["access-control-allow-headers"] == "authorization, content-type"
    assert allowed["access-control-allow-private-network"] == "true"
    odd = {**headers, "access-control-request-headers": "a\r\nb: c"}
    assert "access-control-allow-headers" not in dict(policy.preflight_headers(odd))


@pytest.mark.parametrize("host", ["http://a.example", "a/b", "", "*a.example", "a.*.example"])
def test_invalid_allowed_hosts_are_reported(host: str) -> None:
    with pytest.raises(ValueError, match="--allowed-host: "):
        BrowserPolicy([host])


@pytest.mark.parametrize("origin", ["a.example", "https://a.example/", "https://*.example", ""])
def test_invalid_allowed_origins_are_reported(origin: str) -> None:
    with pytest.raises(ValueError, match="--allowed-origin: "):
        BrowserPolicy(allowed_origins=[origin])
