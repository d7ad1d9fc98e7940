"""Links to upstreams over HTTP: streamable HTTP of both eras, and the older HTTP with SSE."""

from callyard.providers.upstream.http.link import HttpLink
from callyard.providers.upstream.http.sse import SseLink

__all__ = ["HttpLink", "SseLink"]
