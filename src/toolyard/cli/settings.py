"""Settings of a command: what its flags, the environment and the file say, read and laid upon a yard."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from toolyard.assembly import LOCK, upstream_providers
from toolyard.cli.exits import CommandError
from toolyard.cli.terminal import Terminal
from toolyard.config import Config, ConfigError, Setting, known_settings, read_config
from toolyard.profile import Profile
from toolyard.providers import Provider
from toolyard.yard import Yard

if TYPE_CHECKING:
    from toolyard.cli.parser import Options  # a program that serves a yard of its own parses nothing
    from toolyard.providers.upstream.settings import UpstreamSettings  # a yard without upstreams starts sooner

__all__ = [
    "apply_settings",
    "check_profiles",
    "make_providers",
    "named_profile",
    "settings_of_code",
    "settings_of_options",
    "settled_upstreams",
]

_ABOVE: Final = "_TOOLYARD_UPSTREAM_OF"
"""Tells a program which files it is an upstream of, lest a server that reads one of them starts itself for ever."""

_LAID: Final = frozenset({"", "limits", "search"})
_SINGLE: Final = ("profile", "allow_eval", "metatools", "packs", "state_dir")


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


def apply_settings(yard: Yard, config: Config, terminal: Terminal) -> None:
    """Give a yard that is not open yet what was set, and the upstreams; what was not set stays as its code has it.

    Raises:
        CommandError: There is no such profile, pack or metatool, or something that an upstream refers to is not there.
    """
    settings = config.settings
    yard.adopt(config.profiles.values())
    check_profiles(yard, config)
    known = {_told_as(setting): key for key, setting in known_settings().items() if setting.section in _LAID and key != "target"}
    origins = {name: str(config.origins[key]) for name, key in known.items() if key in config.origins}
    providers = make_providers(yard, config, settled_upstreams(config, terminal))
    if not origins and not providers and not config.profiles:
        return
    given: dict[str, Any] = {name: getattr(settings, name) for name in _SINGLE if name in config.origins}
    given |= {"profiles": config.profiles.values(), "providers": providers}
    try:
        yard.configure(origins=origins, limits=config.given("limits"), search=config.given("search"), **given)
    except ValueError as error:
        raise CommandError(str(error)) from error


def _told_as(setting: Setting) -> str:
    """Return what a yard calls a setting: a limit by its name alone."""
    return setting.key if setting.section == "search" else setting.name


def check_profiles(yard: Yard, config: Config) -> None:
    """See that every profile that is named is there.

    Raises:
        CommandError: One is not.
    """
    auth = config.settings.auth
    for name in (config.settings.profile, *(key.profile for key in auth.api_keys), *auth.profiles.values()):
        if name not in config.profiles:
            named_profile(yard, name)


def settled_upstreams(config: Config, terminal: Terminal) -> "dict[str, UpstreamSettings]":
    """Return the upstreams that are enabled, with everything they refer to, and say what a person should know.

    Raises:
        CommandError: Something they refer to is not there.
    """
    warnings: list[str] = []
    found: dict[str, UpstreamSettings] = {}
    for name, written in config.upstreams.items():
        above = os.environ.get(_ABOVE, "").split(os.pathsep)
        here = os.path.realpath(written.place.file or "")
        if written.place.file is not None and here in above:
            warnings.append(f"{written.place} is left out, because this server is itself started as an upstream of that file.")
        elif written.settings.enabled:
            try:
                settled = written.settled(os.environ, warnings.append)
            except ConfigError as error:
                raise CommandError(str(error)) from error
            marked = {**settled.env, _ABOVE: os.pathsep.join([*filter(None, above), here])}
            found[name] = replace(settled, env=marked) if settled.command is not None else settled
    _warn(warnings, terminal)
    return found


def make_providers(yard: Yard, config: Config, upstreams: "Mapping[str, UpstreamSettings]") -> Sequence[Provider]:
    """Return the providers of upstreams, which keep what they must in the yard's state directory.

    Raises:
        CommandError: There is no place for that.
    """
    lock = None if config.path is None else config.path.parent / LOCK
    longest = config.given("limits").get("name_characters", yard.limits.name_characters)
    try:
        return upstream_providers(upstreams, state_dir=config.settings.state_dir or yard.state_dir, lock=lock, longest=longest)
    except OSError as error:
        raise CommandError(f"There is no place to keep what upstreams offer: {error.strerror}. Name one with 'state_dir'.") from error


def named_profile(yard: Yard, name: str | None) -> Profile:
    """Return a profile of the yard by its name, its own by default.

    Raises:
        CommandError: There is none of that name.
    """
    try:
        return yard.profile_of(name)
    except KeyError:
        listed = ", ".join(f"'{known.name}'" for known in yard.profiles)
        raise CommandError(f"There is no profile '{name}'. Known: {listed}.") from None


def _checked(given: Mapping[str, Any], terminal: Terminal, *, path: str | None, in_code: bool = False) -> Config:
    try:
        config = read_config(given, path=path, origin="code" if in_code else "flag")
    except ConfigError as error:
        raise CommandError(str(error)) from error
    _warn(config.warnings, terminal)
    return config


def _warn(warnings: Iterable[str], terminal: Terminal) -> None:
    for warning in () if terminal.quiet else warnings:
        terminal.say(warning)
