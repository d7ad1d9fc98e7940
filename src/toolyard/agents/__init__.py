"""Runs agents with the yard's tools: sessions, turns as streams of events, and questions to their people.

`AgentManager` is the library; `api` is the same over HTTP. The runtimes `claude` and `openai` import their SDKs when used.
"""

from toolyard.agents.events import StreamEvent
from toolyard.agents.interactions import Decision, Interaction
from toolyard.agents.manager import AgentManager, AgentOptions
from toolyard.agents.runtime import AgentRuntime, TurnRequest
from toolyard.agents.sessions import AgentSession

__all__ = ["AgentManager", "AgentOptions", "AgentRuntime", "AgentSession", "Decision", "Interaction", "StreamEvent", "TurnRequest"]
