"""OAuth for upstreams: discovery, sign-in, stored tokens and their renewal."""

__all__: list[str] = []
