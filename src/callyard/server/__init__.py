"""The MCP server without I/O: sessions, requests, and the state that all clients of a yard share.

Its files:

- `client_schemas`: schemas that fit the client: what clients refuse is rewritten in what they list, and nowhere else
- `context`: the state that all requests of a server share, and that of one request
- `input_required`: questions as results: `input_required` of the 2026-07-28 era
- `lists`: the lists of tools, resources, templates and prompts, encoded once for each profile and version
- `methods`: the handler of each, and the one loop from a decoded request to an encoded response
- `notifications`: a client learns that one of its own lists changed, once for each burst of changes
- `replicas`: calls of sessions that live on another replica, and answers to questions that another one asks
- `session`: the state of one MCP client, without I/O
- `stream`: a session over a connection that carries messages both ways, such as a pipe
- `tasks`: jobs in the words of the protocol
"""

from callyard.server.context import Notify, RequestContext, ServerContext
from callyard.server.session import ServerSession

__all__ = ["Notify", "RequestContext", "ServerContext", "ServerSession"]
