"""The funnel: from a request to its envelope and record."""

__all__: list[str] = []
