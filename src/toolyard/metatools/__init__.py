"""Metatools: tools about tools, which find, describe, run and chain the others.

They are ordinary tools that re-enter the funnel; the dispatcher does not know them.
"""

from toolyard.metatools.choosing import LEARNING, METATOOL_NAMES, guide, known_metatools, tell_metatools

__all__ = ["LEARNING", "METATOOL_NAMES", "guide", "known_metatools", "tell_metatools"]
