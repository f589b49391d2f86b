"""Web pages in a real browser try to use the server: fetch, forms, images, WebSockets."""

import pytest
from hostile_page import REBOUND_NAME, find_browser, hostile_page
from http_fixture import NAME, Stage, run, serving

from dovetail.access.browser import BrowserPolicy
from dovetail.http.options import HttpOptions

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
BODY = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}]}
HOSTS = ("127.0.0.1", "localhost", REBOUND_NAME)


def targets(stage: Stage) -> dict[str, str]:
    return {host: f"http://{host}:{stage.port}" for host in HOSTS}


def ended_statuses(stage: Stage) -> list[int]:
    return [stage.ended.get_nowait()["status"] for _ in range(stage.ended.qsize())]


@pytest.mark.parametrize("host", HOSTS)
def test_hostile_page_achieves_nothing(host: str) -> None:
    find_browser()

    async def scene() -> None:
        async with serving() as stage, hostile_page(targets(stage), BODY) as page:
            results = await page.load(host)
            assert len(results) == 7 * len(HOSTS)
            assert set(results.values()) <= {"blocked", "opaque", "requested"}
            statuses = ended_statuses(stage)
            assert len(statuses) >= 5 * len(HOSTS)  # the browser did send the requests
            assert set(statuses) == {403}
            assert not stage.engine.requests

    run(scene)


def test_page_of_an_allowed_origin_works() -> None:
    """It also shows that the attempts of the hostile page would succeed without the checks."""
    find_browser()

    async def scene() -> None:
        policy = BrowserPolicy([REBOUND_NAME], ["*"])
        async with (
            serving(HttpOptions(browser_policy=policy)) as stage,
            hostile_page(targets(stage), BODY) as page,
        ):
            results = await page.load("127.0.0.1")
            for host in HOSTS:
                for act in ("get", "text", "json"):
                    assert results[f"{host} {act}"].startswith("200 ")
                assert results[f"{host} socket"] == "open"
            assert len(stage.engine.requests) >= 3 * len(HOSTS)

    run(scene)
