"""Runs jobs of servers in a yard of this process, until a signal ends it."""

import logging
import sys
from contextlib import redirect_stdout

from msgspec.structs import replace

from callyard._internal.logfmt import log_value
from callyard.config import Config
from callyard.jobs.worker import JobWorker
from callyard.launch.build import apply_settings
from callyard.launch.errors import LaunchError, explain_refusal
from callyard.launch.monitor import Monitor
from callyard.launch.notices import Notices
from callyard.launch.signals import run, success_on_sigterm
from callyard.transports import fastest_loop
from callyard.yard import Yard

__all__ = ["run_job_worker"]

_log = logging.getLogger(__name__)


def run_job_worker(yard: Yard, config: Config, notices: Notices) -> None:
    """Apply settings to a yard that is not open yet, and run jobs of the servers that share its store.

    Raises:
        LaunchError: The yard cannot be opened with these settings, or its store has no queue.
    """
    apply_settings(yard, config, notices, serves=True)
    serving = replace(config.settings.serve, transport="stdio")  # nothing of a server over HTTP is needed
    config = replace(config, settings=replace(config.settings, serve=serving))
    if serving.ask_before_destroy:
        yard.ask_before_destroy(always=False)
    with redirect_stdout(sys.stderr), success_on_sigterm():
        try:
            monitor = Monitor(yard, config, is_authenticated=False, notices=notices)
            run(_work(yard, monitor, notices, drain_s=serving.shutdown_seconds), loop=fastest_loop())
        except Exception as error:
            raise LaunchError(explain_refusal(error, yard)) from error


async def _work(yard: Yard, monitor: Monitor, notices: Notices, *, drain_s: float) -> None:
    async with monitor.open(), yard:
        worker = JobWorker(yard.jobs)
        await yard.jobs.connect_queue()
        _log.info("working yard=%s", log_value(yard.name))
        notices.say(f"'{yard.name}' runs jobs of the servers on its store.")
        await worker.run(drain_s=drain_s)
