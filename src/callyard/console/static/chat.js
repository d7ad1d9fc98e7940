// The chat page: sends messages to the API of agents, and shows the stream of each turn: text, tool calls and approval cards.
"use strict";
(() => {
  const api = `${consoleBase}/chat/api`, retries = 5;
  class Refused extends Error {}

  const token = () => document.getElementById("main").dataset.csrf;
  async function ask(method, path, body, headers = {}) {
    const options = { method, headers: { "X-CSRF-Token": token(), ...headers } };
    if (method !== "GET") { options.headers["Content-Type"] = "application/json"; options.body = JSON.stringify(body || {}); }
    try { return await consoleFetch(api + path, options); } catch { throw new Error("The server does not answer."); }
  }
  async function read(response) {
    if (response.ok) return response.status === 204 ? {} : response.json();
    let text = "The server did not answer as expected.";
    try { const error = (await response.json()).error; text = [error.message, error.hint].filter(Boolean).join(" "); } catch { /* no JSON */ }
    throw new Refused(text);
  }
  const element = (tag, kind, text) => { const made = document.createElement(tag); if (kind) made.className = kind; if (text !== undefined) made.textContent = text; return made; };
  const pretty = (value) => { try { return JSON.stringify(typeof value === "string" ? JSON.parse(value) : value, null, 2); } catch { return String(value); } };

  // One conversation in one view. Links replace the view without a new page, so everything here ends with it: see `leave`.
  function converse(view) {
    const calls = new Map(), cards = new Map(), log = view.querySelector(".messages"), left = new AbortController();
    let session = view.dataset.session, reply = null, isBusy = Boolean(session), lastId = "", pages = 1;

    function grow(change) { // keeps the end in view for whoever looks at it
      const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 120;
      change();
      if (atEnd) log.scrollTop = log.scrollHeight;
    }
    const add = (node) => { grow(() => log.append(node)); return node; };
    const complain = (error) => show.error({ message: error.message });

    const show = {
      user(event) { reply = null; add(element("p", "said mine", event.text)); },
      note(event) { reply = null; add(element("p", "muted", event.text)); },
      text_delta(event) { reply = reply || add(element("p", "said", "")); grow(() => { reply.textContent += event.text; }); },
      tool_call_start(event) {
        reply = null;
        const box = element("details", "tool"), head = element("summary"), state = element("span", "status", "running");
        head.append(element("span", "name", event.tool), " ", state);
        const body = element("div", "shown");
        box.append(head, body);
        calls.set(event.tool_call_id, { state, body });
        add(box);
      },
      tool_call_end(event) { calls.get(event.tool_call_id)?.body.append(element("pre", "", pretty(event.arguments))); },
      tool_progress(event) {
        const call = calls.get(event.tool_call_id);
        if (call) call.state.textContent = ["running:", event.total ? `${event.done} of ${event.total}` : event.done, event.text].filter(Boolean).join(" ");
      },
      tool_result(event) {
        const call = calls.get(event.tool_call_id);
        if (!call) return;
        call.state.textContent = event.is_error ? "failed" : "done";
        call.state.className = `status ${event.is_error ? "bad" : "ok"}`;
        call.body.append(element("pre", "", pretty(event.text)));
      },
      approval_required(event) { card(event).querySelector(".shown").append(element("pre", "", pretty(event.arguments))); },
      question(event) { askForm(card(event, true), event.form); },
      approval_resolved(event) { settle(cards.get(event.interaction_id), `${event.outcome}${event.by ? ` by ${event.by}` : ""}${event.reason ? `: ${event.reason}` : ""}`); },
      error(event) { reply = null; add(element("p", "notice bad", [event.message, event.hint].filter(Boolean).join(" "))); },
      done() { reply = null; },
    };

    function settle(made, text) {
      if (!made?.matches(".ask")) return;
      made.querySelector("form").remove();
      made.append(element("p", "muted", text));
      made.classList.remove("ask");
    }
    function card(event, isQuestion = false) {
      reply = null;
      const made = document.getElementById(isQuestion ? "question" : "card").content.firstElementChild.cloneNode(true), form = made.querySelector("form");
      made.querySelector(".asked").textContent = event.text;
      cards.set(event.interaction_id, made);
      form.addEventListener("submit", async (submitted) => {
        submitted.preventDefault();
        const decision = submitted.submitter?.value;
        if (!decision) return;
        const content = decision === "answer" ? window.collectForm(form) : "";
        if (content === null) return;
        const body = decision === "answer" ? { content: JSON.parse(content) } : { reason: form.elements.reason?.value || "" };
        made.querySelector(".notice")?.remove();
        try { await read(await ask("POST", `/interactions/${event.interaction_id}/${decision}`, body)); }
        catch (error) { made.append(element("p", "notice bad", error.message)); }
      });
      return add(made); // without the focus: Enter in the message that somebody types must not approve
    }
    // The server makes the form, as it does for tools and jobs.
    async function askForm(made, schema) {
      const form = made.querySelector("form");
      try {
        const response = await consoleFetch(`${consoleBase}/chat/form`, { method: "POST", body: new URLSearchParams({ csrf: token(), schema: JSON.stringify(schema) }) });
        if (!response.ok) throw new Error();
        const html = await response.text();
        grow(() => {
          made.querySelector(".shown").innerHTML = html;
          document.dispatchEvent(new CustomEvent("console:prepare", { detail: form }));
        });
      } catch { made.append(element("p", "notice bad", "The form could not be loaded. Reload the page to answer.")); }
    }

    const handle = (event) => show[event.type]?.(event);
    // Reads a stream until its end, and returns whether that was the end of the turn.
    async function stream(response) {
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      left.signal.addEventListener("abort", () => reader.cancel());
      if (left.signal.aborted) reader.cancel();
      let rest = "", isOver = false;
      for (;;) {
        const { value, done } = await reader.read();
        if (done || left.signal.aborted) return isOver;
        rest += value;
        const events = rest.split(/\r?\n\r?\n/);
        rest = events.pop();
        for (const text of events) {
          const lines = (name) => text.split(/\r?\n/).filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).trimStart()).join("\n");
          const data = lines("data");
          if (!data) continue;
          lastId = lines("id"); // the number of the turn, and that of the event in it
          const event = JSON.parse(data);
          isOver ||= event.type === "done";
          handle(event);
        }
      }
    }
    function busy(on) {
      isBusy = on;
      view.querySelector("[data-stop]").hidden = !on;
      view.querySelector(".compose .primary").disabled = on;
    }
    const readOn = () => ask("GET", `/sessions/${session}/events`, null, lastId ? { "Last-Event-ID": lastId } : {});
    // Shows a turn until its end; a connection that is lost is taken up where it ended.
    async function follow(response) {
      busy(true);
      list();
      try {
        for (let tries = 0; ; tries++) {
          try {
            if (tries) response = await readOn();
            if (!response.ok) await read(response);
            if (await stream(response)) return;
          } catch (error) { if (error instanceof Refused) throw error; }
          if (left.signal.aborted) return;
          if (tries >= retries) throw new Error("The connection was lost. Reload the page to see the rest.");
          await new Promise((wake) => setTimeout(wake, 500 * (tries + 1)));
        }
      } finally { if (!left.signal.aborted) { busy(false); list(); } }
    }
    async function send(text) {
      busy(true);
      try {
        if (!session) {
          session = (await read(await ask("POST", "/sessions"))).id;
          if (!left.signal.aborted) history.replaceState(null, "", `${consoleBase}/chat?session=${encodeURIComponent(session)}`);
        }
        handle({ type: "user", text });
        await follow(await ask("POST", `/sessions/${session}/messages`, { content: text }));
      } catch (error) {
        complain(error);
        busy(false);
      }
    }
    async function remove(one) {
      try {
        await read(await ask("DELETE", `/sessions/${one.id}`));
        if (one.id !== session) { list(); return; }
        location.assign(`${consoleBase}/chat`);
      } catch (error) { complain(error); }
    }
    async function list() {
      const places = view.querySelector(".talks ul");
      let found = [];
      try { found = (await read(await ask("GET", "/sessions"))).sessions; }
      catch (error) { places.replaceChildren(element("li", "muted", error.message)); return; }
      places.replaceChildren(...found.map((one) => {
        const item = element("li"), link = element("a", "", one.title || "New conversation"), button = element("button", "quiet icon", "×");
        link.href = `${consoleBase}/chat?session=${encodeURIComponent(one.id)}`;
        if (one.id === session) link.setAttribute("aria-current", "true");
        button.title = "Delete this conversation";
        button.setAttribute("aria-label", `Delete the conversation ${one.title || ""}`);
        button.onclick = () => remove(one);
        item.append(link, button);
        return item;
      }));
    }
    // The server keeps the messages of a conversation, by pages of turns, the last one first.
    async function messages() {
      let found = [], before = "";
      for (let page = 0; page < pages; page++) {
        const earlier = (await read(await ask("GET", `/sessions/${session}/messages${before}`))).messages;
        found = [...earlier, ...found];
        if (!earlier.length || found[0].turn <= 1) return found;
        before = `?before=${found[0].turn}`;
      }
      const more = add(element("button", "quiet", "Show earlier messages"));
      more.type = "button";
      more.onclick = () => { if (!isBusy) { pages += 1; restore().catch(complain); } };
      return found;
    }
    // Shows what was said before, and the turn that runs from its beginning.
    async function restore() {
      const state = await read(await ask("GET", `/sessions/${session}`));
      log.replaceChildren();
      calls.clear();
      cards.clear();
      for (const message of await messages()) {
        if (message.role === "user") show.user(message);
        else if (!(state.running && message.turn === state.turns)) {
          for (const event of message.events) handle(event);
          if (message.status === "interrupted") show.note({ text: "The server ended during this turn." });
          for (const call of calls.values()) if (call.state.textContent === "running") call.state.textContent = "ended";
        }
      }
      for (const made of cards.values()) settle(made, "not decided here");
      if (!state.running) return;
      lastId = "";
      const response = await readOn();
      if (response.ok) await follow(response); // else it has ended meanwhile, and the next visit shows it
    }

    view.querySelector("[data-new]").onclick = () => location.assign(`${consoleBase}/chat`);
    view.querySelector("[data-stop]").onclick = async () => { try { await read(await ask("POST", `/sessions/${session}/cancel`)); } catch (error) { complain(error); } };
    const form = view.querySelector(".compose"), text = form.querySelector("textarea");
    form.addEventListener("submit", (event) => { event.preventDefault(); const said = text.value.trim(); if (said && !isBusy) { text.value = ""; send(said); } });
    text.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); form.requestSubmit(); } });
    list();
    if (session) restore().catch(complain).finally(() => busy(false)); else text.focus();
    return { view, leave() { left.abort(); } };
  }

  let current = null;
  function begin() {
    const view = document.querySelector("[data-chat]");
    if (current && current.view === view) return;
    current?.leave();
    current = view && converse(view);
  }
  document.addEventListener("console:prepare", begin);
  begin();
})();
