"""The page 'Chat': a conversation with an agent that has the yard's tools.

The page speaks to the HTTP API of agents, which `launch` hands in. A request passes with the login of the console in place of credentials.
"""

from typing import Any, ClassVar

import msgspec

from toolyard.console.page import Page, View
from toolyard.transports.http.response import ResponseWriter

__all__ = ["Chat"]

_API = "/api"


class Chat(Page):
    """A conversation with an agent."""

    name: ClassVar[str] = "chat"
    title: ClassVar[str] = "Chat"
    template: ClassVar[str] = "chat"
    live_seconds: ClassVar[float] = 0.0

    @property
    def in_navigation(self) -> bool:
        """Return whether the server runs agents."""
        return self.parts.agents is not None

    async def context(self, view: View) -> dict[str, Any]:
        """Return nothing: the script of the page asks the API."""
        return {"is_served": self.parts.agents is not None, "session": view.query.get("session", "")}

    async def answer(self, view: View, writer: ResponseWriter) -> bool:
        """Pass a request to the API of agents; each needs a login, because sessions are a person's own."""
        request = view.request
        if not view.path or request is None:
            return False
        if self.parts.agents is None or view.path[0] != "api" or not view.person.can_act:
            raise LookupError
        passed = msgspec.structs.replace(request, path="/".join((_API, *view.path[1:])), caller=view.person.caller)
        await self.parts.agents(passed, writer)
        return True
