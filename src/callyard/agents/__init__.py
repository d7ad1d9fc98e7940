"""Runs agents with the yard's tools: sessions, turns as streams of events, and questions to their people.

`AgentManager` is the library; `api` is the same over HTTP. The runtimes `claude` and `openai` import their SDKs when
used.

Its files:

- `api`: the HTTP API of agents: sessions, messages as event streams, and decisions of people
- `claude`: the runtime of the Claude Agent SDK: the only file that calls its `query`
- `events`: what happens in one turn of an agent, the same for every runtime
- `history`: what was said and done in each turn, written to the store while it happens
- `interactions`: what an agent waits for a person to decide or answer, and the modes that say when to ask
- `manager`: the one place that runs agents with the yard's tools, and asks their people
- `openai`: the runtime of the OpenAI Agents SDK, with the same events and permissions
- `sessions`: conversations of callers with an agent, kept in the store so that they outlive the process
- `turn`: one turn of an agent: what its runtime gets and does, its task, its events and its time limit
"""

from callyard.agents.events import Decision, StreamEvent
from callyard.agents.interactions import Interaction
from callyard.agents.manager import AgentManager, AgentOptions
from callyard.agents.sessions import AgentSession
from callyard.agents.turn import AgentRuntime, TurnRequest

__all__ = [
    "AgentManager",
    "AgentOptions",
    "AgentRuntime",
    "AgentSession",
    "Decision",
    "Interaction",
    "StreamEvent",
    "TurnRequest",
]
