"""What every test shares: how many examples hypothesis tries."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "toolyard",
    max_examples=int(os.environ.get("CI_EXAMPLES", "200")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("toolyard")
