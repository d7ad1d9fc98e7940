"""Addresses of MCP Apps: below the name of an upstream and back, and which one is meant."""

from typing import Any

from callyard import Yard, resource, tool
from callyard.model.apps import origins_of, served_as, served_tool, with_app_uris, with_prefix, without_prefix
from callyard.model.spec import PublishError
from callyard.testing import connect


def test_an_address_below_an_upstream_leads_back_to_its_own() -> None:
    served = with_prefix("up", "ui://chart/view.html")

    assert served == "ui://up+chart/view.html"
    assert without_prefix("up", served) == "ui://chart/view.html"
    assert without_prefix("up", "ui://chart/view.html") == "ui://chart/view.html"
    assert without_prefix("chart", "ui://chart/view.html") == "ui://chart/view.html"


def test_an_address_of_an_upstream_is_served_where_one_app_alone_has_it() -> None:
    nested = with_prefix("outer", with_prefix("inner", "ui://chart/a+b"))
    served = [nested, "ui://one+same/x", "ui://two+same/x", "ui://own/y"]

    assert origins_of(nested) == ["ui://inner+chart/a+b", "ui://chart/a+b"]
    assert served_as("ui://chart/a+b", served) == nested
    assert served_as("ui://inner+chart/a+b", served) == nested
    assert served_as("ui://same/x", served) == "ui://same/x"
    assert served_as("ui://nowhere/x", served) == "ui://nowhere/x"


def test_a_name_of_an_upstream_is_served_where_one_tool_alone_has_it() -> None:
    names = ["up__poll", "one__get", "two__get", "outer__inner__send"]

    assert served_tool("poll", names) == "up__poll"
    assert served_tool("send", names) == "outer__inner__send"
    assert served_tool("get", names) == "get"
    assert served_tool("oll", names) == "oll"


def test_both_forms_of_an_address_are_changed_and_the_rest_of_meta_is_kept() -> None:
    meta: dict[str, Any] = {"ui": {"resourceUri": "ui://a", "visibility": ["app"]}, "ui/resourceUri": "ui://a", "x": 1}

    assert with_app_uris(meta, str.upper) == {
        "ui": {"resourceUri": "UI://A", "visibility": ["app"]},
        "ui/resourceUri": "UI://A",
        "x": 1,
    }
    assert with_app_uris({"ui": {"visibility": ["app"]}, "ui/resourceUri": 7}, str.upper) == {
        "ui": {"visibility": ["app"]},
        "ui/resourceUri": 7,
    }


async def test_an_own_tool_names_its_page_and_the_page_keeps_its_policy() -> None:
    csp = {"ui": {"csp": {"connectDomains": ["https://tiles.example"]}}}

    @tool(operation="query", ui="ui://chart/view")
    def chart() -> dict[str, int]:
        """Show a chart."""
        return {"a": 1}

    @resource("ui://chart/view", meta=csp)
    def view() -> str:
        """Return the page of the chart."""
        return "<p>chart</p>"

    async with connect(Yard(tools=[chart], resources=[view])) as client:
        [spec] = client.yard.list_resources()
        read: Any = await client.read("ui://chart/view")
        listed = {spec.name: spec.extra for spec in client.list()}

    assert listed["chart"]["_meta"] == {"ui": {"resourceUri": "ui://chart/view"}, "ui/resourceUri": "ui://chart/view"}
    assert (spec.mime_type, spec.extra["_meta"]) == ("text/html;profile=mcp-app", csp)
    assert read.data["contents"][0] == {
        "uri": "ui://chart/view",
        "mimeType": "text/html;profile=mcp-app",
        "text": "<p>chart</p>",
        "_meta": csp,
    }


async def test_a_page_of_another_scheme_is_refused_when_it_is_published() -> None:
    @tool(ui="https://chart.example/")
    def chart() -> None:
        """Show a chart."""

    try:
        async with Yard(tools=[chart]):
            raise AssertionError
    except PublishError as error:
        assert "ui://" in str(error)  # noqa: PT017 - a yard raises it in a group or alone
