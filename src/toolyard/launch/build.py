"""Settings of a command: what its flags, the environment and the file say, read and laid upon a yard."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from toolyard.config import Authentication, Config, ConfigError, Setting, known_settings, read_config
from toolyard.launch.errors import LaunchError
from toolyard.launch.notices import Notices
from toolyard.model.profile import Profile
from toolyard.providers import Provider
from toolyard.providers.upstream import LOCK_FILE
from toolyard.yard import Yard, upstream_providers

if TYPE_CHECKING:
    from toolyard.providers.upstream.settings import UpstreamSettings  # a yard without upstreams starts sooner
    from toolyard.transports.auth import Authenticator  # a server on stdio has none, and starts sooner without

__all__ = [
    "apply_settings",
    "check_profiles",
    "make_authenticator",
    "make_providers",
    "named_profile",
    "read_settings",
    "settings_of_code",
    "settled_upstreams",
]


def make_authenticator(config: Config) -> "Authenticator | None":
    """Return who decides who comes in, or nothing if nothing is said about it.

    Raises:
        LaunchError: What is said admits nobody, or cannot be.
    """
    if not config.given("auth"):
        return None
    try:
        authenticators = list(_authenticators(config.settings.auth))
    except (ImportError, ValueError) as error:
        raise LaunchError(str(error)) from error
    if not authenticators:
        raise LaunchError("The section '[auth]' lets nobody in: it needs 'api_keys', or 'issuer' and 'audience'.")
    if len(authenticators) == 1:
        return authenticators[0]
    from toolyard.transports.auth import AnyOf  # noqa: PLC0415 - see above

    return AnyOf(authenticators)


def _authenticators(auth: Authentication) -> "Iterator[Authenticator]":
    from toolyard.transports.auth import ApiKey, ApiKeys, Tokens  # noqa: PLC0415 - see above

    if auth.api_keys:
        yield ApiKeys(ApiKey(key.name, key.digest, key.profile) for key in auth.api_keys)
    if auth.issuer is not None:
        yield Tokens(
            auth.issuer,
            auth.audience,
            jwks=auth.jwks,
            scopes=auth.scopes,
            identity_claim=auth.identity_claim,
            profile_claim=auth.profile_claim,
            profiles=auth.profiles,
        )
    elif _about_tokens(auth):
        raise ValueError("Tokens need an 'issuer' in '[auth]': whose they are.")


def _about_tokens(auth: Authentication) -> bool:
    return bool(auth.audience or auth.jwks or auth.scopes or auth.profile_claim or auth.profiles)


_ABOVE: Final = "_TOOLYARD_UPSTREAM_OF"
"""Tells a program which files it is an upstream of, lest a server that reads one of them starts itself for ever."""
_LAID: Final = frozenset({"", "limits", "search"})
_SINGLE: Final = ("profile", "allow_eval", "metatools", "packs", "state_dir")


def settings_of_code(given: Mapping[str, Any], notices: Notices, path: str | None) -> Config:
    """Return the settings of a program that names its own.

    Raises:
        LaunchError: One is wrong.
    """
    return read_settings(given, notices, path=path, in_code=True)


def apply_settings(yard: Yard, config: Config, notices: Notices) -> None:
    """Give a yard that is not open yet what was set, and the upstreams; what was not set stays as its code has it.

    Raises:
        LaunchError: There is no such profile, pack or metatool, or something that an upstream refers to is not there.
    """
    settings = config.settings
    yard.adopt(config.profiles.values())
    check_profiles(yard, config)
    known = {_told_as(setting): key for key, setting in known_settings().items() if setting.section in _LAID and key != "target"}
    origins = {name: str(config.origins[key]) for name, key in known.items() if key in config.origins}
    providers = make_providers(yard, config, settled_upstreams(config, notices))
    if not origins and not providers and not config.profiles:
        return
    given: dict[str, Any] = {name: getattr(settings, name) for name in _SINGLE if name in config.origins}
    given |= {"profiles": config.profiles.values(), "providers": providers}
    try:
        yard.configure(origins=origins, limits=config.given("limits"), search=config.given("search"), **given)
    except ValueError as error:
        raise LaunchError(str(error)) from error


def _told_as(setting: Setting) -> str:
    """Return what a yard calls a setting: a limit by its name alone."""
    return setting.key if setting.section == "search" else setting.name


def check_profiles(yard: Yard, config: Config) -> None:
    """See that every profile that is named is there.

    Raises:
        LaunchError: One is not.
    """
    auth = config.settings.auth
    for name in (config.settings.profile, *(key.profile for key in auth.api_keys), *auth.profiles.values()):
        if name not in config.profiles:
            named_profile(yard, name)


def settled_upstreams(config: Config, notices: Notices) -> "dict[str, UpstreamSettings]":
    """Return the upstreams that are enabled, with everything they refer to, and say what a person should know.

    Raises:
        LaunchError: Something they refer to is not there.
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
                raise LaunchError(str(error)) from error
            marked = {**settled.env, _ABOVE: os.pathsep.join([*filter(None, above), here])}
            found[name] = replace(settled, env=marked) if settled.command is not None else settled
    _warn(warnings, notices)
    return found


def make_providers(yard: Yard, config: Config, upstreams: "Mapping[str, UpstreamSettings]") -> Sequence[Provider]:
    """Return the providers of upstreams, which keep what they must in the yard's state directory.

    Raises:
        LaunchError: There is no place for that.
    """
    lock = None if config.path is None else config.path.parent / LOCK_FILE
    longest = config.given("limits").get("name_characters", yard.limits.name_characters)
    try:
        return upstream_providers(upstreams, state_dir=config.settings.state_dir or yard.state_dir, lock=lock, longest=longest)
    except OSError as error:
        raise LaunchError(f"There is no place to keep what upstreams offer: {error.strerror}. Name one with 'state_dir'.") from error


def named_profile(yard: Yard, name: str | None) -> Profile:
    """Return a profile of the yard by its name, its own by default.

    Raises:
        LaunchError: There is none of that name.
    """
    try:
        return yard.profile_of(name)
    except KeyError:
        listed = ", ".join(f"'{known.name}'" for known in yard.profiles)
        raise LaunchError(f"There is no profile '{name}'. Known: {listed}.") from None


def read_settings(given: Mapping[str, Any], notices: Notices, *, path: str | None, in_code: bool = False) -> Config:
    """Return the settings of flags or code, of the environment and of the file, and say what is probably misspelt.

    Raises:
        LaunchError: One is wrong.
    """
    try:
        config = read_config(given, path=path, origin="code" if in_code else "flag")
    except ConfigError as error:
        raise LaunchError(str(error)) from error
    _warn(config.warnings, notices)
    return config


def _warn(warnings: Iterable[str], notices: Notices) -> None:
    for warning in () if notices.quiet else warnings:
        notices.say(warning)
