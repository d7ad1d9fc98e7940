import pytest

from toolyard.providers.functions.signature import read_docstring


@pytest.mark.parametrize("text", [None, ""])
def test_no_docstring_says_nothing(text: str | None) -> None:
    assert read_docstring(text) == ("", {})


def test_the_description_is_everything_before_the_first_section() -> None:
    text = """Walk.

    Slowly, and with care: the floor is wet.

    Args:
        steps: How many.

    Returns:
        How far.
    """

    assert read_docstring(text).description == "Walk.\n\nSlowly, and with care: the floor is wet."


@pytest.mark.parametrize("heading", ["Args", "Arguments", "Parameters"])
def test_parameters_are_described_in_google_style(heading: str) -> None:
    text = f"""Walk.

    {heading}:
        steps: How many.
        pace (str, optional): How fast;
            slow is healthy,

            they say.
        *stops: Where to rest.
        **options: Anything: really.
        empty:
        later:
            Below its name.

    Returns:
        far: How far.

    Raises:
        ValueError: Never.
    """

    assert read_docstring(text).parameters == {
        "steps": "How many.",
        "pace": "How fast; slow is healthy, they say.",
        "stops": "Where to rest.",
        "options": "Anything: really.",
        "empty": "",
        "later": "Below its name.",
    }


def test_parameters_are_described_in_sphinx_style() -> None:
    text = """Walk.

    :param steps: How many.
    :param str pace: How fast;
        slow is healthy.
    :type pace: str
        or so
    :param dict[str, int] stops: Where to rest.
    :returns: How far.
    """

    assert read_docstring(text) == (
        "Walk.",
        {"steps": "How many.", "pace": "How fast; slow is healthy.", "stops": "Where to rest."},
    )


def test_sections_that_describe_no_parameters_describe_none() -> None:
    text = """Walk.

    Examples:
        steps: 5

    Attributes:
        pace: Slow.

    Args:
        steps: How many.
    """

    assert read_docstring(text) == ("Walk.", {"steps": "How many."})


def test_a_line_that_is_no_entry_is_part_of_none() -> None:
    text = """Walk.

    Args:
        see the manual
        steps: How many.
    that is all
        and this is nothing
    """

    assert read_docstring(text).parameters == {"steps": "How many."}


def test_a_docstring_of_one_line_is_its_description() -> None:
    assert read_docstring("  Walk.  ") == ("Walk.", {})


def test_a_docstring_may_hold_nothing_but_parameters() -> None:
    assert read_docstring(":param steps: How many.") == ("", {"steps": "How many."})
    assert read_docstring("Args:\n    steps: How many.") == ("", {"steps": "How many."})
