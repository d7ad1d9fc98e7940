"""Settings as they are told: each with its value and where that came from."""

from collections.abc import Mapping
from typing import Any

from toolyard._version import VERSION
from toolyard.limits import Limits
from toolyard.profile import EVERYTHING
from toolyard.search_settings import SearchSettings

__all__ = ["told"]


def told(values: Mapping[str, Any], origins: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return a yard's settings; one without an origin is from code where it differs from the default."""
    plain = {"name": "yard", "version": VERSION, "profile": EVERYTHING.name, "packs": list[str](), "allow_eval": False, "state_dir": None}
    defaults = {**plain, "search.strategy": SearchSettings().strategy, "metatools": True, **Limits().as_dict()}
    return {
        key: {"value": value, "from": origins.get(key, "default" if value == defaults[key] else "code")} for key, value in values.items()
    }
