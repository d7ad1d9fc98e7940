"""Settings from 'callyard.toml', the environment and flags, as data; nothing is built from them here.

Its files:

- `apis`: APIs as they are configured in 'callyard.toml'
- `convert`: conversion of values that people write to the types of the settings, and of the references in them
- `packs`: tables `[pack.NAME]` of packs: read as they are, and converted once their pack is imported
- `probes`: tables `[probe.NAME]`: what is checked at an upstream from outside
- `read`: flags override the environment, that overrides the file, and that overrides the defaults
- `settings`: all settings of 'callyard.toml' as one struct whose sections are structs
- `upstreams`: upstreams as they are configured: in 'callyard.toml', in an MCP client's file, or as a URL
"""

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
