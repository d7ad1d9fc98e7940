"""From settings to a yard: reads the settings of a command or program and applies them to a yard that is not open yet."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from callyard._internal.files import find_state_dir
from callyard._internal.logfmt import log_value
from callyard._internal.project import project_dir
from callyard.config import Authentication, Config, ConfigError, Setting, known_settings, read_config
from callyard.launch.errors import LaunchError, as_launch_error
from callyard.launch.notices import Notices
from callyard.launch.policy import policy_options
from callyard.model.limits import Limits
from callyard.model.profile import Profile
from callyard.providers import Provider
from callyard.state.memory import MemoryStore
from callyard.state.store import Store
from callyard.yard import LOCK_FILE, ResolvedUpstream, Yard, upstream_providers

if TYPE_CHECKING:
    from callyard.transports.auth import Authenticator  # stdio needs none and starts sooner without

__all__ = [
    "apply_settings",
    "check_profiles",
    "find_profile",
    "make_authenticator",
    "make_providers",
    "make_store",
    "read_settings",
    "resolve_upstreams",
]


def make_authenticator(config: Config) -> "Authenticator | None":
    """Return the authenticator of the section `[auth]`, or nothing without that section.

    Raises:
        LaunchError: The section is wrong, or accepts nobody.
    """
    if not config.explicit("auth"):
        return None
    with as_launch_error(ImportError, ValueError):
        authenticators = list(_authenticators(config.settings.auth))
    if not authenticators:
        raise LaunchError("The section '[auth]' accepts nobody. Add 'api_keys', or 'issuer' and 'audience'.")
    if len(authenticators) == 1:
        return authenticators[0]
    from callyard.transports.auth import AnyOf  # noqa: PLC0415 - stdio starts sooner without

    return AnyOf(authenticators)


def _authenticators(auth: Authentication) -> "Iterator[Authenticator]":
    from callyard.transports.auth import ApiKey, ApiKeys, Tokens  # noqa: PLC0415 - stdio starts sooner without

    if auth.api_keys:
        yield ApiKeys(ApiKey(key.name, key.digest, key.profile, key.profiles) for key in auth.api_keys)
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
    elif auth.audience or auth.jwks or auth.scopes or auth.profile_claim or auth.profiles:
        raise ValueError("Tokens need an 'issuer' in '[auth]'.")


_UPSTREAM_OF: Final = "_CALLYARD_UPSTREAM_OF"
"""Variable with the files that have a server as an upstream, lest it reads one of them and starts itself for ever."""
_APPLIED_SECTIONS: Final = frozenset({"", "limits", "runtime", "search"})
_LOAD_SECTIONS: Final = frozenset({"queue", "rates", "budgets"})
_log = logging.getLogger(__name__)
_STORE_FILE: Final = "store.sqlite3"
"""The name of a project's store in the folder of its state."""
_YARD_OPTIONS: Final = ("profile", "allow_eval", "metatools", "packs", "shape", "state_dir")


def apply_settings(yard: Yard, config: Config, notices: Notices, *, serves: bool = False) -> None:
    """Apply settings and upstreams to a yard that is not open yet; values that were not set stay as its code has them.

    A yard that is served and has no store yet gets the one in the SQLite file of its project. The limits of calls are those of a
    server: a command that makes one call has no queue, and must not spend the budgets of callers.

    Raises:
        LaunchError: A profile, pack, metatool or store does not exist.
    """
    settings = config.settings
    yard.adopt(config.profiles.values())
    check_profiles(yard, config)
    sections = _APPLIED_SECTIONS | _LOAD_SECTIONS if serves else _APPLIED_SECTIONS
    applied = {key: setting for key, setting in known_settings().items() if setting.section in sections and key != "target"}
    origins = {_yard_name(setting): str(config.origins[key]) for key, setting in applied.items() if key in config.origins}
    providers = make_providers(yard, config, resolve_upstreams(config, notices))
    policy = policy_options(config, notices)
    stores = _store_options(yard, config, serves=serves)
    if config.rules and not stores and not yard.has_store:  # a command: an approval must outlive its process, and nothing else does
        policy["approval_store"] = make_store(config, state_dir=yard.state_dir)
    if not origins and not providers and not config.profiles and not stores and not policy:
        return
    options: dict[str, Any] = {**stores, **policy} | {name: getattr(settings, name) for name in _YARD_OPTIONS if name in config.origins}
    options |= {"profiles": config.profiles.values(), "providers": providers} | {
        name: config.explicit(name) for name in sections & _LOAD_SECTIONS
    }
    with as_launch_error(ValueError):
        yard.configure(
            origins=origins,
            limits=config.explicit("limits"),
            search=config.explicit("search"),
            runtime=config.explicit("runtime"),
            **options,
        )


def make_store(config: Config, *, state_dir: str | None = None, max_bytes: int = Limits().store_bytes) -> Store:
    """Return the store that a server with these settings uses: by default the SQLite file of the project.

    Raises:
        LaunchError: There is no such store, or no state directory.
    """
    chosen = config.settings.store or "sqlite"
    if chosen == "memory":
        return MemoryStore(max_bytes=max_bytes)
    kind, colon, path = chosen.partition(":")
    if kind != "sqlite" or bool(colon) is not bool(path):
        raise LaunchError(f"There is no store '{chosen}'. Write 'memory', 'sqlite' or 'sqlite:PATH'.")
    try:
        file = path or project_dir(find_state_dir(config.settings.state_dir or state_dir), config.project) / _STORE_FILE
    except OSError as error:
        raise LaunchError(f"The store has no place: {error.strerror}. Set 'state_dir', or name a file with 'sqlite:PATH'.") from error
    from callyard.state.sqlite import SqliteStore  # noqa: PLC0415 - a yard without one starts sooner

    return SqliteStore(file)


def _store_options(yard: Yard, config: Config, *, serves: bool) -> dict[str, Store]:
    """Return the store of a yard by its name in `Yard.configure`, or nothing if the yard keeps what it has."""
    is_chosen = config.settings.store is not None
    if not is_chosen and (yard.has_store or not serves):
        return {}
    max_bytes = config.explicit("limits").get("store_bytes", yard.limits.store_bytes)
    try:
        store = make_store(config, state_dir=yard.state_dir, max_bytes=max_bytes)
    except LaunchError as error:
        if is_chosen:
            raise
        _log.warning("store_in_memory reason=%s", log_value(error.message))
        return {}
    return {"store" if is_chosen else "default_store": store}


def _yard_name(setting: Setting) -> str:
    """Return the name of a setting in `Yard.configure`, where limits have no prefix."""
    return setting.name if setting.section in {"", "limits"} else setting.key


def check_profiles(yard: Yard, config: Config) -> None:
    """Check that every profile that the settings name exists.

    Raises:
        LaunchError: One does not.
    """
    auth = config.settings.auth
    of_keys = [name for key in auth.api_keys for name in (key.profile, *key.profiles)]
    for name in (config.settings.profile, *of_keys, *auth.profiles.values()):
        if name not in config.profiles:
            find_profile(yard, name)


def resolve_upstreams(config: Config, notices: Notices) -> dict[str, ResolvedUpstream]:
    """Return the enabled upstreams with variables and secrets filled in, and write warnings; one without them cannot be used."""
    warnings: list[str] = []
    resolved: dict[str, ResolvedUpstream] = {}
    for name, entry in config.upstreams.items():
        files = os.environ.get(_UPSTREAM_OF, "").split(os.pathsep)
        file = os.path.realpath(entry.location.file or "")
        if entry.location.file is not None and file in files:
            warnings.append(f"{entry.location} is left out, because this server is itself an upstream of that file.")
        elif entry.settings.enabled:
            try:
                settings, problem = entry.resolve(os.environ, warnings.append), ""
            except ConfigError as error:  # it must not stop the others
                settings, problem = entry.settings, str(error)
                warnings.append(f"The upstream '{name}' cannot be used. {problem}")
            env = {**settings.env, _UPSTREAM_OF: os.pathsep.join([*filter(None, files), file])}
            resolved[name] = ResolvedUpstream(replace(settings, env=env) if settings.command is not None else settings, problem)
    _warn(warnings, notices)
    return resolved


def make_providers(yard: Yard, config: Config, upstreams: Mapping[str, ResolvedUpstream]) -> Sequence[Provider]:
    """Return the providers of upstreams, which keep state in the yard's state directory.

    Raises:
        LaunchError: There is no state directory.
    """
    lock = None if config.path is None else config.path.parent / LOCK_FILE
    longest = config.explicit("limits").get("name_characters", yard.limits.name_characters)
    try:
        return upstream_providers(
            upstreams, state_dir=config.settings.state_dir or yard.state_dir, project=config.project, lock=lock, longest=longest
        )
    except OSError as error:
        raise LaunchError(f"The state directory cannot be used: {error.strerror}. Set another with 'state_dir'.") from error


def find_profile(yard: Yard, name: str | None) -> Profile:
    """Return a profile of the yard by name, or its default.

    Raises:
        LaunchError: There is no such profile.
    """
    try:
        return yard.profile_of(name)
    except KeyError:
        listed = ", ".join(f"'{known.name}'" for known in yard.profiles)
        raise LaunchError(f"There is no profile '{name}'. Known: {listed}.") from None


def read_settings(overrides: Mapping[str, Any], notices: Notices, *, path: str | None, in_code: bool = False) -> Config:
    """Return the settings of flags or code, the environment and the file, and write warnings.

    Raises:
        LaunchError: A setting is wrong.
    """
    with as_launch_error(ConfigError):
        config = read_config(overrides, path=path, origin="code" if in_code else "flag")
    _warn(config.warnings, notices)
    return config


def _warn(warnings: Iterable[str], notices: Notices) -> None:
    for warning in warnings:
        notices.inform(warning)
