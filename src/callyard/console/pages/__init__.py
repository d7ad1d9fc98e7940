"""The pages of the console, in the order of the navigation.

Its files:

- `approvals`: what waits for a person, the decision, and standing grants
- `calls`: calls as they happen, as trees with a timeline, and one call in full
- `chat`: a conversation with an agent that has the yard's tools
- `disabled`: what operators disabled, and the forms that disable and enable
- `incidents`: what is or was wrong, and the forms that silence it
- `jobs`: calls that go on in the background, their questions and their results
- `server`: the pages about the server: its state, sessions and clients, the sandboxes of this machine, and every
  setting
- `tools`: finds tools as an agent does, describes one, and runs it from a form
- `upstreams`: the state of each, what to do about a failure, and definitions to review
"""

from typing import Final

from callyard.console.page import Page
from callyard.console.pages.approvals import ApprovalsPage
from callyard.console.pages.calls import Calls
from callyard.console.pages.chat import Chat
from callyard.console.pages.disabled import DisabledPage
from callyard.console.pages.incidents import IncidentsPage
from callyard.console.pages.jobs import JobsPage
from callyard.console.pages.server import Overview, RuntimesPage, SessionsPage, SettingsPage
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
    IncidentsPage,
    DisabledPage,
    RuntimesPage,
    SettingsPage,
)
