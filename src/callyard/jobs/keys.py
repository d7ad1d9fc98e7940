"""The keys of jobs in the store."""

from callyard.jobs.job import Job
from callyard.state.store import owner_key

__all__ = ["job", "lease", "list_entry", "list_prefix", "messages", "order", "result", "running", "topic"]


def job(job_id: str = "") -> str:
    """Return the key of a job's state."""
    return f"job/{job_id}"


def order(job_id: str) -> str:
    """Return the key of what a job runs."""
    return f"job_order/{job_id}"


def result(result_key: str) -> str:
    """Return the key of a job's answer; each process writes its own, and the job's state says which one counts."""
    return f"job_result/{result_key}"


def running(job_id: str = "") -> str:
    """Return the key that exists while a job has not ended."""
    return f"job_running/{job_id}"


def lease(job_id: str) -> str:
    """Return the key of the lease that the process of a job holds."""
    return f"job/{job_id}"


def topic(job_id: str) -> str:
    """Return the topic to which changes of a job are published."""
    return f"job/{job_id}"


def messages(job_id: str = "") -> str:
    """Return the prefix of messages to the process that runs a job."""
    return f"job_mail/{job_id}/" if job_id else "job_mail/"


def list_prefix(owner: str) -> str:
    """Return the prefix of the list of an owner's jobs."""
    return f"job_list/{owner_key(owner)}/"


def list_entry(owner: str, started: Job) -> str:
    """Return the key of a job in the list of its owner; keys in order are jobs by age, the newest first."""
    return f"{list_prefix(owner)}{10**14 - int(started.created_at * 1000):014}/{started.id}"
