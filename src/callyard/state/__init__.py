"""Stores: where state that outlives a call is kept."""

__all__: list[str] = []
