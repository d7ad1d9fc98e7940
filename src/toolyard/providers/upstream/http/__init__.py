"""Upstreams over HTTP: streamable HTTP of both eras, and the legacy pair of a stream and an address to post to."""

from toolyard.providers.upstream.http.link import HttpLink
from toolyard.providers.upstream.http.sse import SseLink

__all__ = ["HttpLink", "SseLink"]
