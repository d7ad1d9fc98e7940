"""What every test shares: how many examples hypothesis tries, and a state directory that is nobody's."""

import os
import signal
import sys
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ("shared_fixtures",)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background ignores SIGINT, and programs that tests interrupt would inherit
    # that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "callyard",
    max_examples=int(os.environ.get("CI_EXAMPLES", "200")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("callyard")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Save what was covered: processes of pytest-xdist have ten seconds to end, too few on a busy machine."""
    coverage = sys.modules.get("coverage")
    current = None if coverage is None else coverage.Coverage.current()
    if current is not None:
        current.save()


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Keep what tests write out of the state directory of whoever runs them, and out of his keyring."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
        yield
