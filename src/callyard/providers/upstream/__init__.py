"""Upstreams: other MCP servers whose tools, resources and prompts are published here.

Importing this package loads none of it: most yards have no upstream.

Its files:

- `calls`: the tools, resources and prompts of an upstream with their handlers; its answers and errors translated
- `catalogue`: the catalogue of an upstream: everything it lists, and the specs under which that is published
- `diff`: differences between an upstream's current definitions and the accepted ones, as lines for people
- `handshake`: the handshake with an upstream: finds out which protocol era and version it speaks, and what it offers
- `health`: the health of an upstream: a circuit breaker, the state that people see, and the files that share it
- `inner_yard`: answers of an upstream that is a yard, too: one envelope instead of two
- `intake`: takes in what an upstream sends, so that a flood of it does not delay the calls of others
- `link`: the transport to an upstream as an interface of bytes, for stdio, HTTP and SSE alike
- `pages`: pages that an upstream wants a person to open: elicitation by URL
- `pins`: hashes of the accepted definitions of upstreams, in the file `callyard.lock`
- `process_log`: the log of an upstream's process: its stderr with timestamps, in a small rotated file, and its last
  lines in memory
- `provider`: publishes an upstream's catalogue, at first the stored one, and maintains its connection
- `scan`: the scan of definitions for text that deceives people or gives orders to a model
- `session`: the client side of one MCP session with an upstream, over any link
- `settings`: the settings of one upstream: its endpoint, what of it is published, and its limits
- `stdio`: the link to a program: messages go to its stdin and come from its stdout, one on each line
- `subscriptions`: what we subscribe to there: changes of its lists, and resources that our clients subscribe to
- `supervisor`: the supervisor of one upstream: owns its connection, so that callers need not know whether there is
  one
- `tasks`: tasks of an upstream: a call that it answers with a task goes on as a job of ours
- `unsettled`: tools of which nobody has said what they do, and what their names propose
- `verdict`: what a change of a definition means for those who call: breaking, compatible, or only words
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from callyard._internal.files import find_state_dir
from callyard._internal.project import project_dir

if TYPE_CHECKING:
    from callyard.providers.upstream.oauth.vault import Vaults
    from callyard.providers.upstream.provider import Upstream
    from callyard.providers.upstream.settings import ResolvedUpstream

__all__ = ["LOCK_FILE", "make_upstreams"]

LOCK_FILE: Final = "callyard.lock"
"""The file that names the accepted definitions."""


def make_upstreams(
    upstreams: "Mapping[str, ResolvedUpstream]",
    *,
    state_dir: str | None,
    project: str,
    lock: Path | None = None,
    longest: int,
    vaults: "Vaults | None" = None,
) -> "list[Upstream]":
    """Return the providers of a project's upstreams; `lock` is the file of accepted definitions.

    Raises:
        OSError: The state directory cannot be used.
    """
    if not upstreams:
        return []
    from callyard.providers.upstream.provider import Pins, make_upstream  # noqa: PLC0415 - off without upstreams

    state = project_dir(find_state_dir(state_dir), project)
    pins = Pins(lock or state / LOCK_FILE, state=state)
    return [
        make_upstream(name, one.settings, state=state, pins=pins, longest=longest, problem=one.problem, vaults=vaults)
        for name, one in upstreams.items()
    ]
