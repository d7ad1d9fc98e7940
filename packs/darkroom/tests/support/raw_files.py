"""A raw file for tests: a small DNG with a red left half and a blue right half."""

import struct
from pathlib import Path

__all__ = ["write_dng"]


def write_dng(path: Path, *, width: int = 320, height: int = 240, orientation: int = 1) -> Path:
    """Write a DNG whose sensor has the pattern RGGB."""
    rows: list[int] = []
    for y in range(height):
        for x in range(width):
            is_red, is_blue = not (x % 2 or y % 2), bool(x % 2 and y % 2)
            lit = is_red if x < width // 2 else is_blue
            rows.append(12000 if lit else 3000)
    pixels = struct.pack(f"<{len(rows)}H", *rows)
    matrix = (32404, -15371, -4985, -9692, 18760, 415, 556, -2040, 10572)
    tags: list[tuple[int, int, bytes]] = [
        (254, 4, struct.pack("<I", 0)),
        (256, 4, struct.pack("<I", width)),
        (257, 4, struct.pack("<I", height)),
        (258, 3, struct.pack("<H", 16)),
        (259, 3, struct.pack("<H", 1)),
        (262, 3, struct.pack("<H", 32803)),
        (271, 2, b"Test\0"),
        (272, 2, b"Camera\0"),
        (273, 4, b"\0\0\0\0"),
        (274, 3, struct.pack("<H", orientation)),
        (277, 3, struct.pack("<H", 1)),
        (278, 4, struct.pack("<I", height)),
        (279, 4, struct.pack("<I", len(pixels))),
        (33421, 3, struct.pack("<2H", 2, 2)),
        (33422, 1, bytes([0, 1, 1, 2])),
        (50706, 1, bytes([1, 4, 0, 0])),
        (50708, 2, b"Test Camera\0"),
        (50717, 4, struct.pack("<I", 16383)),
        (50721, 10, b"".join(struct.pack("<2i", value, 10000) for value in matrix)),
        (50728, 5, struct.pack("<6I", 1, 1, 1, 1, 1, 1)),
    ]
    sizes = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 10: 8}
    place = 8 + 2 + len(tags) * 12 + 4
    outside = b""
    start = place + sum(len(content) + len(content) % 2 for _, _, content in tags if len(content) > 4)
    directory = struct.pack("<H", len(tags))
    for tag, kind, content in tags:
        value = struct.pack("<I", start) if tag == 273 else content
        if len(value) > 4:
            directory += struct.pack("<HHII", tag, kind, len(value) // sizes[kind], place + len(outside))
            outside += value + b"\0" * (len(value) % 2)
        else:
            directory += struct.pack("<HHI", tag, kind, len(value) // sizes[kind]) + value.ljust(4, b"\0")
    path.write_bytes(b"II*\0" + struct.pack("<I", 8) + directory + b"\0\0\0\0" + outside + pixels)
    return path
