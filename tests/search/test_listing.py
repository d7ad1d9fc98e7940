from toolyard import Operation
from toolyard.search.listing import Listing
from toolyard.spec import ToolSpec


def spec(name: str, source: str) -> ToolSpec:
    return ToolSpec(name=name, description="A tool.", input_schema={}, operation=Operation.QUERY, source=source)


def test_the_largest_namespaces_come_first_and_only_such_as_hold_something_allowed() -> None:
    listing = Listing()
    for number in range(7):
        for more in range(number + 1):
            listing.add(spec(f"tool_{number}_{more}", f"space_{number}"))

    assert listing.closest((), lambda _: True) == ["space_6", "space_5", "space_4", "space_3", "space_2"]
    assert listing.closest((), lambda one: one.source == "space_0") == ["space_0"]


def test_looking_for_a_namespace_ends_however_much_is_denied() -> None:
    listing = Listing()
    asked: list[str] = []
    for number in range(5000):
        listing.add(spec(f"tool_{number}", f"space_{number % 3}"))

    def deny(one: ToolSpec) -> bool:
        asked.append(one.name)
        return False

    assert listing.closest((), deny) == []
    assert len(asked) == 2000
