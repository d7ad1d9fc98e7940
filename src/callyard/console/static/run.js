// The form that runs a tool: fields become JSON and back, issues mark their fields, and a run starts without a new page.
"use strict";
(() => {
  const NOTHING = Symbol("left out");
  const inside = (field, kinds) => [...field.querySelectorAll(kinds)].find((part) => part.closest(".field") === field);
  const innerFields = (box) => [...box.querySelectorAll(".field")].filter((field) => field.parentElement.closest(".field, [data-fields]") === (box.closest(".field, [data-fields]")));
  const itemsOf = (field) => [...inside(field, "[data-items]").children];
  const controlOf = (field) => inside(field, "input, textarea, select:not(.suggest)");
  class Wrong extends Error { constructor(field, message) { super(message); this.field = field; } }

  // Fields to a value
  function read(field) {
    const kind = field.dataset.kind, required = "required" in field.dataset;
    if (kind === "object") {
      const value = readAll(field);
      return required || Object.keys(value).length || field.dataset.blank ? value : NOTHING;
    }
    if (kind === "list") {
      const items = itemsOf(field).map(read).map((item) => (item === NOTHING ? null : item));
      return items.length || required || field.dataset.blank ? items : NOTHING;
    }
    if (kind === "choices") {
      const chosen = [...field.querySelectorAll("input:checked")].map((box) => JSON.parse(box.value));
      return chosen.length || required || field.dataset.blank ? chosen : NOTHING;
    }
    const control = controlOf(field), text = control.value;
    if (kind === "switch") return required || "touched" in field.dataset ? control.checked : NOTHING;
    if (control.validity.badInput) throw new Wrong(field, "This is no number.");
    if (text === "") return field.dataset.blank ? JSON.parse(field.dataset.blank) : required && "nullable" in field.dataset ? null : NOTHING;
    if (kind === "choice") return JSON.parse(text);
    if (kind === "number") {
      if (Math.abs(Number(text)) > Number.MAX_SAFE_INTEGER) throw new Wrong(field, "Write a number of this size in the tab JSON.");
      return Number(text);
    }
    if (kind === "text") return text;
    try { return JSON.parse(text); }
    catch (error) { if ("takesText" in field.dataset) return text; throw new Wrong(field, `This is no JSON: ${error.message}`); }
  }
  function readAll(box) {
    const value = Object.create(null);
    for (const field of innerFields(box)) { const part = read(field); if (part !== NOTHING) value[field.dataset.name] = part; }
    return value;
  }

  // A value to fields
  function write(field, value) {
    const kind = field.dataset.kind, isThere = value !== NOTHING;
    delete field.dataset.blank;
    delete field.dataset.touched;
    const isObject = isThere && value !== null && typeof value === "object";
    if (kind === "object") {
      if (isObject && !Object.keys(value).length) field.dataset.blank = "{}";
      writeAll(field, isObject ? value : {});
    } else if (kind === "list") {
      inside(field, "[data-items]").replaceChildren();
      if (Array.isArray(value)) { for (const item of value) write(addItem(field), item); if (!value.length) field.dataset.blank = "[]"; }
    } else if (kind === "choices") {
      const chosen = Array.isArray(value) ? value.map((item) => JSON.stringify(item)) : [];
      if (Array.isArray(value) && !value.length) field.dataset.blank = "[]";
      for (const box of field.querySelectorAll("input")) box.checked = chosen.includes(JSON.stringify(JSON.parse(box.value)));
    } else if (kind === "switch") {
      const control = controlOf(field);
      control.checked = isThere ? value === true : control.defaultChecked;
      if (isThere) field.dataset.touched = "";
    } else if (kind === "choice") {
      const wanted = isThere ? JSON.stringify(value) : null, options = [...controlOf(field).options];
      const found = options.findIndex((option) => option.value && JSON.stringify(JSON.parse(option.value)) === wanted);
      controlOf(field).selectedIndex = isThere ? Math.max(found, 0) : Math.max(options.findIndex((option) => option.defaultSelected), 0);
      if (value === null && found < 0) field.dataset.blank = "null";
    } else {
      if (value === "" || value === null) field.dataset.blank = JSON.stringify(value);
      const isPlain = kind === "text" || ("takesText" in field.dataset && typeof value === "string" && !isJson(value));
      controlOf(field).value = !isThere || field.dataset.blank ? "" : isPlain ? String(value) : kind === "json" ? JSON.stringify(value, null, 1) : value;
    }
  }
  function writeAll(box, value) {
    for (const field of innerFields(box)) write(field, Object.hasOwn(value, field.dataset.name) ? value[field.dataset.name] : NOTHING);
  }
  const isJson = (text) => { try { JSON.parse(text); return true; } catch { return false; } };
  // Whether the form shows all of a value. It may have more: a required switch is false until somebody turns it on.
  function covers(shown, value) {
    if (value === null || typeof value !== "object") return shown === value;
    if (shown === null || typeof shown !== "object" || Array.isArray(shown) !== Array.isArray(value)) return false;
    if (Array.isArray(value) && shown.length !== value.length) return false;
    return Object.keys(value).every((key) => Object.hasOwn(shown, key) && covers(shown[key], value[key]));
  }
  function addItem(field) {
    const row = inside(field, "template").content.firstElementChild.cloneNode(true);
    inside(field, "[data-items]").append(row);
    return row;
  }

  // Marks
  function unmark(form) {
    for (const field of form.querySelectorAll(".field.bad")) field.classList.remove("bad");
    for (const text of form.querySelectorAll(".wrong")) { text.hidden = true; text.textContent = ""; }
    for (const control of form.querySelectorAll("[aria-invalid]")) control.removeAttribute("aria-invalid");
  }
  function mark(field, message) {
    field.classList.add("bad");
    const text = inside(field, ".wrong"), control = controlOf(field);
    if (text) { text.hidden = false; text.textContent = message; }
    if (control) control.setAttribute("aria-invalid", "true");
  }
  function find(form, path) {
    let box = form.querySelector("[data-fields]"), found = null;
    for (let rest = path; rest;) {
      const inner = found?.dataset.kind === "list" ? itemsOf(found).map((field, index) => [String(index), field]) : innerFields(box).map((field) => [field.dataset.name, field]);
      const next = inner.filter(([name]) => rest === name || rest.startsWith(name + ".")).sort(([a], [b]) => b.length - a.length)[0];
      if (!next) return found;
      [found, box] = [next[1], next[1]];
      rest = rest.slice(next[0].length + 1);
      if (found.dataset.kind !== "object" && found.dataset.kind !== "list") return found;
    }
    return found;
  }
  function markIssues(form, list) {
    unmark(form);
    let first = null;
    for (const issue of list.querySelectorAll("[data-field]")) {
      const field = find(form, issue.dataset.field);
      if (field) { mark(field, issue.dataset.message); first ??= field; }
      else { const other = form.querySelector("[data-other]"); other.hidden = false; other.textContent += ` ${issue.dataset.message}`; }
    }
    if (first && isShown(form, "fields")) { first.scrollIntoView({ block: "nearest" }); (controlOf(first) || first).focus({ preventScroll: true }); }
  }

  // Tabs
  const isShown = (form, tab) => form.querySelector("[data-fields]").hidden === (tab === "json");
  const jsonOf = (form) => form.querySelector("[data-json-tab] textarea");
  function showTab(form, tab) {
    for (const button of form.querySelectorAll("[data-tab]")) button.setAttribute("aria-selected", String(button.dataset.tab === tab));
    form.querySelector("[data-json-tab]").classList.toggle("shown", tab === "json");
    form.querySelector("[data-fields]").hidden = tab === "json";
  }
  function sayAtJson(form, message) {
    const text = form.querySelector("[data-json-tab] .wrong");
    text.hidden = !message;
    text.textContent = message;
  }
  function toJson(form) { jsonOf(form).value = JSON.stringify(readAll(form.querySelector("[data-fields]")), null, 2); }
  function toFields(form) {
    const text = jsonOf(form).value.trim() || "{}", box = form.querySelector("[data-fields]");
    let value;
    try { value = JSON.parse(text); } catch (error) { return `This is no JSON: ${error.message}`; }
    if (value === null || typeof value !== "object" || Array.isArray(value)) return "The arguments must be an object.";
    if (/(^|[\s:[,])-?\d{16}/.test(text)) return "The form cannot show numbers of this size, so it stays JSON.";
    writeAll(box, value);
    try { if (covers(readAll(box), value)) return ""; } catch { /* as below */ }
    return "The form cannot show all of this, so it stays JSON.";
  }
  function fill(form, text) {
    jsonOf(form).value = text;
    const problem = toFields(form);
    showTab(form, problem ? "json" : "fields");
    sayAtJson(form, problem);
  }
  function openTab(form, tab) {
    if (tab === "json" && isShown(form, "fields")) {
      try { unmark(form); toJson(form); } catch (error) { if (!(error instanceof Wrong)) throw error; mark(error.field, error.message); return; }
    }
    const problem = tab === "fields" ? toFields(form) : "";
    sayAtJson(form, problem);
    if (!problem) showTab(form, tab);
  }

  // Sending
  function collect(form) { // returns the filled form as JSON, or nothing after it marked a field that is wrong
    unmark(form);
    try { if (isShown(form, "fields")) toJson(form); }
    catch (error) { if (!(error instanceof Wrong)) throw error; mark(error.field, error.message); controlOf(error.field)?.focus(); return null; }
    return jsonOf(form).value;
  }
  window.collectForm = collect; // for the chat
  async function send(form, submitter) {
    const hasContent = jsonOf(form) && (!submitter?.value || submitter.value === "accept");
    if (hasContent && collect(form) === null) return;
    const buttons = [...form.querySelectorAll("button:not([data-tab])")];
    const result = form.id === "run-form" ? document.getElementById("run_result") : null;
    const body = new URLSearchParams(new FormData(form, submitter)); // before its buttons are disabled
    for (const button of buttons) button.disabled = true;
    result?.classList.add("stale");
    try {
      const response = await consoleFetch(form.getAttribute("action"), { method: "POST", body, headers: { Accept: "application/json" } });
      const type = response.headers.get("content-type") || "";
      if (!type.startsWith("application/json")) throw new Error("This page is too old. Reload it and try again.");
      const answer = await response.json();
      if (!response.ok) throw new Error(answer.message);
      if (new URL(answer.to, location).href !== location.href) history.pushState(null, "", answer.to);
      if (form.matches("[data-answer]")) form.remove();
      listen();
    } catch (error) {
      result?.classList.remove("stale");
      const other = form.querySelector("[data-other]") || document.querySelector("#run-form [data-other]");
      other.hidden = false;
      other.textContent = error instanceof TypeError ? "The server does not answer." : error.message;
    } finally {
      for (const button of buttons) button.disabled = false;
    }
  }
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("[data-call]")) return;
    event.preventDefault();
    send(event.target, event.submitter);
  });
  document.addEventListener("click", async (event) => {
    const add = event.target.closest("[data-add]"), remove = event.target.closest("[data-remove]"), tab = event.target.closest("[data-tab]");
    if (add) { const row = addItem(add.closest(".field")); (row.querySelector("input, textarea, select") || row).focus(); }
    if (remove) { const field = remove.closest(".field"), list = field.parentElement.closest(".field"); field.remove(); list.querySelector("[data-add]").focus(); }
    if (tab) openTab(tab.closest("form"), tab.dataset.tab);
    const copy = event.target.closest("[data-copy-from]");
    if (copy) { await navigator.clipboard.writeText(await (await consoleFetch(copy.dataset.copyFrom)).text()); copy.textContent = "Copied"; say("Copied."); }
  });
  document.addEventListener("input", (event) => {
    const field = event.target.closest(".field");
    if (!field) return;
    delete field.dataset.blank;
    if (field.dataset.kind === "switch") field.dataset.touched = "";
  });
  document.addEventListener("change", (event) => {
    const element = event.target;
    if (element.matches("[data-examples]") && element.value) { unmark(element.form); fill(element.form, JSON.stringify(JSON.parse(element.value), null, 2)); element.selectedIndex = 0; }
    if (element.matches(".suggest") && element.value) { controlOf(element.closest(".field")).value = JSON.parse(element.value); element.selectedIndex = 0; }
    if (element.matches("[data-submits]")) element.form.requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !event.target.matches("form[data-call] :is(input, textarea)")) return;
    if ("decides" in event.target.form.dataset) { event.preventDefault(); return; } // whoever types a reason has not decided yet
    const isLine = event.target.matches(".line") && !event.shiftKey && !event.target.value.includes("\n");
    if (!event.ctrlKey && !event.metaKey && !isLine) return;
    event.preventDefault();
    event.target.form.requestSubmit(event.target.form.querySelector(".primary"));
  });

  // The row that was chosen with j and k stays chosen when its list is sent again.
  let chosen = "";
  const rowOf = (href) => [...document.querySelectorAll("main tbody a")].find((link) => link.href === href)?.closest("tr");
  document.addEventListener("keydown", (event) => { if (event.key === "j" || event.key === "k") chosen = document.querySelector('main tr[aria-selected="true"] a')?.href || ""; });

  // What a page or a live block brings
  function setUp(root) {
    const within = (selector) => [...root.querySelectorAll(selector), ...(root.matches?.(selector) ? [root] : [])];
    for (const form of within("form[data-call], form[data-fill]")) if (jsonOf(form)) fill(form, jsonOf(form).value);
    const form = document.getElementById("run-form");
    if (chosen && !document.querySelector('main tr[aria-selected="true"]')) rowOf(chosen)?.setAttribute("aria-selected", "true");
    if (within("[data-over], [data-running]").length) document.getElementById("run_result")?.classList.remove("stale");
    for (const log of within("#run .log")) log.scrollTop = log.scrollHeight;
    for (const question of within("[data-answer]")) { question.scrollIntoView({ block: "nearest" }); say("The tool has a question."); }
    for (const list of within("[data-issues]")) if (form) markIssues(form, list);
    for (const button of form?.querySelectorAll("[data-start]") || []) button.disabled = Boolean(document.querySelector("#run [data-running]"));
  }
  document.addEventListener("console:prepare", (event) => setUp(event.detail));
  setUp(document);
})();
