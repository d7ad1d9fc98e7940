"""The page 'Chat': a conversation with an agent that has the yard's tools.

The page speaks to the HTTP API of agents, which `launch` hands in. A request passes with the login of the console in place of credentials.
"""

from typing import Any, ClassVar

import msgspec

from callyard.console.form import defaults_of, make_form
from callyard.console.page import FRESH, HTML, Page, View, render
from callyard.transports.http.response import ResponseWriter

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
        """Pass a request to the API of agents, or return the form of a question; each needs a login, as sessions are a person's own."""
        request = view.request
        if not view.path or request is None:
            return False
        if self.parts.agents is None or not view.person.can_act:
            raise LookupError
        if view.path == ("form",):
            await writer.respond(200, _form(view), (HTML, FRESH))
            return True
        if view.path[0] != "api":
            raise LookupError
        passed = msgspec.structs.replace(request, path="/".join((_API, *view.path[1:])), caller=view.person.caller)
        await self.parts.agents(passed, writer)
        return True


def _form(view: View) -> bytes:
    """Return the fields of a question, whose schema the script of the page got from the agent."""
    try:
        schema = msgspec.json.decode(view.form.get("schema", ""), type=dict[str, Any])
    except msgspec.DecodeError:
        raise LookupError from None
    return render("chat_form.html", {"form": make_form(schema), "content": defaults_of(schema)})
