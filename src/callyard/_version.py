"""The version, alone, so that it costs nothing to read."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
