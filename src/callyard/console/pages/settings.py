"""The page 'Settings': every setting with its value and where that came from, secrets masked."""

from functools import cache
from typing import Any, ClassVar, NamedTuple

import msgspec

from callyard.config.settings import Settings, known_settings, meanings
from callyard.console.page import Page, View
from callyard.model.envelope import encode

__all__ = ["SettingsPage"]


class SettingRow(NamedTuple):
    """A setting as people see it."""

    key: str
    value: str
    origin: str
    """Such as 'environment CALLYARD_PORT'; 'default' for one that nobody set."""
    meaning: str = ""
    variable: str = ""

    @property
    def is_set(self) -> bool:
        """Return whether somebody set it."""
        return self.origin != "default"


class SettingsPage(Page):
    """The settings of the server."""

    name: ClassVar[str] = "settings"
    title: ClassVar[str] = "Settings"
    template: ClassVar[str] = "settings"
    live_seconds: ClassVar[float] = 0.0

    async def context(self, view: View) -> dict[str, Any]:
        """Return the settings by section."""
        words, only_set = view.query.get("q", "").lower(), bool(view.query.get("set"))
        sections: dict[str, list[SettingRow]] = {}
        count = 0
        for row in self._rows():
            count += row.is_set
            if words in f"{row.key} {row.value} {row.origin} {row.meaning}".lower() and (row.is_set or not only_set):
                head = row.key.partition(".")[0] if "." in row.key else "general"
                sections.setdefault(head, []).append(row)
        path = self.parts.config.path
        return {"sections": sections, "file": "" if path is None else str(path), "set_count": count}

    def _rows(self) -> list[SettingRow]:
        """Return every setting; what the code of the yard sets is shown as it is in effect."""
        in_effect = self.yard.settings()
        rows: list[SettingRow] = []
        config = self.parts.config
        for key in (*known_settings(), *config.tables):
            value, origin = config.shown(key), str(config.origin(key))
            setting = known_settings().get(key)
            name = key.removeprefix("limits.")
            own = in_effect.get(name) if setting is not None and origin == "default" else None
            if own is not None and own["from"] == "code":
                value, origin = own["value"], "code"
            variable = "" if setting is None else setting.variable
            rows.append(SettingRow(key, _text(value), origin, _meanings().get(key, ""), variable))
        return rows


@cache
def _meanings() -> dict[str, str]:
    """Return what each setting means, by key."""
    defaults = Settings()
    sections: dict[str, type] = {
        "": Settings,
        **{field.name: type(getattr(defaults, field.name)) for field in msgspec.structs.fields(Settings)},
    }
    texts = {section: meanings(struct) for section, struct in sections.items() if issubclass(struct, msgspec.Struct)}
    return {key: texts.get(setting.section, {}).get(setting.name, "") for key, setting in known_settings().items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "–" if value is None else encode(value).decode()  # noqa: RUF001 - a dash is meant
