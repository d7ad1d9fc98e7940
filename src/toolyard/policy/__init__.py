"""Policy: what a call must pass before it runs. Rules decide, and people approve what a rule asks about."""

__all__: list[str] = []
