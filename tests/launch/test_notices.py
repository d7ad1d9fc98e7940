"""The log of a server on stderr: every line of every library, without secrets."""

import logging
import re

import pytest

from callyard.launch.notices import Notices, logging_to


@pytest.mark.parametrize(("verbose", "shows_message"), [(1, False), (2, True)])
def test_lines_and_tracebacks_of_every_library_are_masked_and_messages_of_exceptions_need_vv(
    capsys: pytest.CaptureFixture[str], *, verbose: int, shows_message: bool
) -> None:
    log = logging.getLogger("another.library")
    with logging_to(Notices(), verbose=verbose, quiet=False):
        log.info("GET %s", "https://ada:hunter2@h/?token=hunter2")
        try:
            int("a word, and token=hunter2")
        except ValueError:
            log.exception("failed")

    text = capsys.readouterr().err
    assert "hunter2" not in text
    assert "GET https://***@h/?token=***" in text
    assert re.search(r"^ValueError", text, re.MULTILINE)
    assert ("a word" in text.rpartition("ValueError")[2]) is shows_message
