"""MCP as data: bytes to messages and back, without I/O and without state.

Its files:

- `headers`: HTTP headers that repeat parts of a stateless request's body: checks that both agree, and encodes them
- `messages`: decoding and encoding, the same for servers and clients
- `params`: params of MCP's methods and the `_meta` of requests: decoding for servers, encoding for clients
- `results`: results of MCP's methods as bytes, in the format of each protocol version
- `sse`: server-sent events: the encoding of messages on an HTTP response that stays open, and its decoder
- `versions`: protocol versions of MCP that are supported, and how they differ
"""

__all__: list[str] = []
