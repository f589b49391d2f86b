"""The web UI in a real Chromium, driven by Playwright.

Any error fails the test that closes the page: an exception in a script, a message at the error
level of the console, a violation of the content security policy, a request to another server.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hostile_page import find_browser

AXE = Path(__file__).parents[4] / ".cache" / "axe" / "axe.min.js"
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_WATCH = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


@dataclass
class Browser:
    """A browser. `errors` collects what went wrong on all pages."""

    context: Any
    errors: list[str] = field(default_factory=list)

    async def open(self, url: str, **emulation: Any) -> Any:
        """Open a page, for example with `color_scheme="dark"` or a `viewport`."""
        size = emulation.pop("viewport", None)
        page = await self.context.new_page()
        if size:
            await page.set_viewport_size(size)
        if emulation:
            await page.emulate_media(**emulation)
        page.on("pageerror", lambda error: self.errors.append(f"exception: {error}"))
        page.on("console", self._on_console)
        page.on("request", lambda request: self._on_request(url, request.url))
        await page.add_init_script(_WATCH)
        await page.goto(url)
        return page

    async def check(self, page: Any) -> None:
        """Fail if anything went wrong."""
        self.errors += [f"policy: {one}" for one in await page.evaluate("window.violations")]
        assert not self.errors, self.errors

    def _on_console(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(f"console: {message.text}")

    def _on_request(self, page_url: str, url: str) -> None:
        if url.split("/")[:3] != page_url.split("/")[:3]:
            self.errors.append(f"request to another server: {url}")


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    """Run a browser with a new profile. Skips the test if there is none."""
    program = find_browser()
    api = pytest.importorskip("playwright.async_api")
    async with api.async_playwright() as playwright:
        with TemporaryDirectory() as profile:
            context = await playwright.chromium.launch_persistent_context(
                profile, executable_path=program, headless=True, args=list(ARGUMENTS)
            )
            try:
                yield Browser(context)
            finally:
                await context.close()
