"""A job as data: what it runs, for whom, its state and its result; and where they are in the store."""

import asyncio
import os
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, Literal

import msgspec

from callyard.dispatch.call import Caller
from callyard.model.content import Text, UpstreamBlock, to_mcp
from callyard.model.elicitation import ClientRequest
from callyard.model.envelope import Envelope, UpstreamResult, encode, encode_sorted
from callyard.model.errors import ToolError
from callyard.model.profile import Profile
from callyard.model.spec import ToolSpec
from callyard.state.store import Store, owner_key

__all__ = [
    "ENDED",
    "JOBS",
    "LEASE_S",
    "MESSAGES",
    "ORDERS",
    "POLL_MS",
    "RENEW_S",
    "RESULTS",
    "RUNNING",
    "TASKS",
    "WORKERS",
    "Job",
    "JobCaller",
    "JobOrder",
    "JobResult",
    "JobStatus",
    "LogLine",
    "cancelled",
    "interrupted",
    "list_entry",
    "list_prefix",
    "log_line",
    "new_job_id",
    "open_entry",
    "resume_hash",
    "started_data",
    "tidy",
]

JobStatus = Literal["working", "input_required", "completed", "failed", "cancelled", "interrupted"]
"""`completed` has an envelope, also of a failure; `failed` is a defect, and `interrupted` a job whose process ended."""
ENDED: Final = frozenset({"completed", "failed", "cancelled", "interrupted"})
POLL_MS: Final = 1000
LEASE_S: Final = 15.0
"""How long a process holds a job without renewing its lease."""
RENEW_S: Final = 5.0
"""How often a process renews its leases."""
JOBS: Final = "job/"
"""The prefix of a job's state; with its id, that is also its lease and the topic of its changes."""
ORDERS: Final = "job_order/"
RESULTS: Final = "job_result/"
"""Each process writes an answer of its own, and the job's state says which one counts."""
RUNNING: Final = "job_running/"
"""The prefix of a key that exists while a job has not ended."""
MESSAGES: Final = "job_mail/"
"""The prefix of messages to the processes that run jobs, then of the job's id; and the topic of those ids."""
WORKERS: Final = "worker/"
"""The prefix of a key for each worker that lives."""
_LOG_CHARACTERS: Final = 1000
_STARTED: Final = (
    "The job goes on by itself, so do not make the same call again. Call {} until 'status' is no longer 'working': "
    "then 'result' has the answer."
)
TASKS: Final = "tasks"
"""The capability of clients that declare MCP's extension for tasks."""


class JobCaller(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who started a job; the profile by its name, because it is looked up again when the job is resumed."""

    identity: str
    scope: str = ""
    claims: dict[str, Any] = {}
    profile: str | None = None
    client: str = ""

    @classmethod
    def of(cls, caller: Caller) -> "JobCaller":
        """Return a caller as data."""
        profile = None if caller.profile is None else caller.profile.name
        return cls(caller.identity, caller.scope, caller.claims, profile, caller.client)

    def caller(self, profile: Profile | None) -> Caller:
        """Return the caller with its profile."""
        return Caller(identity=self.identity, scope=self.scope, claims=self.claims, profile=profile, client=self.client)


class JobOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job runs: written once, and read again by the process that resumes it."""

    name: str
    arguments: msgspec.Raw
    """JSON, with the session that the call found."""
    caller: JobCaller
    definition: str
    """The hash of the tool's name, input schema and operation, which must be the same when it is resumed."""
    safe: bool
    """Whether running it twice does no harm."""
    refs_resolved: bool = True
    """Whether what looks like a reference to a stored result is data; a chain resolves its own references."""
    inside: tuple[str, ...] = ()
    has_session: bool = False
    """Whether it needs a session, which lives in one process."""
    stays: bool = False
    """Whether it must not leave the machine where it started, although others share the store."""
    confirmation: dict[str, Any] | None = None
    """What a person answered to the confirmation that the tool declares."""
    channel: str = "library"
    capabilities: tuple[str, ...] = ()
    trace: dict[str, str] = {}
    trace_id: str | None = None
    result_characters: int | None = None
    """The longest answer that the client accepts, where it states one."""
    asks_before_destroy: bool = True
    """Whether its call asked before `destroy`; one of an earlier version, which did not say so, asks."""

    @property
    def owner(self) -> str:
        """Return the identity and scope whose list shows the job."""
        return self.caller.caller(None).owner

    def may_run_again(self, job: "Job") -> bool:
        """Return whether another process may run the job, as far as this one can tell."""
        return not (self.has_session or self.stays) and (self.safe or not job.claimed)


class LogLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A log line of a job."""

    level: str
    text: str
    facts: dict[str, Any] = {}


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a job."""

    id: str
    tool: str
    owner: str
    """The identity that may read and cancel it."""
    status: JobStatus = "working"
    created_at: float
    updated_at: float
    ttl: float
    """Seconds that it is kept after its end."""
    lease: int
    """The fencing token of the process that runs it: the process of an older lease can no longer change it."""
    claimed: bool = False
    unfit_since: float = 0.0
    """When a process first found that it lacks the tool, or has another definition of it; 0 if none did."""
    cancel_requested: bool = False
    result_key: str = ""
    progress: dict[str, Any] | None = None
    log: tuple[LogLine, ...] = ()
    asks: dict[str, ClientRequest] = {}
    """What it asks its client, by the id of each question."""
    partial: Any = None
    """The results so far, which are all that is left if its process ends."""

    @property
    def ended(self) -> bool:
        """Return whether it has ended."""
        return self.status in ENDED

    def view(self) -> dict[str, Any]:
        """Return what callers see of it, apart from its result."""
        seen: dict[str, Any] = {"status": self.status, "job_id": self.id, "tool_id": self.tool}
        seen |= {"created_at": round(self.created_at, 3), "updated_at": round(self.updated_at, 3)}
        if self.progress is not None:
            seen["progress"] = self.progress
        if self.log:
            seen["log"] = [msgspec.to_builtins(line) for line in self.log]
        if self.asks:
            seen["questions"] = {key: {"method": ask.method, "params": ask.params} for key, ask in self.asks.items()}
        return seen if self.ended else {**seen, "poll_after_ms": POLL_MS}


class JobResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of a job: its envelope, its content blocks, and the result of an upstream as it came."""

    envelope: msgspec.Raw
    blocks: tuple[dict[str, Any], ...] = ()
    is_plain: bool = False
    passed: str = ""
    passed_meta: dict[str, Any] = {}
    passed_handshake: str = ""

    @classmethod
    def of(cls, envelope: Envelope) -> "JobResult":
        """Return an answer as data."""
        blocks, passed = tuple(to_mcp(block) for block in envelope.content), envelope.passthrough
        text, is_plain = msgspec.Raw(envelope.to_json()), envelope.has_plain_shape
        if passed is None:
            return cls(text, blocks, is_plain)
        result, handshake = passed.result.decode(), passed.handshake_result.decode()
        return cls(text, blocks, is_plain, passed=result, passed_meta=passed.meta, passed_handshake=handshake)

    def to_envelope(self) -> Envelope:
        """Return the answer as an envelope."""
        envelope = Envelope.from_json(bytes(self.envelope))
        if self.blocks:
            envelope.content = tuple(map(_block_of, self.blocks))
        if self.passed:
            envelope.passthrough = UpstreamResult(
                envelope.data,
                self.passed.encode(),
                0,
                (),
                meta=self.passed_meta,
                handshake_result=self.passed_handshake.encode(),
            )
        envelope.has_plain_shape = self.is_plain
        return envelope


def _block_of(block: dict[str, Any]) -> Text | UpstreamBlock:
    return Text(block["text"]) if block.get("type") == "text" else UpstreamBlock(block)


def log_line(level: str, text: str, facts: Mapping[str, object]) -> LogLine:
    """Return a log line as data; a program may print megabytes, so the text is cut."""
    text = text if len(text) <= _LOG_CHARACTERS else f"{text[:_LOG_CHARACTERS]}…"
    return LogLine(level, text, msgspec.json.decode(encode(dict(facts))))


def list_prefix(owner: str) -> str:
    """Return the prefix of the list of an owner's jobs."""
    return f"job_list/{owner_key(owner)}/"


def list_entry(owner: str, job: Job) -> str:
    """Return the key of a job in the list of its owner; keys in order are jobs by age, the newest first."""
    return f"{list_prefix(owner)}{10**14 - int(job.created_at * 1000):014}/{job.id}"


def open_entry(identity: str, job_id: str) -> str:
    """Return the key of a job among those of an identity that have not ended; without an id, their prefix."""
    return f"job_open/{owner_key(identity)}/{job_id}"


async def tidy(store: Store, job: Job, owner: str) -> None:
    """Delete the order and the marks of a job that has ended, and let its entry in the list expire."""
    await asyncio.gather(
        store.put(list_entry(owner, job), b"", ttl=job.ttl),
        store.delete(ORDERS + job.id),
        store.delete(open_entry(job.owner, job.id)),
    )
    await store.delete(RUNNING + job.id)  # last, so that a job that was not tidied up is found


def new_job_id() -> str:
    """Return an id that cannot be guessed.

    Ids in order are jobs by age, the newest first, so that a list reads no more than it shows.
    """
    return f"j_{2**48 - int(time.time() * 1000):012x}{os.urandom(12).hex()}"


def resume_hash(spec: ToolSpec) -> str:
    """Return the hash of a tool's name, input schema and operation; a job goes on only with the same."""
    return sha256(encode_sorted([spec.name, spec.input_schema, str(spec.operation)])).hexdigest()[:32]


def started_data(job: Job, wait: str) -> dict[str, Any]:
    """Return the data of the answer to a call that became a job; `wait` is the action that waits for it, if any."""
    started = {"status": "working", "job_id": job.id, "poll_after_ms": POLL_MS}
    return {**started, "what_to_do": _STARTED.format(wait)} if wait else started


def cancelled(job: Job) -> Envelope:
    """Return the answer of a job that was cancelled."""
    error = ToolError("cancelled", "The job was cancelled.", blame="caller", may_have_run=job.claimed)
    return Envelope.fail(error, tool_id=job.tool)


def interrupted(job: Job, why: str, *, reason: str = "interrupted") -> Envelope:
    """Return the answer of a job whose process ended before it did."""
    hint = "Look at the state first: it may have run." if job.claimed else "Call it again."
    error = ToolError(
        "cancelled", why, hint=hint, blame="yard", may_have_run=job.claimed, reason=reason, data=job.partial
    )
    return Envelope.fail(error, tool_id=job.tool)
