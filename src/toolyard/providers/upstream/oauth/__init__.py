"""Signing in at upstreams: OAuth, from discovery to tokens that are kept and renewed."""

__all__: list[str] = []
