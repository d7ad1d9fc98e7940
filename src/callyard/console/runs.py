"""Runs: calls that people make in the console, with their results.

A run belongs to the login that started it, and nobody else sees that it exists. It goes on when the page is closed, so
that a reload shows it again. Runs are kept in memory, up to a size.
"""

import asyncio
import time
from base64 import b64encode
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from secrets import token_urlsafe
from typing import Any, Final, Literal

import msgspec

from callyard.console.access import Person
from callyard.console.form import Form, defaults_of, make_form
from callyard.dispatch import questions
from callyard.dispatch.call import Call, Channel
from callyard.dispatch.progress import Progress
from callyard.dispatch.run import run_of
from callyard.model.content import Block
from callyard.model.elicitation import ClientRequest, require_support
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.policy.approvals import Binding, binding_of
from callyard.state.store import StoreUnavailableError
from callyard.yard import Yard

__all__ = ["Action", "LogLine", "Question", "Run", "Runs"]

Action = Literal["accept", "decline", "cancel"]
_ELICITATION: Final = frozenset({"elicitation"})
_KEPT: Final = 200
_KEPT_OF_LOGIN: Final = 20
_KEPT_BYTES: Final = 64 * 1024 * 1024
_RUNNING: Final = 100
_RUNNING_OF_LOGIN: Final = 8
_LOG_LINES: Final = 200
_LINE_CHARACTERS: Final = 1000
_QUESTION_S: Final = 3600.0
"""A question that nobody answers is dismissed after so long."""
_MESSAGE_CHARACTERS: Final = 30_000
_IMAGE_BYTES: Final = 64 * 1024
"""The most bytes of images in one answer that a page shows."""
_IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


class LogLine(msgspec.Struct, frozen=True):
    """A line that a tool logged."""

    at: float
    level: str
    text: str


class Question(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A question to the person who started the run."""

    id: str
    text: str
    form: Form
    content: str
    """What the form is filled in with at first, as JSON."""
    is_approval: bool
    """Whether the answer decides about the call itself."""
    answer: "asyncio.Future[Mapping[str, Any]]"


class Picture(msgspec.Struct, frozen=True):
    """An image that a tool returned."""

    mime_type: str
    bytes: int
    url: str = ""
    """With the image in it; empty if it is too large, or of a type that browsers do not show."""


class Run:
    """One call, while it runs and afterwards."""

    def __init__(self, yard: Yard, person: Person, tool: str, arguments: str, *, asks: bool) -> None:
        self.id = token_urlsafe(12)
        self.login = person.login
        self.tool = tool
        self.arguments = arguments
        """As JSON, as the person wrote them."""
        self.started = time.time()
        self.ended = 0.0
        self.progress: Progress | None = None
        self.log: deque[LogLine] = deque(maxlen=_LOG_LINES)
        self.log_dropped = 0
        self.questions: list[Question] = []
        self.envelope: Envelope | None = None
        """The answer; None while the call runs."""
        self.text = ""
        self.images: list[Picture] = []
        self._yard = yard
        self._asks = asks
        self.caller = person.caller
        self._task: asyncio.Task[None] | None = None
        self._withdrawal: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        """Return the id and the tool, never the arguments."""
        return f"<Run {self.id} of '{self.tool}'>"

    @property
    def is_over(self) -> bool:
        """Return whether the call was answered."""
        return self.envelope is not None

    @property
    def call_id(self) -> str:
        """Return the id of the call; empty until it is known."""
        if self.envelope is not None:
            return self.envelope.meta.call_id
        call = self._call()
        return "" if call is None else call.id

    @property
    def is_waiting(self) -> bool:
        """Return whether the tool has not started yet: a person, a policy or a limiter keeps the call."""
        call = self._call()
        return call is not None and not call.may_have_run

    @property
    def elapsed_ms(self) -> float:
        """Return how long it takes so far, or took."""
        return ((self.ended or time.time()) - self.started) * 1000

    @property
    def size(self) -> int:
        """Return about how many bytes it holds."""
        blocks = () if self.envelope is None else self.envelope.content
        texts = [*(picture.url for picture in self.images), *(line.text for line in self.log)]
        data = [block.data for block in blocks if isinstance(block, Block)]
        return 2 * len(self.arguments) + 3 * len(self.text) + sum(map(len, texts)) + sum(map(len, data))

    @property
    def issues(self) -> list[dict[str, str]]:
        """Return what is wrong with the arguments: the field and a message for each."""
        error = None if self.envelope is None else self.envelope.error
        if error is None or error.code != "invalid_input":
            return []
        try:
            issues = msgspec.convert(error.details.get("issues", []), list[dict[str, Any]])
        except msgspec.ValidationError:  # a tool may put anything there
            return []
        return [{key: str(issue.get(key, "")) for key in ("field", "message")} for issue in issues]

    def start(self) -> "asyncio.Task[None]":
        """Make the call in a task of its own, so that it outlives the request."""
        self._task = asyncio.create_task(self._call_tool())
        self._task.add_done_callback(self._end)
        return self._task

    def cancel(self) -> None:
        """Cancel the call, and withdraw the approvals that only it waits for."""
        call = self._call()
        if call is not None:
            bindings = self._bindings()
            self._yard.dispatcher.cancel(call.id)
            self._withdrawal = asyncio.create_task(self._withdraw(bindings))
        elif self._task is not None:
            self._task.cancel()

    def answer(self, question_id: str, action: Action, content: object) -> None:
        """Answer a question.

        Raises:
            ToolError: `state_error` if it is no longer open.
        """
        for question in self.questions:
            if question.id == question_id and not question.answer.done():
                given = {"content": content} if action == "accept" else {}
                return question.answer.set_result({"action": action, **given})
        raise ToolError("state_error", "This question is no longer open.", reason="already_decided")

    async def _call_tool(self) -> None:
        channel = Channel(
            name="console",
            connection_id=self.id,
            progress=self._on_progress,
            log=self._on_log,
            ask=self._ask,
            capabilities=_ELICITATION,
            asks_before_destroy=self._asks,
        )
        arguments = msgspec.Raw(self.arguments.encode() or b"{}")
        self._finish(await self._yard.call(self.tool, arguments, caller=self.caller, channel=channel))

    def _bindings(self) -> list[Binding]:
        """Return what the approvals are for that the call, or one inside it, may wait for, and no other call."""
        mine: dict[str, Binding] = {}
        others: set[str] = set()
        for call in self._yard.dispatcher.in_flight.values():
            tool, bound = run_of(call).tool, run_of(call).bound
            if call.caller.owner != self.caller.owner or call.may_have_run or tool is None or bound is None:
                continue
            for by in ("anyone", "operator"):
                binding = binding_of(call, tool, bound, by)
                if call.channel.connection_id == self.id:
                    mine[binding.key] = binding
                else:
                    others.add(binding.key)
        return [binding for key, binding in mine.items() if key not in others]

    async def _withdraw(self, bindings: list[Binding]) -> None:
        gate = self._yard.gate
        if gate is None:
            return
        for binding in bindings:
            with suppress(ToolError, StoreUnavailableError):  # it is decided already, or expires
                approval = await gate.approvals.find(binding)
                if approval is not None and approval.status == "pending":
                    by, reason = self.caller.identity, "The run was cancelled."
                    await gate.approvals.decide(approval.id, "withdraw", by=by, reason=reason)

    def _end(self, task: "asyncio.Task[None]") -> None:
        """Answer a run whose call has no answer: it was cancelled before it began, or the yard is closed."""
        if task.cancelled():
            self._finish(Envelope.fail(ToolError("cancelled", f"'{self.tool}' was cancelled."), tool_id=self.tool))
        elif task.exception() is not None:
            self._finish(Envelope.fail(ToolError("overloaded", "The yard is closed."), tool_id=self.tool))

    def _finish(self, envelope: Envelope) -> None:
        self.text = envelope.to_json().decode()
        self.images = _pictures(envelope)
        self.ended = time.time()
        self.envelope = envelope

    def _call(self) -> Call | None:
        try:
            calls = self._yard.dispatcher.in_flight.values()
        except RuntimeError:
            return None
        return next((call for call in calls if call.parent is None and call.channel.connection_id == self.id), None)

    def _on_progress(self, progress: Progress) -> None:
        self.progress = msgspec.structs.replace(progress, text=str(progress.text)[:_LINE_CHARACTERS])

    def _on_log(self, level: str, text: str, facts: Mapping[str, object]) -> None:
        said = " ".join([str(text), *(f"{key}={value}" for key, value in facts.items())])
        if len(said) > _LINE_CHARACTERS:
            said = f"{said[:_LINE_CHARACTERS]}…"
        self.log_dropped += len(self.log) == _LOG_LINES
        self.log.append(LogLine(time.time(), str(level)[:20], said))

    async def _ask(self, asks: Mapping[str, ClientRequest], _: questions.Question) -> Mapping[str, Any]:
        require_support(asks, _ELICITATION)
        return {key: await self._ask_one(ask) for key, ask in asks.items()}

    async def _ask_one(self, ask: ClientRequest) -> Mapping[str, Any]:
        """Ask the person; an approval may also be decided elsewhere meanwhile."""
        question = Question(
            id=token_urlsafe(9),
            text=str(ask.params["message"])[:_MESSAGE_CHARACTERS],
            form=make_form(ask.params["requestedSchema"]),
            content=defaults_of(ask.params["requestedSchema"]),
            is_approval=bool(ask.approval_id),
            answer=asyncio.get_running_loop().create_future(),
        )
        elsewhere = asyncio.create_task(self._decided(ask.approval_id))
        self.questions.append(question)
        try:
            await asyncio.wait((question.answer, elsewhere), timeout=_QUESTION_S, return_when=asyncio.FIRST_COMPLETED)
            return question.answer.result() if question.answer.done() else {"action": "cancel"}
        finally:
            question.answer.cancel()
            self.questions.remove(question)
            elsewhere.cancel()

    async def _decided(self, approval_id: str) -> None:
        """Wait until somebody else decides about an approval; that of a mounted yard is decided here alone."""
        gate = self._yard.gate
        with suppress(ToolError, StoreUnavailableError):
            if gate is not None and approval_id:
                await gate.approvals.wait(await gate.approvals.get(approval_id), _QUESTION_S)
                return
        await asyncio.sleep(_QUESTION_S)


def _pictures(envelope: Envelope) -> list[Picture]:
    """Return the images of an answer, as far as there is room for them in a page."""
    found: list[Picture] = []
    left = _IMAGE_BYTES
    for block in envelope.content:
        if isinstance(block, Block) and block.kind == "image":
            size = len(block.data)
            fits = size <= left and block.mime_type in _IMAGE_TYPES
            url = f"data:{block.mime_type};base64,{b64encode(block.data).decode()}" if fits else ""
            found.append(Picture(block.mime_type, size, url))
            left -= size if fits else 0
    return found


class Runs:
    """The runs of all logins."""

    def __init__(self, yard: Yard, *, asks_before_destroy: bool = True) -> None:
        self._yard = yard
        self._asks = asks_before_destroy
        self._runs: dict[str, Run] = {}

    async def start(self, person: Person, tool: str, arguments: str, *, grace_s: float = 0.1) -> Run:
        """Start a run and return it, after a moment in which a quick one finishes.

        Raises:
            ToolError: `overloaded` if too many are running, `permission_denied` without a login.
        """
        if not person.can_act:
            raise ToolError("permission_denied", "Running a tool needs a login.")
        running = [run for run in self._runs.values() if not run.is_over]
        if len(running) >= _RUNNING or sum(run.login == person.login for run in running) >= _RUNNING_OF_LOGIN:
            raise ToolError("overloaded", "Too many runs are still going. Wait for one of them, or cancel it.")
        run = Run(self._yard, person, tool, arguments, asks=self._asks)
        self._runs[run.id] = run
        self._make_room(person.login)
        await asyncio.wait([run.start()], timeout=grace_s)
        return run

    def get(self, run_id: str, person: Person) -> Run:
        """Return a run of this login.

        Raises:
            LookupError: There is none.
        """
        for run in self._of(person):
            if run.id == run_id:
                return run
        raise LookupError(run_id)

    def of_call(self, call_id: str, person: Person) -> Run | None:
        """Return the run of this login that made a call, if there is one."""
        return next((run for run in self._of(person) if run.call_id == call_id), None)

    def of_person(self, person: Person, tool: str) -> list[Run]:
        """Return the runs of a tool by this login, the newest first."""
        return [run for run in self._of(person) if run.tool == tool]

    def _of(self, person: Person) -> list[Run]:
        """Return the runs of a login, the newest first."""
        return [run for run in reversed(self._runs.values()) if person.can_act and run.login == person.login]

    def _make_room(self, login: str) -> None:
        """Drop the oldest runs that are over until the others fit."""
        mine = sum(run.login == login for run in self._runs.values())
        size = sum(run.size for run in self._runs.values())
        for run in [*self._runs.values()]:
            is_mine = run.login == login
            too_many = len(self._runs) > _KEPT or size > _KEPT_BYTES or (is_mine and mine > _KEPT_OF_LOGIN)
            if too_many and run.is_over:
                del self._runs[run.id]
                mine -= is_mine
                size -= run.size
