"""Links to upstreams over HTTP: streamable HTTP of both eras, and the older HTTP with SSE.

Its files:

- `client`: an HTTP/1.1 client for one upstream: its address, connections, request heads and connection pool
- `exchange`: one HTTP request to an upstream and its response, and the sender that carries all of them
- `fetch`: one request outside a session, such as for JSON at a URL, on a connection of its own
- `link`: streamable HTTP of both eras, and the older HTTP with SSE
"""

from callyard.providers.upstream.http.link import HttpLink, SseLink

__all__ = ["HttpLink", "SseLink"]
