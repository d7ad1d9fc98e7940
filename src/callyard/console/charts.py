"""Charts as SVG, made on the server: lines and bars without scripts."""

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

__all__ = ["sparkline", "timeline"]

_WIDTH: Final = 240.0
_HEIGHT: Final = 48.0
_POINTS: Final = 90
_LEAST: Final = 0.005
"""The least share of a bar that can be seen."""


def sparkline(values: Sequence[float], *, label: str, kind: str = "accent", most: float = 0.0) -> Markup:
    """Return a small line chart with its area filled; `label` says in words what it shows, for people who cannot see it."""
    points = _thin(values)
    top = max(*points, most, 1e-9) if points else 1.0
    step = _WIDTH / max(len(points) - 1, 1)
    places = [f"{index * step:.1f},{_HEIGHT - 2 - value / top * (_HEIGHT - 6):.1f}" for index, value in enumerate(points)]
    line = " ".join(places)
    return Markup(
        '<svg class="chart {kind}" viewBox="0 0 {width:.0f} {height:.0f}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        '<polygon points="0,{height:.0f} {line} {width:.0f},{height:.0f}"/><polyline points="{line}"/></svg>'
    ).format(kind=kind, width=_WIDTH, height=_HEIGHT, label=label, line=line)


def timeline(start: float, length: float, *, waited: float = 0.0, kind: str, label: str) -> Markup:
    """Return a bar for a part of a span of time, given as shares of it; the part that was waited has another colour."""
    left = min(max(start, 0.0), 1.0 - _LEAST)
    width = min(max(length, _LEAST), 1.0 - left)
    lighter = min(max(waited, 0.0), width)
    wait = f'<rect class="waited" x="{left:.1%}" width="{lighter:.1%}" height="8" y="2"/>' if lighter >= _LEAST else ""
    rail = "" if width == 1 else '<rect class="rail" width="100%" height="4" y="4"/>'
    rest = f'<rect class="{kind}" x="{left + lighter:.1%}" width="{max(width - lighter, _LEAST):.1%}" height="8" y="2"/>'
    return Markup('<svg class="timeline" role="img"><title>{}</title>{}</svg>').format(label, Markup(rail + wait + rest))  # noqa: S704 - numbers and names of ours


def _thin(values: Sequence[float]) -> list[float]:
    """Return at most so many values as a small chart can show, each the greatest of its group."""
    size = max(1, -(-len(values) // _POINTS))
    return [max(values[start : start + size]) for start in range(0, len(values), size)]
