"""The pages of the console, in the order of the navigation."""

from typing import Final

from callyard.console.page import Page
from callyard.console.pages.approvals import ApprovalsPage
from callyard.console.pages.calls import Calls
from callyard.console.pages.chat import Chat
from callyard.console.pages.jobs import JobsPage
from callyard.console.pages.overview import Overview
from callyard.console.pages.runtimes import RuntimesPage
from callyard.console.pages.sessions import SessionsPage
from callyard.console.pages.settings import SettingsPage
from callyard.console.pages.tools import Tools
from callyard.console.pages.upstreams import UpstreamsPage

__all__ = ["PAGES"]

PAGES: Final[tuple[type[Page], ...]] = (
    Overview,
    Tools,
    Calls,
    ApprovalsPage,
    Chat,
    JobsPage,
    SessionsPage,
    UpstreamsPage,
    RuntimesPage,
    SettingsPage,
)
