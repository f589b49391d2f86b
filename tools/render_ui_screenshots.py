"""Render the pictures of docs/ui.md: the web UI with simulated sessions, in a real Chromium.

    python tools/render_ui_screenshots.py

Needs a Chromium and Playwright, as `make test-ui`.
"""

import base64
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "packages" / "dovetail" / "tests" / "support")]

from browser_fixture import Browser, browsing  # noqa: E402
from http_fixture import Stage, run, serving  # noqa: E402
from simulated_sessions import fill_minutes  # noqa: E402

from dovetail.http.options import HttpOptions  # noqa: E402

FOLDER = ROOT / "docs" / "ui"
SESSION = "#/session?id=6f1c2b0e-fix-empty-basket"
QUALITY = 82
WIDE, PHONE = {"width": 1280, "height": 720}, {"width": 390, "height": 780}
#: File -> address within the page, what must be visible, color scheme, size.
PICTURES: dict[str, tuple[str, str, str, dict[str, int]]] = {
    "overview-light": ("", ".overview[data-updates]", "light", {"width": 1280, "height": 830}),
    "sessions-dark": ("#/sessions", "tbody tr", "dark", WIDE),
    "session-light": (SESSION, ".timeline .turn", "light", {"width": 1280, "height": 620}),
    "session-dark": (SESSION, ".timeline .turn", "dark", WIDE),
    "turn-light": (f"{SESSION}&turn=8", ".turn-view", "light", {"width": 1280, "height": 1180}),
    "session-phone": (SESSION, ".timeline .turn", "light", PHONE),
}


async def take_picture(stage: Stage, browser: Browser, name: str) -> None:
    address, visible, scheme, size = PICTURES[name]
    url = f"{stage.url}/ui{address}"
    page: Any = await browser.open(url, color_scheme=scheme, viewport=size)
    await page.wait_for_selector(visible)
    await page.wait_for_timeout(300)
    protocol = await page.context.new_cdp_session(page)
    options = {"format": "webp", "quality": QUALITY}
    picture = await protocol.send("Page.captureScreenshot", options)
    path = FOLDER / f"{name}.webp"
    path.write_bytes(base64.b64decode(picture["data"]))
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} KB")
    await page.close()


async def scene() -> None:
    FOLDER.mkdir(exist_ok=True)
    async with serving(HttpOptions(ui=True)) as stage, browsing() as browser:
        fill_minutes(stage.app, time.time())
        for name in sys.argv[1:] or PICTURES:
            await take_picture(stage, browser, name)
        assert not browser.errors, browser.errors


if __name__ == "__main__":
    run(scene)
