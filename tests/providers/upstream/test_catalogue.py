"""Published names and URIs are unique, and do not depend on other upstreams."""

import re

from hypothesis import given
from hypothesis import strategies as st

from callyard.providers.upstream.catalogue import publish_uris, published_names, published_uri, upstream_uri


def test_characters_outside_the_allowed_set_become_underscores() -> None:
    assert published_names("git", ["createIssue", "repo.read", "a b"], longest=48) == {
        "createIssue": "git__createIssue",
        "repo.read": "git__repo_read",
        "a b": "git__a_b",
    }


def test_without_a_prefix_names_stay_as_they_are() -> None:
    assert published_names("", ["add"], longest=48) == {"add": "add"}


def test_of_two_names_that_collide_the_changed_one_gets_a_hash() -> None:
    named = published_names("x", ["a_b", "a.b"], longest=48)

    assert named["a_b"] == "x__a_b"
    assert re.fullmatch("x__a_b_[0-9a-f]{6}", named["a.b"])


@given(st.lists(st.text(min_size=1, max_size=90), unique=True, max_size=20))
def test_published_names_are_short_and_unique(own: list[str]) -> None:
    named = published_names("upstream", own, longest=48)

    assert len(set(named.values())) == len(own)
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,48}", name) for name in named.values())


@given(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True), st.from_regex(r"[a-z]{1,8}://[a-z/{}]{0,20}", fullmatch=True))
def test_a_published_uri_is_translated_back_unchanged(prefix: str, uri: str) -> None:
    ours = published_uri(prefix, uri)

    assert upstream_uri(prefix, ours) == uri
    assert re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", ours)


def test_uris_in_content_and_messages_become_the_published_ones() -> None:
    told = {
        "messages": [{"role": "user", "content": {"type": "resource", "resource": {"uri": "a://1", "text": "uri"}}}],
        "other": {"uri": 5},
    }

    assert publish_uris("up", told)["messages"][0]["content"]["resource"] == {"uri": "up+a://1", "text": "uri"}
    assert publish_uris("up", [{"type": "resource_link", "uri": "b://2"}]) == [{"type": "resource_link", "uri": "up+b://2"}]
