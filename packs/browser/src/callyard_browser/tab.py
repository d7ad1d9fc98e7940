"""One tab: its page, its open dialog, and the snapshots and refs that agents know of it."""

import asyncio
import contextlib
import itertools
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from msgspec import Struct
from playwright.async_api import Dialog, ElementHandle, Error, Frame, Locator, Page, Request

from callyard import ToolError
from callyard_browser.failures import failure_of
from callyard_browser.masks import Masks
from callyard_browser.snapshot import Node, Snapshot, parse

__all__ = ["UNGUARD", "Found", "Tab", "text_of"]

T = TypeVar("T")
ANSWER_S: Final = 4.0
"""Seconds that a page may take to answer before it is hung."""
LOOK_S: Final = 25.0
_PING_S: Final = 2.5
_FRAME_S: Final = 1.0
_MOST_REFS: Final = 50_000
_KEPT: Final = 6
_TRIES: Final = 5
_LARGE: Final = 12_000
_MANY: Final = 3_000
_COUNT: Final = "() => document.getElementsByTagName('*').length"
GUARD: Final = """(element, inRow) => {
  const row = inRow ? element.closest('tr, li, [role=row], [role=listitem]') : null;
  const reads = () => [element.getAttribute('aria-label'), element.textContent, row && row.textContent].join('|');
  const before = reads();
  const kinds = ['pointerdown', 'mousedown', 'pointerup', 'mouseup', 'click', 'dblclick', 'auxclick', 'contextmenu'];
  let isOther = false;
  const check = (event) => {
    if (!event.composedPath().includes(element)) return;
    if (event.type === 'pointerdown') isOther = reads() !== before;
    if (isOther) { event.stopImmediatePropagation(); event.preventDefault(); }
  };
  for (const kind of kinds) window.addEventListener(kind, check, true);
  element.__callyardGuard = () => {
    for (const kind of kinds) window.removeEventListener(kind, check, true);
    return isOther;
  };
}"""
"""Makes an element ignore the mouse if it reads otherwise by then."""
UNGUARD: Final = "element => element.__callyardGuard ? element.__callyardGuard() : false"
"""Returns whether the guard of an element had to step in."""
_MOST_FRAMES: Final = 50
_LONGEST_CHECKED: Final = 200
_HELD: Final = "fields => fields.flatMap(field => [field.value, field.defaultValue])"


class _Known(Struct, frozen=True):
    """A ref as it was last seen."""

    role: str
    label: str
    document: str
    row: str
    is_unique: bool
    first: int
    """The number of the first snapshot that had it."""
    last: int


class Found(Struct, frozen=True):
    """The element of a ref, now."""

    handle: ElementHandle
    node: Node
    healed: bool


def text_of(dialog: Dialog) -> dict[str, Any]:
    """Return a dialog as data."""
    facts = {"kind": dialog.type, "text": dialog.message[:1000]}
    return {**facts, "default": dialog.default_value} if dialog.default_value else facts


class Tab:
    """A page of a session."""

    def __init__(self, tab_id: str, page: Page, masks: Masks, is_alive: Callable[[], bool]) -> None:
        self.id = tab_id
        self.page = page
        self.dialog: Dialog | None = None
        self.has_crashed = False
        self.is_loading = False
        self.pending: asyncio.Task[Any] | None = None
        """An action that a dialog or a cancelled call left unfinished."""
        self.snapshots: deque[Snapshot] = deque(maxlen=_KEPT)
        self.look_seconds = 0.0
        self._is_alive = is_alive
        self._masks = masks
        self._prefix = "" if tab_id == "t1" else tab_id
        self._numbers = itertools.count(1)
        self._number = 0
        self._known: dict[str, _Known] = {}
        self._versions: dict[str, int] = {}
        self._looking = asyncio.Lock()
        self._trouble = asyncio.Event()
        self._frames_changed = False
        self._frames: dict[str, tuple[float, int]] = {}
        """Of each frame the time when its document began, and how many it had."""
        page.on("crash", self._on_crash)
        page.on("close", lambda _: self.interrupt())
        page.on("framenavigated", self._on_navigated)
        page.on("request", self._on_request)
        page.on("requestfailed", self._on_request_over)

    def _on_crash(self, _: Page) -> None:
        self.has_crashed = True
        self.interrupt()

    def _on_navigated(self, frame: Frame) -> None:
        if frame.parent_frame is None:
            self.is_loading = False
        else:
            self._frames_changed = True

    def _on_request(self, request: Request) -> None:
        if request.is_navigation_request() and request.frame.parent_frame is None:
            self.is_loading = True

    def _on_request_over(self, request: Request) -> None:
        if request.is_navigation_request() and request.frame.parent_frame is None:
            self.is_loading = False

    def interrupt(self) -> None:
        """Stop whatever waits for the page: a dialog opened, or the page has gone."""
        self._trouble.set()

    def opened_dialog(self, dialog: Dialog) -> None:
        """Take note of a dialog, which blocks the page until it is answered."""
        self.dialog = dialog
        self.interrupt()

    def closed_dialog(self) -> None:
        """Take note that the dialog has closed."""
        self.dialog = None
        if self.is_open:
            self._trouble.clear()

    @property
    def is_open(self) -> bool:
        """Return whether the page can be used."""
        return not self.page.is_closed() and not self.has_crashed

    def check(self) -> None:
        """Check that the page can be used now.

        Raises:
            ToolError: It cannot: `not_running`, or `state_error` with its reason.
        """
        trouble = self._trouble_now()
        if trouble is not None:
            raise trouble

    def _trouble_now(self) -> ToolError | None:
        if not self._is_alive():
            return ToolError("not_running", "The browser has ended.", reason="browser_gone", may_have_run=True)
        if self.has_crashed:
            hint = "Open an address with 'browser_navigate'."
            return ToolError("state_error", "The page has crashed.", hint=hint, reason="page_crashed")
        if self.page.is_closed():
            hint = "Choose another tab with 'browser_select_tab'."
            return ToolError("not_found", "The tab was closed.", hint=hint, reason="tab_gone")
        if self.dialog is not None:
            facts = text_of(self.dialog)
            message, hint = "A dialog is open.", "Answer it with 'browser_answer_dialog'."
            return ToolError("state_error", message, hint=hint, reason="dialog_open", dialog=facts, may_have_run=False)
        return None

    async def run(self, work: Awaitable[T], *, seconds: float = ANSWER_S, keep: bool = False) -> T:
        """Wait for an operation of Playwright, until a dialog opens, the page goes, or the time is over.

        `keep` leaves an unfinished one running as `pending`.

        Raises:
            ToolError: It failed, or is unfinished.
        """
        task: asyncio.Task[T] = asyncio.ensure_future(work)  # pyright: ignore[reportAssignmentType] - a coroutine becomes a task
        trouble = asyncio.ensure_future(self._trouble.wait())
        try:
            await asyncio.wait((task, trouble), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            trouble.cancel()
            if not task.done() and keep:
                self.pending = task
                task.add_done_callback(_forget)
            elif not task.done():
                task.cancel()
                task.add_done_callback(_forget)
        if task.done():
            try:
                return task.result()
            except Error as error:
                raise self._trouble_now() or failure_of(error) from error
            except (ToolError, AssertionError):  # an expectation of Playwright fails by an assertion
                raise
            except Exception as error:  # the connection to the driver broke
                raise self._trouble_now() or _hung() from error
        raise self._trouble_now() or _hung()

    async def is_large(self) -> bool:
        """Return whether the page has so many elements that a snapshot takes seconds."""
        try:
            return await self._count() > _LARGE
        except ToolError:  # it has trouble that the next step tells
            return False

    async def _count(self) -> int:
        """Return how many elements the page has; 0 while it is being replaced."""

        async def count() -> int:
            with contextlib.suppress(Error):
                return int(await self.page.evaluate(_COUNT))
            return 0

        return await self.run(count(), seconds=_PING_S)

    async def finish_pending(self) -> None:
        """Wait until an action that was left unfinished is over; each ends by itself within seconds."""
        if self.pending is not None and not self.pending.done():
            await self.run(asyncio.wait((self.pending,)), seconds=ANSWER_S + 1)
        self.pending = None

    def masked(self, text: str) -> str:
        """Return a text of the page without what its password fields hold."""
        return str(self._masks.masked(text))

    async def sample(self) -> None:
        """Mask what password fields hold now."""
        frames = self.page.frames[:_MOST_FRAMES]
        self._masks.hold(await self.run(_held(frames[0]), seconds=_PING_S))
        others = [asyncio.wait_for(_held(frame), _FRAME_S) for frame in frames[1:]]
        for found in await asyncio.gather(*others, return_exceptions=True):
            if isinstance(found, list):
                self._masks.hold(found)

    async def look(self) -> Snapshot:
        """Take a snapshot of the whole page; every ref of it can be acted on.

        Raises:
            ToolError: The page does not answer, or a dialog is open.
        """
        self.check()
        async with self._looking:
            started = time.monotonic()
            seconds = LOOK_S if await self._count() > _MANY else ANSWER_S
            text = await self.run(self._aria(seconds), seconds=seconds)
            await self.sample()
            nodes = parse(text)
            if self._frames_changed:
                self._frames_changed = False
                await self._tell_frames(nodes)
            for node in nodes:
                node.name, node.text = self._masks.masked(node.name), self._masks.masked(node.text)
                if node.ref:
                    node.ref = self._public(node.ref)
            self.look_seconds = time.monotonic() - started
            return self._remember(nodes)

    async def _aria(self, seconds: float) -> str:
        for _ in range(3):
            with contextlib.suppress(Error):
                return await self.page.aria_snapshot(mode="ai", timeout=seconds * 1000)
            await asyncio.sleep(0.05)  # a page that is being replaced has no document for a moment
        return await self.page.aria_snapshot(mode="ai", timeout=seconds * 1000)

    def _remember(self, nodes: list[Node]) -> Snapshot:
        self._number = next(self._numbers)
        counts = Counter((node.role, node.label) for node in nodes if node.ref)
        for node in nodes:
            if node.ref:
                node.ref = self._versioned(node, is_unique=counts[node.role, node.label] == 1)
        snapshot = Snapshot(nodes, id=f"{self._prefix}s{self._number}", url=self.page.url)
        for node in nodes:
            if node.ref:
                before = self._known.pop(node.ref, None)
                self._known[node.ref] = _Known(
                    node.role,
                    node.label,
                    _document(node.ref),
                    node.row,
                    is_unique=counts[node.role, node.label] == 1,
                    first=self._number if before is None else before.first,
                    last=self._number,
                )
        while len(self._known) > _MOST_REFS:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._versions.pop(oldest.partition("v")[0], None)
        self.snapshots.append(snapshot)
        return snapshot

    def _versioned(self, node: Node, *, is_unique: bool) -> str:
        """Return the ref of an element; one of many with its name gets another when it is in another row."""
        version = self._versions.get(node.ref, 0)
        known = self._known.get(f"{node.ref}v{version}" if version else node.ref)
        if known is not None and not is_unique and known.row != node.row:
            version += 1
            self._versions[node.ref] = version
        return f"{node.ref}v{version}" if version else node.ref

    async def _tell_frames(self, nodes: list[Node]) -> None:
        """Find out which frames have another document; Playwright numbers the refs of it from the start again."""
        firsts = {_document(node.ref): node.ref for node in reversed(nodes) if node.ref}
        main = _document(nodes[0].ref) if nodes else ""
        for document, ref in firsts.items():
            if document != main:
                origin = await self.run(self._origin(ref), seconds=_FRAME_S)
                began, count = self._frames.get(document, (origin, 0))
                self._frames[document] = origin, count + (began != origin)

    async def _origin(self, ref: str) -> float:
        with contextlib.suppress(Error):
            return float(await self.page.get_by_ref(ref).evaluate("() => performance.timeOrigin", timeout=500))
        return 0.0

    def _public(self, ref: str) -> str:
        """Return a ref of Playwright as agents see it: of one document of one tab, and no other."""
        document = _document(ref)
        count = self._frames.get(document, (0.0, 0))[1]
        return f"{self._prefix}{document}{f'd{count}' if count else ''}{ref[len(document) :]}"

    def _locator(self, node: Node) -> Locator:
        """Return where Playwright finds an element of the last snapshot, as long as it has its role and name."""
        own = node.ref.removeprefix(self._prefix)
        frame, _, number = own.rpartition("e")
        locator = self.page.get_by_ref(f"{frame.partition('d')[0]}e{number.partition('v')[0]}")
        role: Any = node.role
        if 0 < len(node.name) <= _LONGEST_CHECKED and node.role != "iframe" and "***" not in node.name:
            return locator.and_(self.page.get_by_role(role, name=node.name, exact=True, include_hidden=True))
        return locator

    async def find_guarded(self, ref: str) -> Found:
        """Return the element of a ref, which ignores the mouse as soon as it becomes another one.

        A page may give an element another name between the look and the click. For one of many with the same name, the
        row that it is in tells which one it is.

        Raises:
            ToolError: `not_found`, reason `ref_gone`, with similar elements.
        """
        for _ in range(_TRIES):
            found = await self.find(ref)
            known = self._known[found.node.ref]
            is_in_row = bool(known.row) and not known.is_unique
            try:
                await self.run(found.handle.evaluate(GUARD, is_in_row))
            except ToolError:
                self.check()
                continue
            if is_in_row:
                snapshot = await self.look()  # where it is in another row, it has another ref
                if found.node.ref not in snapshot.by_ref:
                    raise _gone(snapshot.similar(known.role, known.label))
            if is_in_row or await self._handle(found.node) is not None:
                return found
        raise _gone([])

    async def find(self, ref: str) -> Found:
        """Return the element of a ref; one that was rendered anew is found by role and name.

        Raises:
            ToolError: `not_found`, reason `ref_gone`, with similar elements.
        """
        known = self._known.get(ref)
        if known is None:
            raise _gone([])
        last = self.snapshots[-1] if self.snapshots else None
        if last is not None and not self._frames_changed and ref in last.by_ref:
            handle = await self._handle(last.by_ref[ref])
            if handle is not None:
                return Found(handle, last.by_ref[ref], healed=False)
        while True:
            snapshot = await self.look()
            node = snapshot.by_ref.get(ref) or self._healed(known, snapshot)
            if node is None:
                raise _gone(snapshot.similar(known.role, known.label))
            handle = await self._handle(node)
            if handle is not None:  # otherwise it was replaced again meanwhile
                return Found(handle, node, healed=node.ref != ref)

    def _healed(self, known: _Known, snapshot: Snapshot) -> Node | None:
        """Return the element that came in the place of one that is gone.

        An element that was there at the same time is another one, and so is one of another document.
        """
        alike = snapshot.alike(known.role, known.label)
        if not known.is_unique or not known.label or len(alike) != 1:
            return None
        found = self._known[alike[0].ref]
        return alike[0] if found.document == known.document and found.first > known.last else None

    async def _handle(self, node: Node) -> ElementHandle | None:
        handles = await self.run(_all(self._locator(node)))
        return handles[0] if handles else None


async def _held(frame: Frame) -> list[Any]:
    """Return the values of the password fields of a frame; a document that is being replaced has none."""
    with contextlib.suppress(Error):
        return list(await frame.locator("input[type=password]").evaluate_all(_HELD))
    return []


async def _all(locator: Locator) -> list[ElementHandle]:
    """Return the elements of a locator without waiting for one; a document that is being replaced has none."""
    with contextlib.suppress(Error):
        return await locator.element_handles()
    return []


def _document(ref: str) -> str:
    return ref.rpartition("e")[0]


def _gone(similar: list[str]) -> ToolError:
    message, hint = "The element is gone.", "Take a new snapshot, or use one of the similar elements."
    return ToolError("not_found", message, hint=hint, reason="ref_gone", similar=similar, may_have_run=False)


def _hung() -> ToolError:
    hint = "Open the address in a new tab, or stop the browser."
    return ToolError("timeout", "The page does not answer.", hint=hint, reason="page_hung", may_have_run=True)


def _forget(task: "asyncio.Task[Any]") -> None:
    """Look at the failure of a task that nobody waits for, so that it is not reported as lost."""
    if not task.cancelled():
        task.exception()
