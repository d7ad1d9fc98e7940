"""Jobs: calls that go on after their first answer, kept in the store so that they outlive their connection and their process."""

__all__: list[str] = []
