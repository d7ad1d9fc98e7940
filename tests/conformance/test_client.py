"""The official conformance suite passes for a yard as the client of an upstream, and for its logins."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from tests.conformance.conftest import Suite

DRIVER: Final = f"{sys.executable} {Path(__file__).with_name('client_driver.py')}"
SIGNING_IN: Final = (
    *("metadata-default", "metadata-var1", "metadata-var2", "metadata-var3", "basic-cimd", "pre-registration"),
    *(
        "scope-from-www-authenticate",
        "scope-from-scopes-supported",
        "scope-omitted-when-undefined",
        "scope-step-up",
        "scope-retry-limit",
    ),
    *("token-endpoint-auth-basic", "token-endpoint-auth-post", "token-endpoint-auth-none"),
    *("client-credentials-jwt", "client-credentials-basic", "enterprise-managed-authorization"),
)
SCENARIOS: Final = {
    "2025-03-26": ("auth/2025-03-26-oauth-metadata-backcompat", "auth/2025-03-26-oauth-endpoint-fallback"),
    "2025-11-25": (
        *(
            "initialize",
            "tools_call",
            "elicitation-sep1034-client-defaults",
            "sse-retry",
            "json-schema-2020-12-preservation",
        ),
        *(
            "auth/metadata-default",
            "auth/scope-step-up",
            "auth/scope-retry-limit",
        ),  # the others do not depend on the era, and take long
    ),
    "2026-07-28": (
        *("tools_call", "request-metadata", "sep-2322-client-request-state"),
        *("http-standard-headers", "http-custom-headers", "http-invalid-tool-headers"),
        *("json-schema-ref-no-deref", "json-schema-2020-12-preservation"),
        *(f"auth/{name}" for name in SIGNING_IN),
        *("auth/resource-mismatch", "auth/offline-access-scope", "auth/offline-access-not-supported"),
        *("auth/authorization-server-migration", "auth/metadata-issuer-mismatch"),
        *("auth/iss-supported", "auth/iss-not-advertised", "auth/iss-supported-missing"),
        *("auth/iss-wrong-issuer", "auth/iss-unexpected", "auth/iss-normalized"),
    ),
}


@pytest.mark.parametrize(
    ("version", "scenario"), [(version, name) for version, names in SCENARIOS.items() for name in names]
)
def test_a_yard_does_as_a_client_what_the_suite_wants(
    suite: "Suite", tmp_path: Path, version: str, scenario: str
) -> None:
    report = suite.judge_client(
        DRIVER, tmp_path, "--scenario", scenario, "--spec-version", version, "--force", "--timeout", "50000"
    )

    assert report.checks("FAILURE") == []
    assert report.checks("WARNING") == []
    assert report.checks("SUCCESS") != []
    assert report.status == 0


@pytest.mark.parametrize(
    ("way", "scenario"),
    [
        ("--login-first", "auth/metadata-default"),
        ("--login-first", "auth/scope-step-up"),
        ("--login-first", "auth/enterprise-managed-authorization"),
        ("--address", "tools_call"),
        ("--address", "auth/metadata-default"),
        ("--client-file", "auth/metadata-default"),
    ],
)
def test_it_does_not_matter_when_somebody_signs_in_nor_whether_there_is_a_file(
    suite: "Suite", tmp_path: Path, way: str, scenario: str
) -> None:
    driver = f"{DRIVER} {way}"
    report = suite.judge_client(
        driver, tmp_path, "--scenario", scenario, "--spec-version", "2026-07-28", "--force", "--timeout", "50000"
    )

    assert report.checks("FAILURE") == []
    assert report.checks("SUCCESS") != []
    assert report.status == 0
