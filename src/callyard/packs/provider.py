"""The provider of a named pack: opens what the pack makes, checks what it publishes, and ends its sessions.

It fails closed: whatever is wrong becomes one `PackError`, and nothing of the pack stays open.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from callyard._internal.logfmt import log_exception
from callyard._internal.mask import configured_secrets, mask_known, mask_text
from callyard._internal.programs import find_program
from callyard.config.convert import ConfigError
from callyard.config.packs import PackTable, shown_fields
from callyard.dispatch.registry import SubscriptionWatcher
from callyard.dispatch.resource import Prompt, Resource
from callyard.dispatch.sessions import Sessions
from callyard.dispatch.table import NONE_WITHHELD, WithheldReasons
from callyard.dispatch.tool import Tool
from callyard.model.spec import PublishError, ToolSpec
from callyard.packs.loading import error_of, short_reason
from callyard.packs.pack import Pack, PackContext, PackError
from callyard.providers import Provider, Publish

__all__ = ["OPEN_S", "PackProvider", "is_installed"]

OPEN_S: Final = 30.0
"""Seconds that a pack may take to open."""
_DELEGATED: Final = frozenset({"wait_ready", "disconnect", "unavailable_reason", "instructions"})
"""What a provider may have beside its name; a yard looks for each. A pack passes no request headers on."""
_log = logging.getLogger(__name__)


def is_installed(program: str) -> bool:
    """Return whether a program is installed, by name or path."""
    command = os.path.expanduser(program)  # noqa: PTH111 - a path would lose a leading './'
    return find_program(command, Path(), os.environ.get("PATH", os.defpath)) is not None


class PackProvider:
    """Opens the provider that a pack makes for one yard."""

    def __init__(
        self, pack: Pack, table: PackTable, *, sessions: Sessions, find_folder: Callable[[], Path], seconds: float
    ) -> None:
        self.name = pack.name
        self.shown: dict[str, Any] = {}
        """The part of its configuration that callers may see, once it is open."""
        self._pack = pack
        self._table = table
        self._sessions = sessions
        self._find_folder = find_folder
        self._seconds = seconds
        self._secrets: tuple[str, ...] = ()
        self._filled: dict[str, Any] = {}
        self._inner: Provider | None = None

    def is_stale(self) -> bool:
        """Return whether a variable or secret of its table has another value now, or none."""
        try:
            return self._table.filled() != self._filled
        except ConfigError:
            return True

    def __getattr__(self, name: str) -> Any:
        """Return what else a provider may have, from the one of the pack."""
        inner = self.__dict__.get("_inner")
        if name in _DELEGATED and inner is not None:
            return getattr(inner, name)
        raise AttributeError(name)

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Open the pack's own provider, and publish what it publishes."""
        deadline = asyncio.timeout(self._seconds)
        async with AsyncExitStack() as stack:
            try:
                self._check_programs()
                provider = self._make()
                opened = provider.open(_CheckedPublish(publish, self._pack))
                async with deadline:
                    await stack.enter_async_context(opened)
            except TimeoutError as error:
                if not deadline.expired():
                    raise self._failed(error) from error
                why = f"It did not open within {self._seconds:g} seconds. Look for what it waits for."
                raise error_of(self._pack, why) from error
            except PackError:
                raise
            except Exception as error:
                log_exception(_log, "pack_not_opened pack=%s", self.name, error=error, contents=lambda: self._secrets)
                raise self._failed(error) from error
            self._inner = provider
            # before the provider closes, because clean-ups of sessions use what it has open
            stack.push_async_callback(self._sessions.end_of, self.name)
            yield

    def _failed(self, error: BaseException) -> PackError:
        if isinstance(error, PublishError):
            return error_of(self._pack, f"{error} Ask whoever made it for another version.")
        why = mask_text(short_reason(error), self._secrets)
        return error_of(self._pack, f"It cannot be opened: {why} Look at its table '[pack.{self.name}]' and its needs.")

    def _check_programs(self) -> None:
        missing = [program for program in self._pack.needs.programs if not is_installed(program)]
        if missing:
            names = ", ".join(f"'{program}'" for program in missing)
            raise error_of(self._pack, f"It needs {names}, not installed here. Install it, or leave the pack out.")

    def _make(self) -> Provider:
        pack = self._pack
        try:
            warn = partial(_log.warning, "pack_warning pack=%s reason=%r", self.name)
            self._filled = self._table.filled(warn)
            config, secrets = self._table.resolve(pack.config, self._filled)
        except ConfigError as error:
            raise error_of(pack, f"{error} Correct it in '[pack.{self.name}]'.") from error
        self._secrets = (*secrets.values(), *configured_secrets())
        self.shown = mask_known(shown_fields(config, pack.shown), self._secrets) if pack.shown else {}
        base = self._table.folder
        context = PackContext(self.name, config=config, secrets=secrets, find_folder=self._find_folder, base=base)
        made = pack.make(context)
        if not callable(getattr(cast("object", made), "open", None)):
            raise error_of(pack, f"It made a '{type(made).__name__}' and not a provider. Ask whoever made it.")
        return made


class _CheckedPublish(Publish):
    """Publishes what a pack may publish; a wrong tool fails the whole, because a pack is our own code."""

    def __init__(self, publish: Publish, pack: Pack) -> None:
        self._publish = publish
        self._pack = pack

    def __call__(
        self,
        tools: Iterable[Tool] = (),
        /,
        *,
        resources: Iterable[Resource] = (),
        prompts: Iterable[Prompt] = (),
        withheld: WithheldReasons = NONE_WITHHELD,
        foreign: bool = False,  # noqa: ARG002 - the interface; nothing of a pack is quarantined
    ) -> None:
        checked = tuple(tools)
        for tool in checked:
            _check_tool(tool.spec, self._pack)
        self._publish(checked, resources=resources, prompts=prompts, withheld=withheld)

    def updated(self, uri: str) -> None:
        self._publish.updated(uri)

    def watch_subscriptions(self, watcher: SubscriptionWatcher) -> Callable[[], None]:
        return self._publish.watch_subscriptions(watcher)


def _check_tool(spec: ToolSpec, pack: Pack) -> None:
    """Check that a tool keeps to what its pack says about itself.

    Raises:
        PublishError: It does not.
    """
    for name in spec.known_as:
        if not name.startswith(f"{pack.name}_"):
            raise PublishError(f"Tool '{name}' must have a name that begins with '{pack.name}_'.")
    undeclared: Sequence[str] = [name for name, reason in spec.reasons.items() if pack.reasons.get(name) != reason]
    if undeclared:
        raise PublishError(f"Tool '{spec.name}' has the reason '{undeclared[0]}', which its pack does not declare.")
    if spec.eval_target and spec.eval_target not in pack.needs.eval_targets:
        raise PublishError(
            f"Tool '{spec.name}' has the eval target '{spec.eval_target}', which its pack does not declare."
        )
