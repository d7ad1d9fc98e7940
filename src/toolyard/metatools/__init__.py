"""Metatools: tools about tools, which find, describe, run and chain the others.

They are ordinary tools that re-enter the funnel; the dispatcher does not know them.
"""

from toolyard.metatools.choosing import GUIDE, LEARNING, METATOOL_NAMES, known_metatools, tell_metatools

__all__ = ["GUIDE", "LEARNING", "METATOOL_NAMES", "known_metatools", "tell_metatools"]
