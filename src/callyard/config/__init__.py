"""Settings from 'callyard.toml', the environment and flags, as data; nothing is built from them here."""

from callyard.config.convert import ConfigError
from callyard.config.read import CLIENT_FILES, Config, Origin, Stamp, read_config, stamp_of
from callyard.config.settings import Authentication, Key, Setting, Settings, known_settings

__all__ = [
    "CLIENT_FILES",
    "Authentication",
    "Config",
    "ConfigError",
    "Key",
    "Origin",
    "Setting",
    "Settings",
    "Stamp",
    "known_settings",
    "read_config",
    "stamp_of",
]
