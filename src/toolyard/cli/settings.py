"""Settings of a command: what its flags, the environment and the file say, read and laid upon a yard."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from toolyard.cli.exits import CommandError
from toolyard.cli.opening import named_profile
from toolyard.cli.terminal import Terminal
from toolyard.config import Config, ConfigError, Setting, known_settings, read_config
from toolyard.yard import Yard

if TYPE_CHECKING:
    from toolyard.cli.parser import Options  # a program that serves a yard of its own parses nothing

__all__ = ["apply_settings", "settings_of_code", "settings_of_options"]

_LAID: Final = frozenset({"", "limits", "search"})
_SINGLE: Final = ("profile", "allow_eval", "metatools", "state_dir")


def settings_of_options(options: "Options", terminal: Terminal) -> Config:
    """Return the settings of a command line, and say which variables are probably misspelt.

    Raises:
        CommandError: One is wrong.
    """
    target, path = options.target, options.config
    if target.endswith(".toml"):
        if path is not None:
            raise CommandError(f"'{target}' is a file with settings, and so is '{path}'. Name one of them.")
        target, path = "", target
    return _checked({**options.given, **({"target": target} if target else {})}, terminal, path=path)


def settings_of_code(given: Mapping[str, Any], terminal: Terminal, path: str | None) -> Config:
    """Return the settings of a program that names its own.

    Raises:
        CommandError: One is wrong.
    """
    return _checked(given, terminal, path=path, in_code=True)


def apply_settings(yard: Yard, config: Config) -> None:
    """Give a yard that is not open yet what was set; what was not set stays as its code has it.

    Raises:
        CommandError: A profile or a metatool is named that there is not.
    """
    settings = config.settings
    for name in (settings.profile, *(key.profile for key in settings.auth.api_keys), *settings.auth.profiles.values()):
        named_profile(yard, name)
    known = {_told_as(setting): key for key, setting in known_settings().items() if setting.section in _LAID and key != "target"}
    origins = {name: str(config.origins[key]) for name, key in known.items() if key in config.origins}
    if not origins:
        return
    given: dict[str, Any] = {name: getattr(settings, name) for name in _SINGLE if name in config.origins}
    try:
        yard.configure(origins=origins, limits=config.given("limits"), search=config.given("search"), **given)
    except ValueError as error:
        raise CommandError(str(error)) from error


def _told_as(setting: Setting) -> str:
    """Return what a yard calls a setting: a limit by its name alone."""
    return setting.key if setting.section == "search" else setting.name


def _checked(given: Mapping[str, Any], terminal: Terminal, *, path: str | None, in_code: bool = False) -> Config:
    try:
        config = read_config(given, path=path, origin="code" if in_code else "flag")
    except ConfigError as error:
        raise CommandError(str(error)) from error
    if not terminal.quiet:
        for warning in config.warnings:
            terminal.say(warning)
    return config
