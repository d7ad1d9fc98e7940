"""Settings: everything that 'toolyard.toml' may say, as one struct whose sections are structs.

A new section is a new field here; its keys, variables, checks and pages follow from it.
"""

from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from toolyard.limits import Limits
from toolyard.search_settings import SearchSettings
from toolyard.serving import Serving

__all__ = ["PREFIX", "Authentication", "Key", "Setting", "Settings", "known_settings"]

PREFIX: Final = "TOOLYARD_"
"""What the name of every variable begins with."""

_SECTION_PREFIXES: Final = {"serve": "", "limits": "LIMIT_"}


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An API key that is let in."""

    name: str
    """Whose it is, as one word."""
    digest: str
    """What is kept of it; 'toolyard key' tells it."""
    profile: str | None = None
    """The profile that its owner gets."""


class Authentication(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may come in over HTTP."""

    api_keys: tuple[Key, ...] = ()
    """The API keys that are let in."""
    issuer: str | None = None
    """The address of an OAuth issuer whose tokens are let in."""
    audience: str | tuple[str, ...] = ()
    """What tokens must be meant for; needed with 'issuer'."""
    jwks: str | None = None
    """The address of the issuer's public keys, if it does not tell that itself."""
    scopes: tuple[str, ...] = ()
    """Scopes that every token must have."""
    identity_claim: str = "sub"
    """The claim that says who it is."""
    profile_claim: str | None = None
    """The claim that chooses the profile; without it the scopes do."""
    profiles: dict[str, str] = {}
    """Which scope, or which value of the claim, gives which profile; '*' is everybody."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What 'toolyard.toml' may say."""

    target: str | None = None
    """The yard to serve: 'module:attr', 'file.py' or 'file.py:attr', a client's JSON file, or the address of a server."""
    profile: str | None = None
    """The profile of callers that have no other."""
    allow_eval: bool = False
    """Whether the tools that run code are published, too."""
    packs: tuple[str, ...] = ()
    """Packs whose tools are published, such as 'system'."""
    metatools: bool | tuple[str, ...] = True
    """Which tools about tools there are: true for all, false for none, or their names; 'learning' is named beside them."""
    state_dir: str | None = None
    """The directory for what must outlive the program (default: 'toolyard' in '$XDG_STATE_HOME' or '~/.local/state')."""
    serve: Serving = msgspec.field(default_factory=Serving)
    """How the yard is served."""
    limits: Limits = msgspec.field(default_factory=Limits)
    """The numbers that calls keep to."""
    search: SearchSettings = msgspec.field(default_factory=SearchSettings)
    """How tools are found."""
    auth: Authentication = msgspec.field(default_factory=Authentication)
    """Who may come in over HTTP."""


class Setting(NamedTuple):
    """One thing that can be set: its key, the names it has elsewhere, its type and its default."""

    key: str
    type: Any
    default: Any

    @property
    def section(self) -> str:
        """Return the section it stands in, empty at the top."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Return its key inside its section."""
        return self.key.rpartition(".")[2]

    @property
    def flag(self) -> str:
        """Return the option of the command line that sets it, if there is one."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Return the variable of the environment that sets it."""
        section = self.section
        prefix = _SECTION_PREFIXES.get(section, f"{section.upper()}_") if section else ""
        return f"{PREFIX}{prefix}{self.name.upper()}"


@cache
def known_settings() -> dict[str, Setting]:
    """Return every setting by its key, such as 'serve.port'."""
    found: dict[str, Setting] = {}
    defaults = Settings()
    for field in msgspec.structs.fields(Settings):
        default = getattr(defaults, field.name)
        if isinstance(default, msgspec.Struct):
            inner = [(f"{field.name}.{part.name}", part.type, getattr(default, part.name)) for part in msgspec.structs.fields(default)]
        else:
            inner = [(field.name, field.type, default)]
        found |= {key: Setting(key, kind, value) for key, kind, value in inner}
    return found
