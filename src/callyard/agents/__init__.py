"""Runs agents with the yard's tools: sessions, turns as streams of events, and questions to their people.

`AgentManager` is the library; `api` is the same over HTTP. The runtimes `claude` and `openai` import their SDKs when used.
"""

from callyard.agents.events import StreamEvent
from callyard.agents.interactions import Decision, Interaction
from callyard.agents.manager import AgentManager, AgentOptions
from callyard.agents.runtime import AgentRuntime, TurnRequest
from callyard.agents.sessions import AgentSession

__all__ = ["AgentManager", "AgentOptions", "AgentRuntime", "AgentSession", "Decision", "Interaction", "StreamEvent", "TurnRequest"]
