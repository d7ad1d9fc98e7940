"""Pipes: bytes that come and go on descriptors, as the loop allows, and the lines in them."""

__all__: list[str] = []
