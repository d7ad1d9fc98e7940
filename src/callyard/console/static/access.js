// The login of this browser. Cookies go to every port of a host, so the cookie alone shows only lists and figures. Contents and changes
// need the secret of the login, too: it is in the storage of this port, and in no page.
"use strict";
const consoleBase = document.documentElement.dataset.base, secretKey = `callyard-secret:${consoleBase}`;
function consoleFetch(url, options = {}) {
  const secret = localStorage.getItem(secretKey);
  return fetch(url, { ...options, headers: { ...options.headers, ...(secret ? { "X-Console-Secret": secret } : {}) } });
}
async function logIn(credentials) {
  const body = new URLSearchParams({ credentials });
  const response = await fetch(`${consoleBase}/login`, { method: "POST", body, headers: { Accept: "application/json" } });
  if (response.ok) localStorage.setItem(secretKey, (await response.json()).secret);
  return response.ok;
}
function refuse() {
  const wrong = document.querySelector("[data-wrong]");
  if (wrong) wrong.hidden = false;
  else location.assign(`${consoleBase}/login#wrong`);
}
// The printed address has the token in its fragment, which browsers send to nobody.
async function takeFragment() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  if (fragment.has("wrong")) refuse();
  if (!fragment.has("token")) return;
  history.replaceState(null, "", location.pathname + location.search);
  if (await logIn(fragment.get("token"))) enter();
  else refuse();
}
function enter() {
  if (location.pathname === `${consoleBase}/login`) location.assign(consoleBase);
  else location.reload();
}
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.matches("[data-login]")) {
    event.preventDefault();
    if (await logIn(form.elements.credentials.value)) enter();
    else refuse();
  } else if (form.matches("[data-logout]")) {
    event.preventDefault();
    await consoleFetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)) });
    localStorage.removeItem(secretKey);
    location.assign(consoleBase);
  }
});
window.addEventListener("hashchange", takeFragment);
takeFragment();
