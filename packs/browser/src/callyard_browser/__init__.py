"""A pack that drives Chromium: pages and apps, for agents.

Its files:

- `browsers`: the browsers of one yard, and how each tool runs its work in one
- `driver`: the driver of all browsers, and how a browser starts and ends
- `expectations`: tools that wait until a page is as expected
- `failures`: reasons, and how they are told from the errors of Playwright
- `hosts`: which hosts may be reached
- `interaction`: tools that act on a page
- `lifecycle`: tools that start, steer and stop browsers
- `masks`: values that no answer may hold
- `processes`: processes and folders of browsers, and the sweep
- `reading`: tools that read pages, their console and their network
- `session`: one browser as a session
- `settings`: the table `[pack.browser]`
- `snapshot`: snapshots as data: parsed, written, cut, compared
- `tab`: one tab, its refs and its dialog
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from callyard import Functions, Needs, Pack, PackContext, Publish
from callyard_browser.browsers import Browsers
from callyard_browser.expectations import Expectations
from callyard_browser.failures import REASONS
from callyard_browser.interaction import Interaction
from callyard_browser.lifecycle import Lifecycle
from callyard_browser.reading import Reading
from callyard_browser.settings import BrowserConfig

__all__ = ["PACK", "BrowserPack"]


class BrowserPack:
    """Publishes the tools of the browsers of one yard."""

    name = "browser"

    def __init__(self, context: PackContext) -> None:
        self._browsers = Browsers(context)

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish the tools; no browser and no driver starts before one is asked for."""
        groups = [group(self._browsers) for group in (Lifecycle, Reading, Interaction, Expectations)]
        async with self._browsers.driver.opened(), Functions(self.name, groups).open(publish):
            yield


PACK = Pack(
    name="browser",
    make=BrowserPack,
    requires=">=0.1,<1",
    config=BrowserConfig,
    shown=("hosts",),
    reasons=REASONS,
    needs=Needs(optional=("chromium", "google-chrome"), eval_targets=("page",)),
)
"""Browsers that agents drive, and whose pages they check."""
