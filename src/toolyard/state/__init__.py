"""Where everything that must last is kept."""

__all__: list[str] = []
