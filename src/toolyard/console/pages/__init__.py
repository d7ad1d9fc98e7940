"""The pages of the console, in the order of the navigation."""

from typing import Final

from toolyard.console.page import Page
from toolyard.console.pages.approvals import ApprovalsPage
from toolyard.console.pages.calls import Calls
from toolyard.console.pages.chat import Chat
from toolyard.console.pages.jobs import JobsPage
from toolyard.console.pages.overview import Overview
from toolyard.console.pages.runtimes import RuntimesPage
from toolyard.console.pages.sessions import SessionsPage
from toolyard.console.pages.settings import SettingsPage
from toolyard.console.pages.tools import Tools
from toolyard.console.pages.upstreams import UpstreamsPage

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
