"""Configuration: what may be set, in 'toolyard.toml', in the environment or by flags; it builds nothing."""

from toolyard.config.fitting import ConfigError
from toolyard.config.reading import Config, Origin, read_config
from toolyard.config.settings import Authentication, Key, Setting, Settings, known_settings

__all__ = [
    "Authentication",
    "Config",
    "ConfigError",
    "Key",
    "Origin",
    "Setting",
    "Settings",
    "known_settings",
    "read_config",
]
