"""Policy: checks that a call passes before it runs. Rules decide, and people approve where a rule asks."""

__all__: list[str] = []
