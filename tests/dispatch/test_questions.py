"""The open questions of a yard: what is bounded, and for whom."""

from contextlib import ExitStack

import pytest

from callyard.dispatch import questions
from callyard.dispatch.questions import Question, Questions
from callyard.dispatch.sessions import SHARED_OWNER
from callyard.model.errors import ToolError


def ask(number: int, owner: str = "3:ada:", size: int = 0) -> Question:
    return Question(id=f"q{number}", kind="approval", owner=owner, call_id=f"c{number}", tool="wipe", size=size)


def refused(open_questions: Questions, question: Question) -> bool:
    try:
        with open_questions.open(question):
            return False
    except ToolError as error:
        return error.code == "overloaded"


def test_questions_are_bounded_for_each_caller_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "_MAX_QUESTIONS_OF_OWNER", 2)
    monkeypatch.setattr(questions, "_MAX_QUESTIONS", 4)
    several = Questions()
    with ExitStack() as stack:
        for number in range(2):
            stack.enter_context(several.open(ask(number)))
        assert refused(several, ask(3))
        assert not refused(several, ask(4, "3:ben:"))
        assert not refused(several, ask(5, SHARED_OWNER))
        for number in range(6, 8):
            stack.enter_context(several.open(ask(number, SHARED_OWNER)))
        assert refused(several, ask(9, "3:ben:"))
    assert len(several) == 0
    assert not refused(several, ask(10))


def test_questions_are_bounded_in_bytes_for_each_caller_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "_MAX_BYTES_OF_OWNER", 100)
    monkeypatch.setattr(questions, "_MAX_BYTES", 150)
    several = Questions()
    with several.open(ask(1, size=60)):
        assert refused(several, ask(2, size=60))
        assert not refused(several, ask(3, "3:ben:", size=60))
        assert refused(several, ask(4, "3:ben:", size=95))
    assert not refused(several, ask(5, size=100))


def test_a_question_is_listed_for_its_owner_while_it_is_open() -> None:
    several = Questions()
    with several.open(ask(1)) as question:
        question.expire_after(60)
        assert [one.id for one in several.of("3:ada:")] == ["q1"]
        assert several.of("3:ben:") == []
        assert question.expires_at > 0
    assert several.of("3:ada:") == []


def test_no_two_questions_have_the_same_id() -> None:
    first, second = Questions(), Questions()
    assert len({first.new_id(), first.new_id(), second.new_id(), second.new_id()}) == 4
