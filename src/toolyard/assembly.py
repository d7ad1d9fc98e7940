"""Assembly: what a yard is put together from, checked before it is opened."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from toolyard.packs import PACKS
from toolyard.profile import METATOOLS, Profile
from toolyard.prompts import Prompt
from toolyard.providers import Provider
from toolyard.providers.given import Given
from toolyard.resources import Resource
from toolyard.state_dir import find_state_dir
from toolyard.tools import Tool

if TYPE_CHECKING:
    from toolyard.providers.upstream.settings import UpstreamSettings  # see below

__all__ = ["LOCK", "Configured", "all_providers", "known_packs", "own_provider", "running", "upstream_providers"]

LOCK: Final = "toolyard.lock"
"""The name of the file that says which definitions were accepted."""


class Configured(TypedDict, total=False):
    """What may be settled of a yard after its code, besides its limits."""

    profile: str | None
    profiles: Iterable[Profile]
    """Profiles besides those it has, or in their place."""
    allow_eval: bool
    metatools: bool | tuple[str, ...]
    packs: Iterable[str]
    """Packs besides those it has."""
    providers: Iterable[Provider]
    """Providers besides those it has."""
    search: Mapping[str, Any]
    state_dir: str | None


def own_provider(name: str, tools: object, *, resources: object, prompts: object) -> Provider | None:
    """Return who publishes what a yard is given, if it is given anything.

    What is ready-made needs no reading of functions, so a yard without functions starts sooner.
    """
    if _are(tools, Tool) and _are(resources, Resource) and _are(prompts, Prompt):
        given = Given(name, _listed(tools), resources=_listed(resources), prompts=_listed(prompts))
        return given if any((tools, resources, prompts)) else None
    from toolyard.providers.functions import Functions  # noqa: PLC0415 - ready-made things need no reading of functions

    return Functions(name, tools, resources=resources, prompts=prompts)


def _are(given: object, kind: type) -> bool:
    return isinstance(given, list | tuple) and all(isinstance(one, kind) for one in cast("Sequence[object]", given))


def _listed(given: object) -> list[Any]:
    return list(cast("Sequence[Any]", given))


def all_providers(own: Provider | None, providers: Iterable[Provider], *, packs: Sequence[str]) -> list[Provider]:
    """Return a yard's providers, its own functions first.

    Raises:
        ValueError: Two have the same name.
    """
    found: list[Provider] = [*([] if own is None else [own]), *providers]
    names = [METATOOLS, *packs, *(provider.name for provider in found)]
    for known in names:
        if names.count(known) > 1:
            raise ValueError(f"Two providers are named '{known}': give one of them another name.")
    return found


def known_packs(packs: Iterable[str]) -> list[str]:
    """Return the packs that were named.

    Raises:
        ValueError: There is none of that name.
    """
    named = [packs] if isinstance(packs, str) else list(packs)
    for pack in named:
        if pack not in PACKS:
            raise ValueError(f"There is no pack '{pack}'. Known: {', '.join(sorted(PACKS))}.")
    return named


def upstream_providers(
    upstreams: Mapping[str, "UpstreamSettings"], *, state_dir: str | None, lock: Path | None, longest: int
) -> list[Provider]:
    """Return who publishes what other servers offer; `lock` is the file that says what of it was accepted.

    Raises:
        OSError: There is no place to keep what must last.
    """
    if not upstreams:
        return []
    from toolyard.providers.upstream.making import make_upstream  # noqa: PLC0415 - a yard without upstreams starts sooner
    from toolyard.providers.upstream.pins import Pins  # noqa: PLC0415 - the same

    state = find_state_dir(state_dir)
    pins = Pins(lock or state / LOCK, state=state)
    return [make_upstream(name, settings, state=state, pins=pins, longest=longest) for name, settings in upstreams.items()]


@asynccontextmanager
async def running(work: Any) -> AsyncGenerator[None]:
    """Let something run meanwhile."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
