from importlib.util import find_spec
from typing import Any

import pytest

from callyard import Operation
from callyard.model.spec import ToolSpec
from callyard.search import Found, Index, SearchSettings, make_index
from callyard.search.lexical import Lexical
from callyard.search.postings import Weights
from callyard.search.semantic import NEEDED, Vectors, load_encoder, text_of

MISSING = [package for package in NEEDED if find_spec(package) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"The extra 'semantic' is not installed: {', '.join(MISSING)}.")


def spec(name: str, description: str, **given: Any) -> ToolSpec:
    return ToolSpec(name=name, description=description, input_schema={}, operation=Operation.QUERY, **given)


SPECS = [
    spec("forecast", "Say whether it will rain tomorrow.", source="sky"),
    spec("invoice", "Write a bill for a customer.", source="billing"),
    spec("playlist", "Choose songs by a band.", source="music"),
]


def filled(specs: list[ToolSpec], **weights: Any) -> Index:
    index = make_index(SearchSettings(strategy="hybrid"), weights=Weights(**weights))
    for one in specs:
        index.add(one)
    return index


def names(found: Found) -> list[str]:
    return [hit.spec.name for hit in found.hits]


def test_a_similar_meaning_is_found_without_a_shared_word() -> None:
    found = filled(SPECS).search("do I need an umbrella", allows=lambda _: True)

    assert names(found)[0] == "forecast"


def test_a_tool_without_a_shared_word_or_similar_meaning_is_no_hit() -> None:
    fillers = [
        spec(f"filler_{number:03}", f"Weld the {word} of a ship.")
        for number, word in enumerate(("hull", "keel", "mast", "deck"))
    ]
    index = filled([*SPECS, *fillers], semantic_fit=0.3)

    found = index.search("write a bill", allows=lambda _: True, limit=50)
    assert names(found) == ["invoice"]
    assert (found.total, found.more) == (1, False)


@pytest.mark.parametrize("candidates", [8, 64])
@pytest.mark.parametrize("fit", [0.15, 0.3, 1])
def test_only_tools_similar_enough_or_close_to_the_best_are_on_the_pages(
    monkeypatch: pytest.MonkeyPatch, candidates: int, fit: float
) -> None:
    monkeypatch.setattr(Lexical, "CANDIDATES", candidates)
    things = ("songs", "ships", "stones", "laws", "melodies", "taxes", "concerts", "bolts")
    many = [spec(f"tool_{number:03}", f"Choose {thing} in lot {number}.") for number, thing in enumerate(things * 20)]
    held = spec("lend", "A table, a lamp or a carpet.")
    index = filled([*many, held], semantic_fit=fit, neighbours=0)
    vectors = Vectors(load_encoder())
    vectors.add([*many, held])
    alike = vectors.similarity("lend music", [])
    line = min(fit, max(0.7 * max(alike[name] for name in alike), fit * 2 / 3))
    like = [name for name in alike if alike[name] >= line or name == "lend"]

    whole = index.search("lend music", allows=lambda _: True, limit=400)
    pages = [
        names(index.search("lend music", allows=lambda _: True, offset=offset, limit=7)) for offset in range(0, 200, 7)
    ]
    assert (len(like) > 1, len(like) < len(many)) == (fit < 1, True)
    assert sorted(names(whole)) == sorted(like)
    assert [name for page in pages for name in page] == names(whole)
    assert (whole.total, whole.more) == (len(like), False)


def test_words_and_meaning_count_together_and_a_name_comes_first() -> None:
    index = filled(SPECS)

    assert names(index.search("customer bill, and then music", allows=lambda _: True))[0] == "invoice"
    assert names(index.search("playlist", allows=lambda _: True))[0] == "playlist"
    assert names(index.search("", allows=lambda _: True)) == ["forecast", "invoice", "playlist"]


def test_a_denied_tool_does_not_show_and_pages_have_no_gaps() -> None:
    many = [
        spec(f"song_{number:03}", "Plays music." if number % 2 else "Plays a tune.", source="music")
        for number in range(300)
    ]
    index = filled(many)

    def odd(one: ToolSpec) -> bool:
        return one.description == "Plays music."

    whole = names(index.search("music", allows=odd, limit=400))
    pages = [names(index.search("music", allows=odd, offset=offset, limit=11)) for offset in range(0, 400, 11)]
    assert [name for page in pages for name in page] == whole
    assert sorted(whole) == [one.name for one in many if odd(one)]


def test_nothing_fits_and_the_closest_namespaces_are_named() -> None:
    index = filled(SPECS, semantic_fit=1)

    found = index.search("qqqq zzzz", allows=lambda _: True)
    assert (found.hits, found.total) == ([], 0)
    assert set(found.closest) == {"sky", "billing", "music"}
    assert filled([]).search("music", allows=lambda _: True) == Found(hits=[], total=0)


def test_a_tool_that_is_removed_or_changed_is_forgotten() -> None:
    index = filled(SPECS)
    index.search("umbrella", allows=lambda _: True)
    index.remove("forecast")
    index.add(spec("invoice", "Hand out umbrellas against the rain."))
    index.add(spec("soon_gone", "Umbrella."))
    index.remove("soon_gone")

    assert names(index.search("do I need an umbrella", allows=lambda _: True))[0] == "invoice"


def test_both_topics_of_a_query_are_found() -> None:
    found = filled(SPECS).search("will it rain, and then write a bill", allows=lambda _: True)

    assert set(names(found)[:2]) == {"forecast", "invoice"}


def test_a_text_without_a_word_has_a_vector_that_is_like_nothing() -> None:
    rows = load_encoder().encode(["", "rain"])

    assert [round(float(row @ row), 3) for row in rows] == [0.0, 1.0]


def test_the_text_of_a_tool_is_what_it_is_and_does() -> None:
    assert text_of(spec("gh__createIssue", "Opens one.", source="gh")) == "gh create issue createissue. opens one."


def test_the_tools_that_are_most_alike_come_first() -> None:
    specs = [
        spec(f"note_{number}", f"Take note of the {word}.")
        for number, word in enumerate(("weather", "river", "bank", "music"))
    ]
    vectors = Vectors(load_encoder())
    vectors.add(specs)
    near = vectors.similarity("what is the weather like", [])

    assert list(near) == sorted(near, key=lambda name: -near[name])
    assert next(iter(near)) == "note_0"
