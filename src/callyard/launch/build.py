"""From settings to a yard: reads settings and applies them to a yard that is not open yet."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from callyard._internal.files import find_state_dir
from callyard._internal.lazy import load
from callyard._internal.logfmt import log_value
from callyard._internal.project import project_dir
from callyard._internal.signed_tokens import environment_secret
from callyard.config import Authentication, Config, ConfigError, known_settings, read_config
from callyard.config.convert import Location, References
from callyard.launch.errors import LaunchError, as_launch_error
from callyard.launch.notices import Notices
from callyard.model.envelope import fingerprint
from callyard.model.limits import Limits
from callyard.model.profile import Profile
from callyard.policy.rules import Rules
from callyard.policy.webhook import HttpDecisionPoint, HttpWebhook
from callyard.providers import Provider
from callyard.providers.openapi import make_apis
from callyard.providers.upstream import LOCK_FILE, make_upstreams
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.settings import ResolvedUpstream
from callyard.state.memory import MemoryStore
from callyard.state.redis import RedisStore
from callyard.state.redis_url import SCHEMES, hide_password
from callyard.state.sqlite import SqliteStore
from callyard.state.store import Store
from callyard.transports.auth import AnyOf, ApiKey, ApiKeys, Authenticator, Tokens
from callyard.transports.auth.authenticator import check_url
from callyard.yard import Yard

if TYPE_CHECKING:
    from callyard.providers.openapi.settings import ResolvedApi
    from callyard.providers.upstream.oauth.vault import Vaults

__all__ = [
    "apply_settings",
    "check_profiles",
    "find_profile",
    "find_shared_store",
    "get_json",
    "hash_configuration",
    "make_authenticator",
    "make_providers",
    "make_store",
    "make_vaults",
    "policy_options",
    "post_json",
    "read_settings",
    "resolve_sources",
    "resolve_upstreams",
    "webhook_secret",
]


def make_authenticator(config: Config) -> Authenticator | None:
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
    return authenticators[0] if len(authenticators) == 1 else AnyOf(authenticators)


def _authenticators(auth: Authentication) -> Iterator[Authenticator]:
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
_LOCAL_KEYS: Final = frozenset(
    (
        *("target", "state_dir", "store", "monitor.audit_log", "monitor.access_log"),
        *(f"serve.{name}" for name in ("host", "port", "socket", "workers", "reload", "tls", "tls_cert", "tls_key")),
    )
)
"""Settings that differ between the machines of one yard."""
_ANSWER_BYTES: Final = 64 * 1024
_YARD_OPTIONS: Final = ("profile", "allow_eval", "metatools", "packs", "shape", "state_dir")


def apply_settings(
    yard: Yard, config: Config, notices: Notices, *, serves: bool = False, logins: Config | None = None
) -> None:
    """Apply settings and upstreams to a yard that is not open yet; values that were not set stay as its code has them.

    A yard that is served and has no store yet gets the one in the SQLite file of its project. The limits of calls are
    those of a server: a command that makes one call has no queue, and must not spend the budgets of callers.
    With `logins`, the logins of upstreams are those of these settings, whatever the store of the yard.

    Raises:
        LaunchError: A profile, pack, metatool or store does not exist.
    """
    settings = config.settings
    yard.adopt(config.profiles.values())
    check_profiles(yard, config)
    sections = _APPLIED_SECTIONS | _LOAD_SECTIONS if serves else _APPLIED_SECTIONS
    origins = {
        # limits have no prefix in `Yard.configure`
        setting.name if setting.section in {"", "limits"} else key: str(config.origins[key])
        for key, setting in known_settings().items()
        if setting.section in sections and key != "target" and key in config.origins
    }
    sources = resolve_sources(config, notices)
    providers = make_providers(yard, config, sources, logins=logins)
    policy = policy_options(config, notices)
    stores = _store_options(yard, config, serves=serves)
    if config.rules and not stores and not yard.has_store:
        # a command: an approval must outlive its process, and nothing else does
        policy["approval_store"] = make_store(config, state_dir=yard.state_dir)
    is_elsewhere = (settings.target or "").startswith(("http://", "https://"))  # the server there has its own store
    kept = None if stores or yard.has_store or is_elsewhere else _kept_store(config, yard)
    if kept is not None:
        policy["switch_store"] = kept
    if not any((origins, providers, config.profiles, config.pack_tables, stores, policy)):
        return
    options: dict[str, Any] = {**stores, **policy} | {
        name: getattr(settings, name) for name in _YARD_OPTIONS if name in config.origins
    }
    options |= {"pack_tables": config.pack_tables, "project": config.project}
    options |= {"profiles": config.profiles.values(), "providers": providers} | {
        name: config.explicit(name) for name in sections if name
    }
    with as_launch_error(ValueError):
        yard.configure(origins=origins, **options)


def hash_configuration(config: Config) -> str:
    """Return a hash of what should be the same in all servers of a yard, and not of what belongs to one machine."""
    values = {key: value for key, value in config.values.items() if key not in _LOCAL_KEYS}
    return fingerprint(values, config.tables, config.rules, config.profiles)[:12]


def make_store(config: Config, *, state_dir: str | None = None, max_bytes: int = Limits().store_bytes) -> Store:
    """Return the store that a server with these settings uses: by default the SQLite file of the project.

    Raises:
        LaunchError: There is no such store, no state directory, or a wrong URL.
    """
    chosen = _chosen_store(config)
    if chosen == "memory":
        return MemoryStore(max_bytes=max_bytes)
    kind, colon, path = chosen.partition(":")
    if path.startswith("//") and kind in SCHEMES:
        with as_launch_error(ValueError):
            return RedisStore(chosen, replicas=config.settings.store_replicas)
    if kind != "sqlite" or bool(colon) is not bool(path):
        known = "'memory', 'sqlite', 'sqlite:PATH' or 'redis://HOST:PORT'"
        raise LaunchError(f"There is no store '{hide_password(chosen)}'. Write {known}.")
    try:
        file = path or project_dir(find_state_dir(config.settings.state_dir or state_dir), config.project) / _STORE_FILE
    except OSError as error:
        way_out = "Set 'state_dir', or name a file with 'sqlite:PATH'."
        raise LaunchError(f"The store has no place: {error.strerror}. {way_out}") from error
    return SqliteStore(file)


def _chosen_store(config: Config) -> str:
    """Return the setting with its references to variables and secrets resolved, so that no file has a password."""
    folder = Path() if config.path is None else config.path.parent
    warn = partial(_log.warning, "store_warning reason=%r")
    references = References(variables=os.environ, folder=folder, warn=warn)
    with as_launch_error(ConfigError):
        return references.resolve(config.settings.store or "sqlite", Location("store"))


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


def _kept_store(config: Config, yard: Yard) -> Store | None:
    """Return the store of the project's servers, if there is one: commands obey what operators disabled."""
    with suppress(LaunchError, OSError):
        store = make_store(config, state_dir=yard.state_dir)
        return store if isinstance(store, SqliteStore) and store.path.exists() else None
    return None


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


def resolve_sources(config: Config, notices: Notices) -> "dict[str, ResolvedUpstream | ResolvedApi]":
    """Return the enabled upstreams and APIs with variables and secrets filled in, and warn of each that lacks one."""
    found: dict[str, ResolvedUpstream | ResolvedApi] = {**resolve_upstreams(config, notices)}
    for name, entry in config.apis.items():
        if entry.settings.enabled:
            resolved = found[name] = entry.try_resolve(os.environ, notices.inform)
            if resolved.problem:
                notices.inform(f"The API '{name}' cannot be used. {resolved.problem}")
    return found


def resolve_upstreams(config: Config, notices: Notices) -> dict[str, ResolvedUpstream]:
    """Return the enabled upstreams with variables and secrets filled in.

    Writes a warning for each variable or secret that is missing; without it the upstream cannot be used.
    """
    resolved: dict[str, ResolvedUpstream] = {}
    for name, entry in config.upstreams.items():
        files = os.environ.get(_UPSTREAM_OF, "").split(os.pathsep)
        file = os.path.realpath(entry.location.file or "")
        if entry.location.file is not None and file in files:
            notices.inform(f"{entry.location} is left out, because this server is itself an upstream of that file.")
        elif entry.settings.enabled:
            found = resolved[name] = entry.try_resolve(os.environ, notices.inform)
            if found.problem:
                notices.inform(f"The upstream '{name}' cannot be used. {found.problem}")
            if found.settings.command is not None:
                env = {**found.settings.env, _UPSTREAM_OF: os.pathsep.join([*filter(None, files), file])}
                resolved[name] = replace(found, settings=replace(found.settings, env=env))
    return resolved


def make_providers(
    yard: Yard,
    config: Config,
    sources: "Mapping[str, ResolvedUpstream | ResolvedApi]",
    *,
    logins: Config | None = None,
) -> Sequence[Provider]:
    """Return the providers of upstreams and APIs, which keep state in the yard's state directory.

    Raises:
        LaunchError: There is no state directory.
    """
    try:
        upstreams = {name: one for name, one in sources.items() if isinstance(one, ResolvedUpstream)}
        apis = {name: one for name, one in sources.items() if not isinstance(one, ResolvedUpstream)}
        options: Any = {
            "state_dir": config.settings.state_dir or yard.state_dir,
            "project": config.project,
            "lock": None if config.path is None else config.path.parent / LOCK_FILE,
            "longest": config.explicit("limits").get("name_characters", yard.limits.name_characters),
            "vaults": make_vaults(logins or config) if sources else None,
        }
        return [*make_upstreams(upstreams, **options), *make_apis(apis, **options)]
    except OSError as error:
        reason = f"The state directory cannot be used: {error.strerror}."
        raise LaunchError(f"{reason} Set another with 'state_dir'.") from error


def find_shared_store(config: Config) -> Store | None:
    """Return the store of the settings if several machines share it.

    Raises:
        LaunchError: It has a wrong URL.
    """
    store = None if config.settings.store is None else make_store(config)
    return store if store is not None and store.is_shared else None


def make_vaults(config: Config) -> "Vaults | None":
    """Return the vaults of logins in the store that machines share, or None: then each keeps its own.

    They have connections of their own, because commands use them without the store of a yard.

    Raises:
        LaunchError: The store has a wrong URL.
    """
    secret, store = environment_secret(), find_shared_store(config)
    if not secret or store is None:
        return None
    vaults: Vaults = load("callyard.providers.upstream.oauth.shared_vault").SharedVaults(store, secret)
    return vaults


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
    for warning in config.warnings:
        notices.inform(warning)
    return config


def policy_options(config: Config, notices: Notices) -> dict[str, Any]:
    """Return the options for `Yard.configure` that concern rules and approvals.

    Raises:
        LaunchError: A rule, a URL or a secret is wrong.
    """
    settings, options = config.settings, dict[str, Any]()
    if config.rules:
        with as_launch_error(ValueError):
            Rules(config.rules)  # compiles the patterns
        options["rules"] = config.rules
    operators = (*settings.approvals.operators, *(f"key:{key.name}" for key in settings.auth.api_keys if key.operator))
    if operators:
        options["operators"] = operators
    if settings.approvals.webhook is not None:
        options["webhook"] = _webhook(config, notices)
    if settings.policy.url is not None:
        with as_launch_error(ValueError):
            check_url("policy.url", settings.policy.url)
        options["decision_point"] = HttpDecisionPoint(settings.policy.url, post_json, seconds=settings.policy.seconds)
    return options


def _webhook(config: Config, notices: Notices) -> Any:
    url = config.settings.approvals.webhook or ""
    return HttpWebhook(url, webhook_secret("approvals", url, config, notices), post_json)


def webhook_secret(section: str, url: str, config: Config, notices: Notices) -> str:
    """Return the secret that signs what is sent to the webhook of a section.

    Raises:
        LaunchError: The URL cannot be used, or there is no secret.
    """
    secret = getattr(config.settings, section).webhook_secret
    with as_launch_error(ValueError):
        check_url(f"{section}.webhook", url)
    if not secret:
        raise LaunchError(f"'{section}.webhook' needs '{section}.webhook_secret', which signs what is sent.")
    folder = Path() if config.path is None else config.path.parent
    references = References(variables=os.environ, folder=folder, warn=notices.inform)
    with as_launch_error(ConfigError):
        return references.resolve(secret, Location(f"{section}.webhook_secret"))


async def post_json(url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """Post JSON on a connection of its own, and return status and body of the response; redirects are not followed.

    Raises:
        OSError: There is no answer.
    """
    return await _exchange("POST", url, headers, body=body)


async def get_json(url: str, headers: Mapping[str, str], *, limit: int) -> tuple[int, bytes]:
    """Get JSON of at most so many bytes, in the same way.

    Raises:
        OSError: There is no answer.
    """
    return await _exchange("GET", url, headers, limit=limit)


async def _exchange(
    method: str, url: str, headers: Mapping[str, str], *, body: bytes = b"", limit: int = _ANSWER_BYTES
) -> tuple[int, bytes]:
    # Loaded with the first request, because a server starts sooner without.
    from callyard.providers.upstream.http.fetch import fetch  # noqa: PLC0415 - see above

    try:
        response = await fetch(url, headers, method=method, body=body, limit=limit)
    except LinkError as error:
        raise OSError(error.message) from error
    return response.status, response.body
