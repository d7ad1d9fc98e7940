"""Troubles of signing in."""

__all__ = ["LoginError"]


class LoginError(Exception):
    """Signing in does not work: one sentence for people, and whether it may work later without anybody's help."""

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.passing = passing
