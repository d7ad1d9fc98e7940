"""Configuration: what may be set, in 'toolyard.toml', in the environment or by flags; it builds nothing."""

from toolyard.config.convert import ConfigError
from toolyard.config.read import FOREIGN, Config, Origin, Stamp, read_config, stamp_of
from toolyard.config.settings import Authentication, Key, Setting, Settings, known_settings

__all__ = [
    "FOREIGN",
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
