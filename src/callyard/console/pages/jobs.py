"""The page 'Jobs': calls that go on in the background, their questions and their results.

Everybody who may read sees that a job is there and how far it is. Its log lines, texts and questions are for people
with a login, and its result only for the identity that started it.
"""

from typing import Any, Final

import msgspec

from callyard._internal.mask import mask_text
from callyard.console.access import Person
from callyard.console.form import defaults_of, make_form, read_answer
from callyard.console.page import Done, Page, Parts, View, url
from callyard.jobs.job import JOBS, RUNNING, Job, JobStatus
from callyard.model.elicitation import form_content
from callyard.model.errors import not_found
from callyard.state.store import StoreUnavailableError

__all__ = ["JobsPage"]

_WORDS: Final[dict[JobStatus, tuple[str, str]]] = {
    "working": ("accent", "Working"),
    "input_required": ("warn", "Asks something"),
    "completed": ("ok", "Completed"),
    "failed": ("bad", "Failed"),
    "cancelled": ("", "Cancelled"),
    "interrupted": ("bad", "Interrupted"),
}
_FORM: Final = "elicitation/create"
_ROWS: Final = 50
_PAGES: Final = 10_000
_SEARCHED: Final = 1000
"""How many of the newest jobs a filter looks at."""
_OPEN: Final = ("working", "input_required")
"""The statuses of jobs that have not ended, which have a list of their own."""


class JobsPage(Page):
    """Calls in the background."""

    name = "jobs"

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._ended: dict[str, Job] = {}
        """Jobs that have ended, which do not change any more: those that were read last."""
        self._codes: dict[str, str] = {}
        """The codes of their failures, of those that were shown; empty for a success."""

    async def context(self, view: View) -> dict[str, Any]:
        """Return the jobs, the newest first, and the one that is open."""
        wanted = view.query.get("page", "")
        number = min(max(int(wanted), 1), _PAGES) if wanted.isdecimal() else 1
        jobs = await self._newest(view.query.get("status", ""), view.query.get("q", "").lower(), number)
        facts: dict[str, Any] = {
            "jobs": jobs[:_ROWS],
            "codes": {job.id: await self._code_of(job) for job in jobs[:_ROWS]},
            "page_number": number,
            "has_more": len(jobs) > _ROWS,
            "words": _WORDS,
            "open": None,
            "mask": mask_text,
            "endpoint": self.yard.address or "URL",
        }
        opened = view.query.get("open", "")
        if opened and view.person.can_act:  # whoever knows the id of a job can read its result, so readers see none
            job = facts["open"] = await self.yard.jobs.known(opened)
            facts |= {} if job is None else await self._details(job, view.person)
        return facts

    async def count(self) -> int:
        """Return how many jobs have not ended; 0 if the store cannot be read."""
        try:
            return len(await self.yard.store.keys(RUNNING))
        except StoreUnavailableError:
            return 0

    async def act(self, view: View) -> Done:
        """Cancel a job, or answer one of its questions."""
        match view.path:
            case ("cancel", job_id):
                job = await self.yard.jobs.cancel(job_id, None)
                ended = f"The job had ended: {_WORDS[job.status][1].lower()}."
                notice = ended if job.ended else "The job is being cancelled."
                return Done(to=url(self.name, open=job_id), notice=notice)
            case ("answer", job_id):
                return await self._answer(job_id, view)
            case _:
                raise LookupError

    async def _answer(self, job_id: str, view: View) -> Done:
        job, key = await self.yard.jobs.get(job_id, None), view.form.get("key", "")
        ask = job.asks.get(key)
        if ask is None or ask.method != _FORM or ask.approval_id:  # approvals are decided on their own page
            raise not_found("question", key)
        is_answered = view.form.get("action") == "accept"
        answer: dict[str, Any] = {"action": "accept" if is_answered else "decline"}
        if is_answered:
            answer["content"] = read_answer(view.form.get("content", ""))
            form_content(ask, answer)  # refuses what does not fit
        await self.yard.jobs.answer(job_id, None, {key: answer})
        return Done(to=url(self.name, open=job_id), notice="Answered." if is_answered else "Declined.")

    async def _newest(self, status: str, words: str, number: int) -> list[Job]:
        """Return the jobs of a page, the newest first, and one more if another page follows.

        No more are read than the page shows.
        """
        prefix = RUNNING if status in _OPEN else JOBS
        first, end = (number - 1) * _ROWS, number * _ROWS + 1
        if not status and not words:
            entries = (await self.yard.store.keys(prefix, limit=end))[first:]
            return [job for key in entries if (job := await self._read(key.removeprefix(prefix))) is not None]
        found: list[Job] = []
        for key in await self.yard.store.keys(prefix, limit=_SEARCHED):  # only reading tells whether a job fits
            job = await self._read(key.removeprefix(prefix))
            if job is not None and status in {"", job.status} and words in f"{job.tool} {job.owner}".lower():
                found.append(job)
                if len(found) == end:
                    break
        return found[first:]

    async def _read(self, job_id: str) -> Job | None:
        """Return a job, if there is one of this id; one that has ended is read once."""
        job = self._ended.get(job_id) or await self.yard.jobs.known(job_id)
        if job is not None and job.ended:
            if len(self._ended) >= 2 * _SEARCHED:
                self._ended.clear()
                self._codes.clear()
            self._ended[job_id] = job
        return job

    async def _code_of(self, job: Job) -> str:
        """Return the code with which a job failed; its result is read once."""
        if job.status != "completed":
            return ""
        if job.id not in self._codes:
            result = await self.yard.jobs.result(job)
            self._codes[job.id] = "" if result is None or result.error is None else result.error.code
        return self._codes[job.id]

    async def _details(self, job: Job, person: Person) -> dict[str, Any]:
        result = await self.yard.jobs.result(job)
        is_shown = result is not None and job.owner == person.identity
        return {
            "make_form": make_form,
            "defaults_of": defaults_of,
            "has_result": result is not None,
            "code": "" if result is None or result.error is None else result.error.code,
            "envelope": msgspec.json.decode(result.to_json()) if result is not None and is_shown else None,
        }
