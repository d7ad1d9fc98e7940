"""Metatools: tools about tools, which find, describe, run and chain the others.

They are ordinary tools that re-enter the funnel; the dispatcher does not know them.
"""

from toolyard.metatools.provider import GUIDE, LEARNING, METATOOL_NAMES, Metatools, known_metatools, tell_metatools
from toolyard.metatools.subject import Subject

__all__ = ["GUIDE", "LEARNING", "METATOOL_NAMES", "Metatools", "Subject", "known_metatools", "tell_metatools"]
