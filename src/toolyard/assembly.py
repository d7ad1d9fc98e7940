"""Assembly: what a yard is put together from, checked before it is opened."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from toolyard.packs import PACKS
from toolyard.profile import METATOOLS
from toolyard.providers import Provider
from toolyard.providers.functions import Functions

__all__ = ["all_providers", "known_packs", "running"]


def all_providers(own: Functions, providers: Iterable[Provider], *, packs: Sequence[str]) -> list[Provider]:
    """Return a yard's providers, its own functions first.

    Raises:
        ValueError: Two have the same name.
    """
    found: list[Provider] = [*([own] if own else []), *providers]
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
