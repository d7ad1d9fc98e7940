// The console's manners: pages change without a flash, live blocks update, keys work. Reading needs none of this.
"use strict";
const main = () => document.getElementById("main");
const say = (text) => { document.getElementById("announcement").textContent = text; };
let stream = null;

// Live blocks: the server sends the HTML of those that changed. A block under the mouse or with the focus waits.
const waiting = new Map();
const shown = new WeakMap(); // what the server sent of a block at last
// A stream that begins sends every block. One that is there already stays: a click or a half-typed answer must not get lost.
function isShown(block, html) {
  if (shown.has(block)) return shown.get(block) === html;
  const now = block.cloneNode(true), fresh = document.createElement("template"); // as the page came
  fresh.innerHTML = html;
  for (const time of now.querySelectorAll("time[data-ago]")) time.textContent = time.title;
  return now.innerHTML.trim() === fresh.innerHTML.trim();
}
function swap(id, html) {
  const block = document.getElementById(id);
  if (!block || !block.hasAttribute("data-live")) return;
  if (isShown(block, html)) { waiting.delete(id); shown.set(block, html); return; }
  const isNow = block.dataset.live === "now"; // a person waits for it
  const busy = block.matches(":hover") && block.id !== "nav" && block.id !== "state";
  if (!isNow && (busy || block.contains(document.activeElement)) && !(block.dataset.live === "grow" && grow(block, html))) { waiting.set(id, html); requireReading(); return; }
  waiting.delete(id);
  const typed = typedIn(block), questions = questionsIn(block);
  block.innerHTML = html;
  shown.set(block, html);
  restore(typed);
  prepare(block);
  for (const [name, form] of questionsIn(block)) if (questions.has(name)) form.replaceWith(questions.get(name));
}
// A block that grows shows new items at once, at its end, where they move no button under the mouse. It updates items without buttons,
// and decided ones that lose theirs: the result of a decision appears while the mouse still rests on the card.
function grow(block, html) {
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  const ids = (parent) => [...parent.children].filter((child) => child.id).map((child) => child.id);
  const now = ids(block), next = ids(fresh.content);
  if (!now.length) return true;
  if (now.every((id, index) => next[index] === id)) {
    const items = [...fresh.content.children].filter((child) => child.id);
    block.append(...items.slice(now.length));
    for (const item of items.slice(0, now.length)) {
      const old = document.getElementById(item.id);
      if (!old.querySelector("button") || (!old.querySelector(".decide") && !item.querySelector("button"))) old.replaceWith(item);
    }
  }
  return false;
}
// What a person typed, chose or opened survives an update.
function typedIn(block) {
  const fields = [...block.querySelectorAll("input[id], textarea[id]")].filter((field) => field.value !== field.defaultValue);
  const chosen = [...block.querySelectorAll("select[id]")].filter((field) => field.selectedIndex > 0);
  const opened = [...block.querySelectorAll("details[id][open]")].map((part) => [part.id, null]);
  return [...[...fields, ...chosen].map((field) => [field.id, field.value]), ...opened];
}
// The question of a job never changes, so its form stays, with a half-typed answer to it.
function questionsIn(block) {
  const forms = [...block.querySelectorAll("form[data-answer]")].filter((form) => form.elements.key);
  return new Map(forms.map((form) => [form.getAttribute("action") + " " + form.elements.key.value, form]));
}
function restore(typed) {
  for (const [id, value] of typed) {
    const part = document.getElementById(id);
    if (part && value === null) part.open = true;
    else if (part) part.value = value;
  }
}
const swapWaiting = () => { for (const [id, html] of [...waiting]) swap(id, html); };
document.addEventListener("mouseout", swapWaiting);
document.addEventListener("mouseover", swapWaiting); // nothing leaves an element that was removed under the mouse
document.addEventListener("focusout", () => setTimeout(swapWaiting, 0));
// A hidden tab has no stream, because browsers allow six connections to a host over HTTP/1.1, and the seventh tab would hang.
function listen() {
  stream?.abort();
  stream = null;
  waiting.clear();
  const url = main()?.dataset.liveUrl;
  if (url && !document.hidden) follow(stream = new AbortController(), url + location.search);
}
// By fetch, because an EventSource cannot send the secret.
async function follow({ signal }, url) {
  for (let tries = 0; ; tries++) {
    try {
      const response = await consoleFetch(url, { signal });
      if (response.ok) {
        tries = 0;
        document.getElementById("state").classList.remove("lost"); // the first message brings its text back
        await readEvents(response, (blocks) => { for (const [id, html] of Object.entries(blocks)) swap(id, html); });
      }
    } catch { /* as at its end */ }
    if (signal.aborted) return;
    const state = document.getElementById("state");
    if (!state.classList.contains("lost")) say("Disconnected from the server.");
    state.classList.add("lost");
    state.innerHTML = '<i class="dot bad"></i>Disconnected';
    shown.delete(state);
    await new Promise((wake) => setTimeout(wake, tries ? 5000 : 1000));
    if (signal.aborted) return;
  }
}
async function readEvents(response, handle) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split(/\r?\n\r?\n/);
    rest = events.pop();
    for (const event of events) {
      const data = event.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
      if (data) handle(JSON.parse(data));
    }
  }
}
document.addEventListener("visibilitychange", listen);

// Pages are fetched and put in place, so that a drawer opens without a flash and the list keeps its place.
async function go(url, options = {}, push = true, focus = true) {
  let response;
  try { response = await consoleFetch(url, options); }
  catch { fail("The server does not answer. Look whether it runs, and try again."); return; }
  const type = response.headers.get("content-type") || "";
  if (!type.startsWith("text/html")) { location.assign(url); return; }
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  if (!page.getElementById("nav")) { location.assign(response.url); return; }
  // Scripts first: a form that is there before its script would be sent as a page of its own, without the secret.
  await Promise.all([...page.head.querySelectorAll("script[src]")].map((script) => loadOnce(script.getAttribute("src"))));
  const kept = window.scrollY, same = main().dataset.page === page.getElementById("main").dataset.page;
  for (const id of ["main", "nav", "state", "account"]) document.getElementById(id).replaceWith(page.getElementById(id));
  document.title = page.title;
  if (push) history.pushState(null, "", response.url);
  window.scrollTo(0, same ? kept : 0);
  prepare(document);
  listen();
  if (focus) (document.querySelector(".drawer") || main()).focus({ preventScroll: true });
}
function fail(text) {
  document.getElementById("failed")?.remove();
  const notice = document.createElement("p");
  Object.assign(notice, { id: "failed", className: "notice bad", textContent: text });
  notice.setAttribute("role", "alert");
  (document.querySelector(".drawer") || main()).prepend(notice);
  notice.scrollIntoView({ block: "nearest" });
}
async function openFile(url) { // a link cannot send the secret
  const response = await consoleFetch(url);
  if (response.ok) location.assign(URL.createObjectURL(await response.blob()));
  else fail("This is no longer there.");
}
const loaded = new Map();
function loadOnce(source) {
  if (!loaded.has(source) && [...document.scripts].some((script) => script.getAttribute("src") === source)) return undefined; // of the page itself
  if (!loaded.has(source)) loaded.set(source, new Promise((resolve) => {
    const script = document.createElement("script");
    Object.assign(script, { src: source, onload: resolve, onerror: resolve }); // a page without its script still shows
    document.head.append(script);
  }));
  return loaded.get(source);
}
document.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (event.target.closest("[data-more]")) { event.preventDefault(); document.getElementById("nav").classList.toggle("all"); return; }
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || link.target || link.hash) return;
  if (link.hasAttribute("data-file")) { event.preventDefault(); openFile(link.href); return; }
  if (link.origin !== location.origin || !link.pathname.startsWith(consoleBase) || link.hasAttribute("data-plain")) return;
  event.preventDefault();
  go(link.href);
});
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.hasAttribute("data-plain") || form.hasAttribute("data-run")) return;
  event.preventDefault();
  const fields = new URLSearchParams(new FormData(form, event.submitter)), action = form.getAttribute("action"); // a field may be named so
  if (form.getAttribute("method") !== "post") go(action + "?" + new URLSearchParams([...fields].filter(([, value]) => value)));
  else {
    const buttons = [...form.querySelectorAll("button:enabled")], set = (isDisabled) => { for (const button of buttons) button.disabled = isDisabled; };
    set(true);
    go(action, { method: "POST", body: fields }).finally(() => set(false));
  }
});
window.addEventListener("popstate", () => go(location.href, {}, false));

// Keys. j and k select a row or a card. The selected card is the one with the focus, so a decision or an update selects nothing.
function rows() { return [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a") && !row.closest(".drawer, .card")); }
function move(step) {
  const cards = [...document.querySelectorAll("main .approval.pending")], all = [...cards, ...rows()];
  const card = document.activeElement.closest(".approval"), at = card ? all.indexOf(card) : all.findIndex((row) => row.getAttribute("aria-selected") === "true");
  const next = all[Math.min(Math.max(at + step, 0), all.length - 1)];
  if (!next) return;
  if (card) document.activeElement.blur();
  all[at]?.removeAttribute("aria-selected");
  if (cards.includes(next)) select(next);
  else { next.setAttribute("aria-selected", "true"); next.scrollIntoView({ block: "nearest" }); }
}
function select(card) {
  card.focus({ preventScroll: true });
  card.scrollIntoView({ block: "nearest" });
}
// A key decides about the card that the person sees: another one is brought into view first.
function press(key) {
  const card = document.activeElement, button = card.matches(".approval") ? card.querySelector(`[data-key="${CSS.escape(key)}"]:enabled`) : null;
  if (!button) return;
  const top = document.querySelector(".top").getBoundingClientRect().bottom, fits = card.getBoundingClientRect().height <= innerHeight - top;
  const place = (fits ? card : button).getBoundingClientRect();
  if (place.top >= top && place.bottom <= innerHeight) button.click();
  else (fits ? card : button).scrollIntoView({ block: "nearest" });
}
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "k") { event.preventDefault(); openPalette(); return; }
  if (event.key === "Escape" && event.target.matches(".approval input")) { select(event.target.closest(".approval")); return; }
  if (event.target.closest("input, textarea, select, [contenteditable], dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
  const drawer = document.querySelector(".drawer [data-close]");
  if (event.key === "/") { event.preventDefault(); document.getElementById("find").focus(); }
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "Enter" && !event.target.closest("a, button, summary")) rows().find((row) => row.getAttribute("aria-selected") === "true")?.querySelector("a").click();
  else if (event.key === "Escape" && drawer) drawer.click();
  else if (!event.repeat) press(event.key);
});

// All actions: pages, the calls of this page that wait for a decision, and tools by name
function actions() {
  const found = [], click = (selector) => () => document.querySelector(selector)?.click(); // an update may put another element there
  if (document.querySelector(".drawer [data-start]:enabled")) found.push([`Run ${document.querySelector(".drawer h1 .name").textContent}`, "on this page", click("[data-start]")]);
  for (const card of document.querySelectorAll(".approval.pending")) {
    found.push([`Decide: ${card.querySelector("h2").textContent}`, "on this page", () => select(document.getElementById(card.id))]);
  }
  // Pages are first, lest Enter alone runs something.
  return [...[...document.querySelectorAll("#nav a:not(.more)")].map((link) => [link.querySelector("span").textContent, "page", link.href]), ...found];
}
function openPalette() {
  const dialog = document.getElementById("palette"), input = dialog.querySelector("input"), list = dialog.querySelector("ul"), known = actions();
  const item = ([name, kind, target], index) => {
    const row = document.createElement("li"), link = document.createElement("a"), note = document.createElement("small");
    link.href = typeof target === "string" ? target : "#";
    if (typeof target !== "string") link.onclick = (event) => { event.preventDefault(); dialog.close(); target(); };
    note.textContent = kind; link.append(name, note); row.append(link);
    row.setAttribute("aria-selected", String(index === 0));
    return row;
  };
  const fill = (names) => {
    const words = input.value.trim(), found = known.filter(([name]) => name.toLowerCase().includes(words.toLowerCase()));
    found.push(...names.map((name) => [name, "tool", consoleBase + "/tools?open=" + encodeURIComponent(name)]));
    if (words) found.push([`Search tools for “${words}”`, "search", consoleBase + "/tools?q=" + encodeURIComponent(words)]);
    list.replaceChildren(...found.map(item));
  };
  input.oninput = async () => {
    fill([]);
    const words = input.value.trim();
    if (!words) return;
    try {
      const names = await (await consoleFetch(consoleBase + "/tools/names?q=" + encodeURIComponent(words))).json();
      if (names.length && words === input.value.trim()) fill(names);
    } catch { /* the other actions stay */ }
  };
  input.value = ""; fill([]);
  input.onkeydown = (event) => {
    const items = [...list.children], at = items.findIndex((row) => row.getAttribute("aria-selected") === "true");
    if (event.key === "Enter") { event.preventDefault(); dialog.close(); items[at]?.querySelector("a").click(); }
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    const next = Math.min(Math.max(at + (event.key === "ArrowDown" ? 1 : -1), 0), items.length - 1);
    items.forEach((row, index) => row.setAttribute("aria-selected", String(index === next)));
    items[next]?.scrollIntoView({ block: "nearest" });
  };
  list.onclick = () => dialog.close();
  dialog.showModal();
}
document.addEventListener("click", async (event) => {
  if (event.target.closest("[data-palette]")) openPalette();
  if (event.target.id === "palette") event.target.close();
  const copy = event.target.closest("[data-copy]");
  if (copy) { await navigator.clipboard.writeText(copy.dataset.copy); copy.textContent = "Copied"; say("Copied."); }
  if (event.target.closest("[data-theme-switch]")) {
    const root = document.documentElement, order = ["", "light", "dark"], next = order[(order.indexOf(root.dataset.theme || "") + 1) % 3];
    if (next) { root.dataset.theme = next; localStorage.setItem("callyard-theme", next); }
    else { delete root.dataset.theme; localStorage.removeItem("callyard-theme"); }
    say(next ? `The theme is ${next}.` : "The theme follows the system.");
  }
});

// Filters by typing: rows without the words are hidden, and groups without rows
function filter(box) {
  const words = box.value.trim().toLowerCase();
  for (const row of document.querySelectorAll(box.dataset.filter)) row.hidden = !row.textContent.toLowerCase().includes(words);
  for (const group of document.querySelectorAll("[data-group]")) group.hidden = !group.querySelector("[data-row]:not([hidden])");
}
document.addEventListener("input", (event) => { if (event.target.matches("[data-filter]")) filter(event.target); });

// JSON that folds
function fold(value, key, depth) {
  const line = document.createElement("div");
  const name = key === null ? "" : `${key}: `;
  const label = (text, kind) => { const part = document.createElement("span"); part.className = kind; part.textContent = text; return part; };
  if (value === null || typeof value !== "object") {
    const long = typeof value === "string" && value.length > 300;
    line.append(label(name, "key"));
    if (long) {
      const more = document.createElement("details"), head = document.createElement("summary");
      head.append(label(JSON.stringify(value.slice(0, 120)).slice(0, -1) + "…", "text"), ` ${value.length} characters`);
      more.append(head, label(value, "text"));
      line.append(more);
    } else line.append(label(JSON.stringify(value), typeof value === "string" ? "text" : "figure"));
    return line;
  }
  const entries = Array.isArray(value) ? value.map((item, index) => [index, item]) : Object.entries(value);
  const more = document.createElement("details"), head = document.createElement("summary"), inner = document.createElement("div");
  more.open = depth < 3 && entries.length <= 50;
  head.append(label(name, "key"), Array.isArray(value) ? `[ ${entries.length} ]` : `{ ${entries.length} }`);
  inner.className = "inner";
  const open = () => { if (!inner.childElementCount) inner.append(...entries.map(([part, item]) => fold(item, part, depth + 1))); };
  if (more.open) open(); else more.addEventListener("toggle", open, { once: true });
  more.append(head, inner);
  line.append(more);
  return line;
}
// Nobody approves what they did not open: a card with folded values can be approved once each of them was shown.
function requireReading() {
  for (const card of document.querySelectorAll(".approval.pending")) {
    const approve = card.querySelector('[data-key="a"]');
    const isUnread = [...card.querySelectorAll("details.long")].some((part) => !part.open && !part.dataset.read);
    if (approve) Object.assign(approve, { disabled: isUnread, title: isUnread ? "Open the folded values first." : "" });
  }
}
document.addEventListener("toggle", (event) => {
  if (event.target.open) event.target.dataset.read = "yes";
  requireReading();
}, true);
function prepare(root) {
  requireReading();
  for (const block of root.querySelectorAll("[data-json]")) {
    const text = block.querySelector("pre");
    if (!text) continue;
    try { text.replaceWith(fold(JSON.parse(text.textContent), null, 0)); } catch { /* it stays text */ }
  }
  document.dispatchEvent(new CustomEvent("console:prepare", { detail: root }));
}
// The page itself came with the cookie alone, so what a login may see is fetched now.
async function begin() {
  const secret = localStorage.getItem(secretKey);
  if (!secret) { prepare(document); listen(); return; }
  await go(location.href, {}, false, false);
  const isOver = !main()?.hasAttribute("data-trusted") && localStorage.getItem(secretKey) === secret;
  if (isOver) localStorage.removeItem(secretKey);
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}
begin();
