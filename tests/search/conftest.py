from typing import Any

import pytest

from callyard import Operation
from callyard.model.spec import ToolSpec


def make_spec(name: str, description: str = "", **given: Any) -> ToolSpec:
    operation = given.pop("operation", Operation.QUERY)
    properties = given.pop("properties", {})
    schema = {"type": "object", "properties": properties}
    return ToolSpec(name=name, description=description, input_schema=schema, operation=operation, **given)


SPECS = [
    make_spec(
        "get_weather",
        "Say what the weather will be in a city.",
        properties={"city": {"type": "string", "description": "Where."}},
    ),
    make_spec(
        "create_invoice", "Write a bill for a customer.", operation=Operation.COMMAND, source="billing", tags=("money",)
    ),
    make_spec("list_invoices", "List the bills of a customer.", source="billing", tags=("money",)),
    make_spec("delete_invoice", "Remove a bill for good.", operation=Operation.DESTROY, source="billing"),
    make_spec("github__create_issue", "Open an issue in a repository.", operation=Operation.COMMAND, source="github"),
    make_spec("github__list_issues", "List the issues of a repository.", source="github"),
    make_spec(
        "github__searchCode",
        "Find code by its text.",
        source="github",
        properties={"language": {"enum": ["python", "rust"]}},
    ),
    make_spec("send_mail", "Send a letter to someone over the internet.", operation=Operation.COMMAND, source="post"),
]


@pytest.fixture
def specs() -> list[ToolSpec]:
    return list(SPECS)
