import pytest

from toolyard.wire import messages as faults
from toolyard.wire.messages import HTTP_STATUS, INTERNAL, Fault


@pytest.mark.parametrize(("code", "status"), HTTP_STATUS.items())
def test_a_fault_has_a_status(code: int, status: int) -> None:
    assert Fault(code, "No.").http == status


def test_a_fault_without_a_status_of_its_own_is_an_answer() -> None:
    assert Fault(INTERNAL, "No.").http == 200


def test_a_fault_says_what_it_is() -> None:
    fault = Fault(-32602, "No.", {"uri": "a://b"})

    assert (fault.code, fault.message, fault.data, str(fault)) == (-32602, "No.", {"uri": "a://b"}, "No.")


def test_no_two_codes_are_the_same() -> None:
    codes = [value for value in vars(faults).values() if isinstance(value, int) and value <= -32000]
    assert len(set(codes)) == len(codes) == 8
