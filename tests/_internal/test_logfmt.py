"""How unexpected exceptions and unknown names are logged: without the contents that they may hold."""

import logging
from typing import NoReturn

import pytest
from table_tests import every_row

from callyard._internal.logfmt import is_tool_name, log_exception, traceback_of

_log = logging.getLogger("callyard.test")


class AwkwardError(Exception):
    """Cannot be written."""

    def __str__(self) -> str:
        raise ValueError


def raise_key(secret: str) -> NoReturn:
    raise KeyError(secret)


def raised(secret: str) -> Exception:
    try:
        try:
            raise_key(secret)
        except KeyError as error:
            raise RuntimeError(f"No {secret}.") from error
    except RuntimeError as error:
        return error


def test_an_exception_is_logged_by_type_and_place_and_its_message_only_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "callyard.test")
    log_exception(_log, "failed id=%s", 7, error=raised("hunter2"))
    caplog.set_level(logging.DEBUG, "callyard.test")
    log_exception(_log, "failed id=%s", 8, error=raised("hunter2"), contents=lambda: ["hunter2"])
    log_exception(_log, "failed id=%s", 9, error=raised("hunter2"))

    first, second, third = (logging.Formatter().format(record) for record in caplog.records)
    assert first.startswith("failed id=7\n")
    assert "in raised" in first
    assert "KeyError" in first
    assert first.endswith("RuntimeError")
    assert "hunter2" not in first + second
    assert second.endswith("RuntimeError: No ***.")
    assert third.endswith("RuntimeError: No hunter2.")
    assert caplog.records[0].funcName == "test_an_exception_is_logged_by_type_and_place_and_its_message_only_at_debug"
    assert all(record.exc_info is None for record in caplog.records)


def test_the_current_exception_is_logged_unless_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    for level in (logging.ERROR, logging.CRITICAL):
        caplog.set_level(level, "callyard.test")
        try:
            [].pop()
        except LookupError:
            log_exception(_log, "failed")
    log_exception(_log, "without an exception")

    assert [logging.Formatter().format(record).splitlines()[-1] for record in caplog.records] == ["IndexError"]


def test_causes_groups_and_awkward_exceptions_have_a_traceback() -> None:
    group = ExceptionGroup("hunter2", [raised("hunter2"), AwkwardError("hunter2")])

    plain = traceback_of(group, with_messages=False)
    detailed = traceback_of(group, with_messages=True, known=["hunter2"])

    assert "hunter2" not in plain + detailed
    assert plain.count("In a group:") == 2
    assert "test_logfmt.AwkwardError" in plain
    assert "its message raises ValueError" in detailed


def test_a_secret_of_the_environment_is_masked_in_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter2")

    assert traceback_of(raised("hunter2"), with_messages=True).endswith("RuntimeError: No ***.")


@every_row("name", ["add", "list_orders", "files__read-file", "oauth2_login", "get.v2", "step_3", "a:b"])
def test_names_made_of_words_may_be_logged(name: str) -> None:
    assert is_tool_name(name)


@every_row(
    "name", ["s3cr3t-hunter2", "sk-ant-api03-abc", "ghp_abcdefghijkl", "a b", "x" * 65, "", "4711", "pass1234word"]
)
def test_names_that_may_be_secrets_are_not_logged(name: str) -> None:
    assert not is_tool_name(name)
