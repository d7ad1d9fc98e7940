// The chat page: sends messages to the API of agents, and shows the stream of each turn: text, tool calls and approval cards.
"use strict";
(() => {
  const api = "/console/chat/api";
  let view = null, session = "", turn = null, reply = null;
  const calls = new Map(), cards = new Map();

  const token = () => document.getElementById("main").dataset.csrf;
  async function ask(method, path, body) {
    const options = { method, headers: { "X-CSRF-Token": token() } };
    if (method !== "GET") { options.headers["Content-Type"] = "application/json"; options.body = JSON.stringify(body || {}); }
    return fetch(api + path, options);
  }
  async function read(response) {
    if (response.ok) return response.status === 204 ? {} : response.json();
    let text = "The server did not answer as expected.";
    try { const error = (await response.json()).error; text = [error.message, error.hint].filter(Boolean).join(" "); } catch { /* no JSON */ }
    throw new Error(text);
  }
  const element = (tag, kind, text) => { const made = document.createElement(tag); if (kind) made.className = kind; if (text !== undefined) made.textContent = text; return made; };
  const messages = () => view.querySelector(".messages");
  function add(node) {
    const log = messages(), atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    log.append(node);
    if (atEnd) log.scrollTop = log.scrollHeight;
    return node;
  }
  const follow = () => { const log = messages(); if (log.scrollHeight - log.scrollTop - log.clientHeight < 120) log.scrollTop = log.scrollHeight; };
  const pretty = (value) => { try { return JSON.stringify(typeof value === "string" ? JSON.parse(value) : value, null, 2); } catch { return String(value); } };

  // The transcript of this tab, so that a reload shows the conversation again; the agent itself remembers on its own.
  const key = () => `toolyard-chat-${session}`;
  const past = () => { try { return JSON.parse(sessionStorage.getItem(key()) || "[]"); } catch { return []; } };
  function remember(entry) {
    const all = past();
    const last = all[all.length - 1];
    if (entry.type === "text_delta" && last && last.type === "text_delta" && last.parent_id === entry.parent_id) last.text += entry.text;
    else if (entry.type !== "tool_call_delta") all.push(entry);
    try { sessionStorage.setItem(key(), JSON.stringify(all.slice(-400))); } catch { /* the tab has no room left */ }
  }

  const show = {
    user(event) { reply = null; add(element("p", "said mine", event.text)); },
    text_delta(event) { reply = reply || add(element("p", "said", "")); reply.textContent += event.text; follow(); },
    tool_call_start(event) {
      reply = null;
      const box = element("details", "tool"), head = element("summary"), state = element("span", "status", "running");
      head.append(element("span", "name", event.tool), " ", state);
      const body = element("div", "shown");
      box.append(head, body);
      calls.set(event.tool_call_id, { state, body });
      add(box);
    },
    tool_call_delta() {},
    tool_call_end(event) { calls.get(event.tool_call_id)?.body.append(element("pre", "", pretty(event.arguments))); },
    tool_result(event) {
      const call = calls.get(event.tool_call_id);
      if (!call) return;
      call.state.textContent = event.is_error ? "failed" : "done";
      call.state.className = `status ${event.is_error ? "bad" : "ok"}`;
      call.body.append(element("pre", "", pretty(event.text)));
    },
    approval_required(event) { card(event, false); },
    question(event) { card(event, true); },
    approval_resolved(event) {
      const made = cards.get(event.interaction_id);
      if (!made) return;
      made.querySelector("form")?.remove();
      made.append(element("p", "muted", `${event.outcome}${event.by ? ` by ${event.by}` : ""}${event.reason ? `: ${event.reason}` : ""}`));
      made.classList.remove("ask");
    },
    error(event) { reply = null; add(element("p", "notice bad", [event.message, event.hint].filter(Boolean).join(" "))); },
    done() { reply = null; },
  };

  function card(event, isQuestion) {
    reply = null;
    const made = document.getElementById("card").content.firstElementChild.cloneNode(true), form = made.querySelector("form");
    made.querySelector(".asked").textContent = event.text;
    cards.set(event.interaction_id, made);
    if (isQuestion) fields(form, event.form);
    else made.querySelector(".shown").append(element("pre", "", pretty(event.arguments)));
    form.addEventListener("submit", async (submitted) => {
      submitted.preventDefault();
      if (!submitted.submitter?.value) return;
      const deny = submitted.submitter.value === "deny";
      const body = isQuestion && !deny ? { content: answers(form, event.form) } : { reason: form.elements.reason?.value || "" };
      try { await read(await ask("POST", `/interactions/${event.interaction_id}/${deny ? "deny" : isQuestion ? "answer" : "approve"}`, body)); }
      catch (error) { made.append(element("p", "notice bad", error.message)); }
    });
    add(made);  // without the focus: Enter in the message that somebody types must not approve
  }
  function fields(form, schema) {
    form.querySelector("input").remove();
    const required = new Set(schema.required || []);
    for (const [name, part] of Object.entries(schema.properties || {}).reverse()) {
      const label = element("label", "", part.title || name);
      let input;
      if (part.enum) { input = element("select"); for (const choice of part.enum) input.append(new Option(choice, choice)); }
      else if (part.type === "array" && part.items?.enum) { input = element("select"); input.multiple = true; for (const choice of part.items.enum) input.append(new Option(choice, choice)); }
      else { input = element("input"); input.type = part.type === "boolean" ? "checkbox" : part.type === "integer" || part.type === "number" ? "number" : "text"; if (part.type === "number") input.step = "any"; }
      input.name = `field:${name}`;
      input.required = required.has(name) && part.type !== "boolean";
      label.append(input);
      form.prepend(label);
    }
    form.querySelector("button[value=approve]").textContent = "Answer";
    form.querySelector("button[value=deny]").textContent = "Decline";
    form.querySelector("button[value=deny]").formNoValidate = true;
  }
  function answers(form, schema) {
    const found = {};
    for (const [name, part] of Object.entries(schema.properties || {})) {
      const input = form.elements[`field:${name}`];
      if (part.type === "boolean") found[name] = input.checked;
      else if (part.type === "array") found[name] = [...input.selectedOptions].map((option) => option.value);
      else if (input.value !== "") found[name] = part.type === "integer" || part.type === "number" ? Number(input.value) : input.value;
    }
    return found;
  }

  function handle(event) { remember(event); (show[event.type] || (() => {}))(event); }
  async function stream(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const events = rest.split(/\r?\n\r?\n/);
      rest = events.pop();
      for (const text of events) {
        const data = text.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
        if (data) handle(JSON.parse(data));
      }
    }
  }
  function busy(on) {
    view.querySelector("[data-stop]").hidden = !on;
    view.querySelector(".compose .primary").disabled = on;
  }
  async function follow_turn(request) {
    const mine = view;
    turn = request;
    busy(true);
    try {
      const response = await request;
      if (!response.ok) await read(response);
      await stream(response);
    } catch (error) { if (mine === view) show.error({ message: error.message || "The connection was lost." }); }
    finally { if (mine === view) { busy(false); list(); } turn = null; }
  }
  async function send(text) {
    if (!session) {
      try { session = (await read(await ask("POST", "/sessions"))).id; }
      catch (error) { show.error({ message: error.message }); return; }
      history.replaceState(null, "", `/console/chat?session=${encodeURIComponent(session)}`);
    }
    handle({ type: "user", text });
    await follow_turn(ask("POST", `/sessions/${session}/messages`, { content: text }));
  }
  async function list() {
    const places = view.querySelector(".talks ul");
    let found = [];
    try { found = (await read(await ask("GET", "/sessions"))).sessions; } catch { return; }
    places.replaceChildren(...found.map((one) => {
      const item = element("li"), link = element("a", "", one.title || "New conversation");
      link.href = `/console/chat?session=${encodeURIComponent(one.id)}`;
      if (one.id === session) link.setAttribute("aria-current", "true");
      const remove = element("button", "quiet icon", "×");
      remove.title = "Delete this conversation";
      remove.setAttribute("aria-label", `Delete the conversation ${one.title || ""}`);
      remove.onclick = async () => { await ask("DELETE", `/sessions/${one.id}`); if (one.id === session) location.assign("/console/chat"); else list(); };
      item.append(link, remove);
      return item;
    }));
  }
  async function begin(root) {
    const found = root.querySelector ? root.querySelector("[data-chat]") : null;
    if (!found || found === view) return;
    view = found; session = view.dataset.session; reply = null; calls.clear(); cards.clear();
    view.querySelector("[data-new]").onclick = () => location.assign("/console/chat");
    view.querySelector("[data-stop]").onclick = () => ask("POST", `/sessions/${session}/cancel`);
    const form = view.querySelector(".compose"), text = form.querySelector("textarea");
    form.addEventListener("submit", (event) => { event.preventDefault(); const said = text.value.trim(); if (said && !turn) { text.value = ""; send(said); } });
    text.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); form.requestSubmit(); } });
    list();
    if (!session) { text.focus(); return; }
    let state;
    try { state = await read(await ask("GET", `/sessions/${session}`)); } catch (error) { show.error({ message: error.message }); return; }
    // A running turn is streamed again from its start, with its cards, so what this tab kept of it is left out.
    let kept = past();
    if (state.running) kept = kept.slice(0, kept.findLastIndex((event) => event.type === "user") + 1);
    sessionStorage.setItem(key(), JSON.stringify(kept));
    for (const event of kept) (show[event.type] || (() => {}))(event);
    if (state.running && !turn) follow_turn(ask("GET", `/sessions/${session}/events`));
  }
  document.addEventListener("console:prepare", (event) => begin(event.detail));
  begin(document);
})();
