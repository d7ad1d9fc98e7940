"""Making upstreams: from settings to a provider, with the link that its carrier wants and all that is kept of it."""

from collections.abc import Callable
from pathlib import Path

from toolyard.providers.upstream.catalogue import folder_of
from toolyard.providers.upstream.link import OPEN, Credentials, Link
from toolyard.providers.upstream.pins import Pins
from toolyard.providers.upstream.provider import Upstream
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.state_dir import find_state_dir

__all__ = ["make_upstream"]


def make_upstream(
    name: str, settings: UpstreamSettings, *, state: Path | None = None, pins: Pins | None = None, longest: int = 48
) -> Upstream:
    """Return a provider of what an upstream offers; what is known of it is kept in the state directory, by default the usual one."""
    folder = folder_of(state or find_state_dir(), name)
    credentials = _credentials(name, settings, folder)
    link = _link(name, settings, folder, credentials)
    return Upstream(name, settings, link=link, folder=folder, credentials=credentials, pins=pins, longest=longest)


def _credentials(name: str, settings: UpstreamSettings, folder: Path) -> Credentials:
    """Return what is shown to an upstream; one whose headers say already who calls is shown nothing else."""
    if settings.url is None or settings.authorizes:
        return OPEN
    from toolyard.providers.upstream.login.credentials import SignedIn  # noqa: PLC0415 - programs need no login

    return SignedIn(name, settings, folder)


def _link(name: str, settings: UpstreamSettings, folder: Path, credentials: Credentials) -> Callable[[], Link]:
    """Return what makes a link; its carrier is loaded with the first one, because lists need none."""

    def make() -> Link:
        if settings.carrier == "stdio":
            from toolyard.providers.upstream.pipe import Pipe  # noqa: PLC0415 - lists need no carrier

            return Pipe(name, settings, log=folder / "stderr.log")
        if settings.carrier == "sse":
            from toolyard.providers.upstream.http.sse import SseLink  # noqa: PLC0415 - lists need no carrier

            return SseLink(name, settings, credentials)
        from toolyard.providers.upstream.http.link import HttpLink  # noqa: PLC0415 - lists need no carrier

        return HttpLink(name, settings, credentials)

    return make
