import os
import random
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from page_server import Site, needs_chromium, open_browser, ref_in

pytestmark = needs_chromium

ACTIONS = int(os.environ.get("ACTIONS", "100"))
PAGE = """<h1>Rows</h1><ul id=list></ul><script>
const list = document.getElementById('list');
let turn = 0;
function hit(button) {
  const request = new XMLHttpRequest();
  request.open('GET', '/hit?name=' + encodeURIComponent(button.dataset.name), false);
  request.send();
}
function rows() {
  const found = [...Array(8).keys()].map(number => 'Stay ' + number);
  for (let number = 0; number < 12; number++) if (Math.random() < 0.5) found.push('Rare ' + number);
  return found.sort(() => Math.random() - 0.5);
}
function render() {
  const names = rows();
  const items = [...list.children];
  if (turn++ % 3 === 2 && items.length >= names.length) {
    items.slice(names.length).forEach(item => item.remove());
    names.forEach((name, index) => {
      const [open, remove] = items[index].querySelectorAll('button');
      open.textContent = 'Open ' + name; open.dataset.name = 'Open ' + name; remove.dataset.name = 'Delete ' + name;
      items[index].querySelector('b').textContent = name;
    });
    return;
  }
  list.innerHTML = names.map(name => `<li><b>${name}</b>
    <button data-name="Open ${name}" onclick="hit(this)">Open ${name}</button>
    <button data-name="Delete ${name}" onclick="hit(this)">Delete</button></li>`).join('');
}
render();
setInterval(render, 300);
</script>"""
"""Renders its rows anew every 300 ms; every third time it gives the elements that it has other names."""


def targets_in(shown: str) -> list[tuple[str, str]]:
    """Return the ref of each button of a snapshot, and what it is for."""
    found: list[tuple[str, str]] = []
    for line in shown.splitlines():
        name = line.partition(": ")[2].partition(" | ")[0]
        for part in line.split(" | ")[1:]:
            if part.startswith("button "):
                label = "Delete" if '"Delete"' in part else "Open"
                found.append((ref_in(part), f"{label} {name}"))
    return found


def hits_of(site: Site) -> list[str]:
    queries = [parse_qs(urlsplit(path).query) for _, path in site.asked if path.startswith("/hit")]
    return [query["name"][0] for query in queries]


async def test_no_action_hits_another_element_than_its_ref_named(site: Site, tmp_path: Path) -> None:
    site.put("/hit", b"")
    url = site.page(PAGE)
    chance = random.Random(28)  # noqa: S311 - a fixed order of actions
    wrong: list[tuple[str, list[str]]] = []
    healed = came_back = reached = 0
    known: list[list[tuple[str, str]]] = []
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        for _ in range(ACTIONS):
            if len(known) < 3 or chance.random() < 0.5:
                known = [*known[-2:], targets_in((await browser.do("snapshot"))["page"])]
            ref, name = chance.choice(chance.choice(known))
            before = len(hits_of(site))
            answer = await browser.try_to("click", ref=ref)
            hits = hits_of(site)[before:]
            if hits != ([name] if answer.success else []):
                wrong.append((name, hits))
            reached += answer.success
            if name.startswith("Open Stay"):
                came_back += 1
                healed += answer.success
            elif answer.error is not None:
                assert answer.error.details["reason"] == "ref_gone", answer.error
    sys.stdout.write(f"{ACTIONS} actions: {reached} reached, {healed} of {came_back} that came back were healed\n")

    assert wrong == []
    assert healed >= 0.9 * came_back
