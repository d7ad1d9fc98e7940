"""What needs no browser: snapshots as data, hosts, masks and settings."""

from pathlib import Path
from typing import Any

import pytest
from callyard_browser.hosts import Hosts
from callyard_browser.masks import Masks
from callyard_browser.settings import Attachable, BrowserConfig, check_config
from callyard_browser.snapshot import Snapshot, changes_between, cut, parse
from page_server import open_browser

from callyard import PackError

PAGE = r"""
- generic [active] [ref=e1]:
  - heading "Orders" [level=1] [ref=e2]
  - 'button "a: \"b\" it''s" [disabled] [ref=e3]'
  - link "Home" [ref=e4] [cursor=pointer]:
    - /url: "/a?b=c: d"
  - textbox "n" [ref=e5]: "true"
  - textbox "z" [ref=e6]:
    - /placeholder: ph
    - text: v
  - paragraph [ref=e7]: "\x01 line"
  - generic [ref=e8] [cursor=pointer]: clicky
  - text: plain
  - list [ref=e9]:
    - listitem [ref=e10]:
      - text: one
      - button "Delete" [ref=e11]
    - listitem [ref=e12]:
      - text: two
      - button "Delete" [ref=e13]
  - table [ref=e14]:
    - row [ref=e15]:
      - cell "1" [ref=e16]
      - cell [ref=e17]:
        - list [ref=e18]:
          - listitem [ref=e19]: deep
  no list
"""


def test_a_snapshot_is_read_as_playwright_writes_it() -> None:
    snapshot = Snapshot(parse(PAGE))
    nodes = snapshot.by_ref

    assert nodes["e3"].name == 'a: "b" it\'s'
    assert nodes["e4"].url == "/a?b=c: d"
    assert nodes["e5"].text == "true"
    assert nodes["e7"].text == "\x01 line"
    assert [nodes[ref].can_act for ref in ("e2", "e3", "e8", "e9")] == [False, True, True, False]
    assert nodes["e11"].row == "one Delete"
    assert nodes["e13"].row == "two Delete"


def test_a_snapshot_is_written_compactly_with_rows_in_one_line() -> None:
    lines = [" " * line.depth + line.text for line in Snapshot(parse(PAGE)).lines]

    assert lines[:3] == ['heading "Orders" level=1', 'button "a: \\"b\\" it\'s" disabled [e3]', 'link "Home" [e4]']
    assert 'listitem: one | button "Delete" [e11]' in " ".join(lines)
    assert "plain" in lines
    assert any("deep" in line for line in lines)


def test_changes_are_reported_and_an_equal_text_is_none() -> None:
    old = Snapshot(parse(PAGE))
    same = Snapshot(parse(PAGE.replace("ref=e", "ref=f1e")))
    other = Snapshot(parse(PAGE.replace('"Orders"', '"Bills"').replace("plain", "fancy").replace('"Home"', '"House"')))

    assert changes_between(old, old) == []
    assert changes_between(old, same) == []
    assert changes_between(old, other) == ['~ heading "Bills" level=1', '~ link "House" [e4]', "+ fancy", "- plain"]


def test_lines_are_cut_to_a_number_of_tokens() -> None:
    assert cut(["a" * 30] * 10, 20) == ("\n".join(["a" * 30] * 2), 8)
    assert cut(["short"], 100) == ("short", 0)


def test_elements_like_one_that_is_gone_are_found() -> None:
    snapshot = Snapshot(parse(PAGE))

    assert snapshot.similar("button", "Delete it")[0] == 'button "Delete" [e11]'
    assert snapshot.similar("slider", "nothing") == []
    assert [node.ref for node in snapshot.alike("button", "Delete")] == ["e11", "e13"]
    assert snapshot.lines_of("e12")[0].text == 'listitem: two | button "Delete" [e13]'


def test_hosts_are_allowed_by_name_pattern_and_address() -> None:
    hosts = Hosts(["example.com", "*.example.org", "[::1]", "file:"])

    assert [hosts.allows(host) for host in ("example.com", "EXAMPLE.com.", "a.example.org", "::1")] == [True] * 4
    assert [hosts.allows(host) for host in ("a.example.com", "example.org", "127.0.0.1")] == [False] * 3
    assert hosts.refusal("file:///etc/hosts") is None
    assert hosts.refusal("about:blank") is None
    assert all(map(hosts.refusal, ("chrome://version", "data:text/html,x", "https://other.net/", "http://[", "x")))
    assert "MAP * ~NOTFOUND" in hosts.flags()[0]
    assert "EXCLUDE *.example.org" in hosts.flags()[0]


def test_without_names_private_addresses_are_closed() -> None:
    hosts = Hosts([])
    private = (
        "localhost",
        "a.localhost",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "::1",
        "0x7f.1",
        "",
    )

    assert [host for host in private if hosts.allows(host)] == []
    assert hosts.allows("example.com")
    assert hosts.allows("93.184.215.14")
    assert "MAP 127.* ~NOTFOUND" in hosts.flags()[0]


@pytest.mark.parametrize("entry", ["https://example.com", "a b", "example.com:80/x", "ex,ample"])
def test_an_entry_that_is_no_host_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="is no host"):
        Hosts([entry])


def test_masked_values_are_masked_as_they_are_written_everywhere() -> None:
    masks = Masks(["s3cret-key"])
    masks.hold(["ab", 'pa ss&w"1', None, "", "x" * 5000])
    masks.hold(["hunt"])
    masks.hold(["hunter2"])
    shown = masks.masked(
        {
            "a": ['pa ss&w"1', "q=pa%20ss%26w%221", "q=pa+ss%26w%221", 'pa ss&w\\"1', "s3cret-key!"],
            "hunter2": "ab",
            "n": 1,
        }
    )

    assert shown == {"a": ["***", "q=***", "q=***", "***", "***!"], "***": "***", "n": 1}
    assert masks.masked("a hunt, and about") == "a ***, and about"
    assert Masks().masked("text") == "text"


def test_a_page_cannot_have_a_value_forgotten() -> None:
    masks = Masks()
    masks.hold(["Hunter2-secret"])
    masks.hold(["Hunter2-secret!"])
    assert masks.masked("Hunter2-secret!") == "***"
    assert masks.masked("it is Hunter2-secret") == "it is ***"

    masks.hold([f"value-{number:04}" for number in range(3000)])
    assert masks.masked({"name": ["Hunter2-secret", "another", 1]}) == {"name": ["***", "***", 1]}


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"attach": {"x": {"url": "http://10.0.0.1:9222"}}}, "address of this machine"),
        ({"attach": {"x": {"url": "http://127.0.0.1:9222"}}}, "cannot confine"),
        ({"apps": {"x": {"command": []}}}, "empty command"),
        ({"secret_hosts": {"x": ["example.com"]}}, "not in the table"),
        ({"hosts": ["http://x"]}, "no host"),
    ],
)
async def test_a_wrong_setting_is_reported_when_the_yard_opens(
    settings: dict[str, Any], word: str, tmp_path: Path
) -> None:
    with pytest.raises(PackError, match=word):
        async with open_browser(tmp_path, **settings):
            raise AssertionError


def test_an_unconfined_browser_may_be_attached_beside_hosts() -> None:
    target = Attachable(url="http://127.0.0.1:9222", unconfined=True)

    check_config(BrowserConfig(hosts=("example.com",), attach={"x": target}), ())
