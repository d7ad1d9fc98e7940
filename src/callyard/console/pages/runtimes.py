"""The page 'Runtimes': which sandboxes this machine has for programs of agents, which limits they enforce, and what is missing."""

import asyncio
import time
from typing import Any, ClassVar, Final

from callyard.console.page import Done, Page, View, url
from callyard.runtimes.runtime import Probe
from callyard.runtimes.selection import probe_all, wanted_backends

__all__ = ["RuntimesPage"]

_FAILED: Final = "The backends could not be probed; the log of the server says why."
_ABOUT: Final = {
    "container": "Containers of docker or podman, without network, read-only.",
    "bubblewrap": "Namespaces of Linux, without network and with a filter of system calls.",
    "wasm": "CPython for WebAssembly under wasmtime, in a process of its own.",
    "monty": "A small interpreter for short programs, which starts fastest.",
    "subprocess": "A plain process without a sandbox: for development only.",
}


class RuntimesPage(Page):
    """Where programs of agents run."""

    name: ClassVar[str] = "runtimes"
    title: ClassVar[str] = "Runtimes"
    template: ClassVar[str] = "runtimes"

    def __init__(self, parts: Any) -> None:
        super().__init__(parts)
        self._probing: asyncio.Task[list[Probe]] | None = None
        self._probes: list[Probe] = []
        self._probed_at = 0.0

    async def context(self, view: View) -> dict[str, Any]:  # noqa: ARG002 - the page is the same for everybody
        """Return what was probed; the first look starts it, because engines of containers take a while to answer."""
        if self._probing is None:
            self._start(attack=False)
        settings = self.yard.runtime
        wanted = wanted_backends(settings)
        usable = [probe.backend for probe in self._probes if probe.available]
        task = self._probing
        return {
            "probes": self._probes,
            "is_probing": task is not None and not task.done(),
            "failure": _FAILED if task is not None and task.done() and not task.cancelled() and task.exception() is not None else "",
            "probed_at": self._probed_at,
            "settings": settings,
            "wanted": wanted,
            "selected": next((name for name in wanted if name in usable), ""),
            "about": _ABOUT,
        }

    async def act(self, view: View) -> Done:
        """Look again, or attack every sandbox."""
        if view.path not in {("probe",), ("attack",)}:
            raise LookupError
        if self._probing is None or self._probing.done():
            self._start(attack=view.path == ("attack",))
        return Done(to=url(self.name))

    def _start(self, *, attack: bool) -> None:
        self._probing = asyncio.get_running_loop().create_task(self._probe(attack=attack))

    async def _probe(self, *, attack: bool) -> list[Probe]:
        self._probes = await probe_all(self.yard.runtime, self.yard.state_dir, attack=attack)
        self._probed_at = time.time()
        return self._probes
