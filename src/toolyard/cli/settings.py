"""Settings of a command: what its flags, the environment and the file say, read and laid upon a yard."""

from collections.abc import Mapping
from typing import Any

import msgspec

from toolyard.cli.exits import CommandError
from toolyard.cli.opening import named_profile
from toolyard.cli.parser import Options
from toolyard.cli.terminal import Terminal
from toolyard.config import Config, ConfigError, read_config
from toolyard.yard import Yard

__all__ = ["apply_settings", "settings_of_code", "settings_of_options"]


def settings_of_options(options: Options, terminal: Terminal) -> Config:
    """Return the settings of a command line, and say which variables are probably misspelt.

    Raises:
        CommandError: One is wrong.
    """
    target = {"target": options.target} if options.target else {}
    return _checked({**options.given, **target}, terminal, path=options.config)


def settings_of_code(given: Mapping[str, Any], terminal: Terminal, path: str | None) -> Config:
    """Return the settings of a program that names its own.

    Raises:
        CommandError: One is wrong.
    """
    return _checked(given, terminal, path=path, in_code=True)


def apply_settings(yard: Yard, config: Config) -> None:
    """Give a yard that is not open yet what was set; what was not set stays as its code has it.

    Raises:
        CommandError: A profile is named that the yard does not have.
    """
    settings = config.settings
    if settings.profile is not None:
        yard.profile = named_profile(yard, settings.profile)
    for name in (*(key.profile for key in settings.auth.api_keys), *settings.auth.profiles.values()):
        named_profile(yard, name)
    if "allow_eval" in config.origins:
        yard.registry.allow_eval = settings.allow_eval
    for name, value in config.given("limits").items():
        msgspec.structs.force_setattr(yard.limits, name, value)  # all parts of the yard hold this one object


def _checked(given: Mapping[str, Any], terminal: Terminal, *, path: str | None, in_code: bool = False) -> Config:
    try:
        config = read_config(given, path=path, origin="code" if in_code else "flag")
    except ConfigError as error:
        raise CommandError(str(error)) from error
    if not terminal.quiet:
        for warning in config.warnings:
            terminal.say(warning)
    return config
