import math
from typing import Any

import msgspec
import pytest
from table_tests import every_row

from callyard.config.settings import Serving


def make(name: str, value: Any) -> Serving:
    return Serving(**{name: value})


def test_every_setting_has_a_default() -> None:
    settings = msgspec.structs.asdict(Serving())

    assert settings["transport"] == "stdio"
    assert settings["host"] == "127.0.0.1"
    assert Serving(**settings) == Serving()


DEFAULTS = msgspec.structs.asdict(Serving())
BOOLEANS = [name for name, value in DEFAULTS.items() if isinstance(value, bool)]
NUMBERS = [name for name, value in DEFAULTS.items() if isinstance(value, int | float) and name not in BOOLEANS]


@every_row("name", NUMBERS)
@every_row("value", [-1, -0.5, math.nan])
def test_no_number_is_negative(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        make(name, value)


@every_row("name", BOOLEANS)
@every_row("value", [-1, -0.5, 0, 1, 1.0, math.nan, "true", ""])
def test_a_boolean_is_true_or_false_and_nothing_else(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^The setting '{name}' must be true or false\.$"):
        make(name, value)


@every_row("name", BOOLEANS)
@every_row("value", [False, True])
def test_a_boolean_is_kept_as_it_is(name: str, value: bool) -> None:  # noqa: FBT001 - a column of the table
    assert getattr(make(name, value), name) is value


@pytest.mark.parametrize("name", ["workers", "connections", "page_size"])
def test_some_numbers_are_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        make(name, 0)


@every_row(
    "settings",
    [
        {"workers": 2},
        {"tls_cert": "cert.pem"},
        {"tls_key": "key.pem"},
        {"port": 65536},
    ],
)
def test_settings_that_make_no_sense_together_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings)).removesuffix("s")):
        Serving(**settings)


def test_settings_that_make_sense_together_are_taken() -> None:
    assert Serving(workers=2, stateless=True).workers == 2
    assert Serving(tls_cert="c", tls_key="k").tls_key == "k"
    assert Serving(port=0).port == 0
    assert Serving(port=65535).port == 65535


def test_lists_are_kept_as_tuples() -> None:
    names: Any = ["a", "b"]
    serving = Serving(allowed_hosts=names, allowed_origins=names, request_headers=names)

    assert (serving.allowed_hosts, serving.allowed_origins, serving.request_headers) == (("a", "b"),) * 3


def test_a_setting_that_is_none_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"prot": 1}, Serving)
    with pytest.raises(TypeError):
        make("prot", 1)


@every_row(
    ("name", "value"),
    [
        ("keep_alive", "x"),
        ("page_size", 1.5),
        ("port", "80"),
        ("workers", True),
        ("ask_seconds", False),
        ("stateless", 1),
        ("reload", "no"),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^The setting '{name}' must be (a whole number|a number|true or false)\.$"):
        make(name, value)


def test_a_whole_number_is_a_number() -> None:
    assert Serving(keep_alive=3).keep_alive == 3


@pytest.mark.parametrize("name", ["allowed_hosts", "allowed_origins", "request_headers"])
def test_one_text_is_no_list(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^The setting '{name}' must be a list of texts, not one text\.$"):
        make(name, "example.org")


def test_an_address_may_be_written_as_in_a_url() -> None:
    assert Serving(host="[::1]").host == "::1"


@pytest.mark.parametrize("name", ["streamable", "streamable-http", "http"])
def test_http_has_another_name(name: str) -> None:
    assert Serving(transport=name).transport == "http"


def test_tls_needs_a_certificate_and_can_be_switched_off() -> None:
    with pytest.raises(ValueError, match="tls_cert"):
        Serving(tls=True)
    assert Serving(tls=True, tls_cert="c", tls_key="k").tls_cert == "c"
    assert Serving(tls=True, tls_cert="c", tls_key="k").certificate == ("c", "k")
    assert Serving(tls=False, tls_cert="c", tls_key="k").certificate is None
