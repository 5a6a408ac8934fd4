// Live changes: the stream names what has changed, and the page asks for those parts anew.
// One tab of a browser holds the stream and tells the others: browsers open few connections.

const DELAY = 250;
const HIDDEN_MILLISECONDS = 10000;
const HELLO_MILLISECONDS = 6000;
const POLL_MILLISECONDS = 5000;
const MAX_PARTS = 150;
const pill = document.querySelector("#live");
const policy = globalThis.trustedTypes?.createPolicy("overnight", { createHTML: (text) => text });
const channel = globalThis.BroadcastChannel ? new BroadcastChannel("overnight") : null;

let changed = new Set();
const fresh = new Set();
let isPaused = false;
let isHeld = false;
let missed = 0;
let lastId = "";
let source;
let release;
let timer;
let polling;
let failures = 0;
let asking = false;

const parts = () => [...document.querySelectorAll("[data-part]")];

function say(words, isOn) {
  if (!pill) return;
  pill.lastElementChild.textContent = words;
  pill.firstElementChild.classList.toggle("off", !isOn);
  pill.setAttribute("aria-pressed", String(!isPaused));
}

function sayState() {
  if (isPaused) say(missed ? `Paused · ${missed}` : "Paused", false);
  else if (polling) say("Every 5 s", true);
  else say("Live", true);
}

// --- replace parts: what has the focus or was chosen stays -------------------------------------

function sync(old, made) {
  // The row at which the keys are stays the current one, also where the server gives it no class.
  if (old.classList?.contains("at")) made.classList?.add("at");
  if (old.isEqualNode(made)) return;
  if (old.nodeName !== made.nodeName) { old.replaceWith(made); return; }
  if (old.nodeType !== Node.ELEMENT_NODE) { if (old.data !== made.data) old.data = made.data; return; }
  for (const { name } of [...old.attributes]) {
    if (!made.hasAttribute(name) && !["open", "checked", "hidden", "aria-busy", "data-sent"].includes(name)) old.removeAttribute(name);
  }
  for (const { name, value } of made.attributes) {
    if (name === "hidden" || old.getAttribute(name) === value) continue;
    old.setAttribute(name, value);
  }
  const before = [...old.childNodes];
  const after = [...made.childNodes];
  after.forEach((child, index) => { if (before[index]) sync(before[index], child); else old.append(child); });
  for (const child of before.slice(after.length)) if (!child.contains(document.activeElement)) child.remove();
}

function read(text) {
  const template = document.createElement("template");
  template.innerHTML = policy ? policy.createHTML(text) : text;
  return template.content.firstElementChild;
}

function show(text, wanted) {
  const found = new Map();
  for (const piece of text.split("\n<!-- part -->\n")) {
    const made = piece.trim() ? read(piece.trim()) : null;
    if (made?.id) found.set(made.id, made);
  }
  for (const id of wanted) {
    const old = document.getElementById(id);
    if (!old) continue;
    const made = found.get(id);
    if (!made) { old.classList.add("gone"); old.removeAttribute("data-part"); continue; }
    if (old.isEqualNode(made) || old.outerHTML === made.outerHTML) continue;
    const wasVisible = old.textContent !== made.textContent;
    sync(old, made);
    if (wasVisible && old.matches("tr, li, section")) glow(old);
  }
}

function glow(element) {
  element.classList.remove("flash");
  element.getBoundingClientRect();
  element.classList.add("flash");
  element.addEventListener("animationend", () => element.classList.remove("flash"), { once: true });
}

async function ask(wanted) {
  if (!wanted.length || asking) return;
  asking = true;
  try {
    for (let from = 0; from < wanted.length; from += MAX_PARTS) {
      const some = wanted.slice(from, from + MAX_PARTS);
      const query = new URLSearchParams(some.map((id) => ["for", id]));
      const response = await fetch(`/parts?${query}`, { redirect: "manual", headers: { "X-Page": location.pathname + location.search } });
      const text = await response.text();
      // The reader may have paused the page meanwhile.
      if (isPaused) { isHeld = true; return; }
      if (response.ok) show(text, some);
      else if (response.type === "opaqueredirect") { location.reload(); return; }
    }
  } catch { /* the stream says that the connection is lost */ } finally { asking = false; }
}

function concerns(part) {
  const on = part.dataset.on?.split(" ") ?? [];
  return on.includes("*") || on.some((name) => changed.has(name));
}

function refreshSoon() { timer ??= setTimeout(refresh, DELAY); }

async function refresh() {
  timer = undefined;
  if (isPaused || document.hidden) { isHeld = true; return; }
  if (asking) { refreshSoon(); return; }
  const wanted = parts().filter(concerns).map((part) => part.id);
  changed = new Set();
  await ask(wanted);
}

function refreshAll() { isHeld = false; changed = new Set(); return ask(parts().filter((part) => part.dataset.on || part.dataset.every).map((part) => part.id)); }

// --- new rows are announced, they do not push the others away ----------------------------------

function announce(ids) {
  const bar = document.querySelector("[data-fresh]");
  if (!bar) return;
  for (const id of ids) if (!document.querySelector(`[data-on~="${CSS.escape(id)}"]`)) fresh.add(id);
  if (!fresh.size) return;
  bar.textContent = `${fresh.size} new, show (n)`;
  bar.classList.add("on");
}

function take(message) {
  for (const name of message.changed) changed.add(name);
  announce(message.new);
  if (isPaused) { missed += message.changed.filter((name) => name.startsWith("task_")).length; isHeld = true; sayState(); }
  refreshSoon();
}

// --- the stream ---------------------------------------------------------------------------------

function open() {
  if (source) return;
  const query = lastId ? `?after=${lastId}` : "";
  source = new EventSource(`/live${query}`);
  const hello = setTimeout(() => poll(), HELLO_MILLISECONDS);
  source.addEventListener("hello", (event) => {
    clearTimeout(hello);
    failures = 0;
    stopPolling();
    lastId = event.lastEventId;
    channel?.postMessage({ id: lastId, hello: true });
    sayState();
    refreshAll();
  });
  source.addEventListener("change", (event) => {
    lastId = event.lastEventId;
    const message = JSON.parse(event.data);
    channel?.postMessage({ id: lastId, message });
    take(message);
  });
  source.addEventListener("error", () => {
    clearTimeout(hello);
    failures += 1;
    if (!isPaused && !polling) say("Reconnecting", false);
    if (source?.readyState === EventSource.CLOSED || failures > 3) { close(); poll(); setTimeout(lead, POLL_MILLISECONDS * 2); }
  });
}

function close() { source?.close(); source = undefined; }

function poll() {
  if (polling) return;
  polling = setInterval(() => { if (!document.hidden && !isPaused) refreshAll(); }, POLL_MILLISECONDS);
  sayState();
}

function stopPolling() { clearInterval(polling); polling = undefined; }

function lead() {
  if (document.hidden || source) return;
  if (!navigator.locks || !channel) { open(); return; }
  if (release) { open(); return; }
  const abort = new AbortController();
  release = () => abort.abort();
  navigator.locks.request("overnight-live", { signal: abort.signal }, () => {
    open();
    return new Promise((resolve) => { release = () => { close(); release = undefined; resolve(); }; });
  }).catch(() => { release = undefined; });
}

channel?.addEventListener("message", ({ data }) => {
  lastId = data.id;
  if (data.hello) { stopPolling(); sayState(); refreshAll(); }
  if (data.message) take(data.message);
});

let leaving;
document.addEventListener("visibilitychange", () => {
  clearTimeout(leaving);
  if (document.hidden) { leaving = setTimeout(() => release?.() ?? close(), HIDDEN_MILLISECONDS); return; }
  lead();
  if (isHeld || !source) refreshAll();
});

pill?.addEventListener("click", () => {
  isPaused = !isPaused;
  missed = 0;
  sayState();
  if (!isPaused) refreshAll();
});

document.querySelector("[data-fresh]")?.addEventListener("click", () => location.reload());

// Parts that change by themselves, such as ages and progress.
setInterval(() => {
  if (isPaused || document.hidden || polling) return;
  ask(parts().filter((part) => part.dataset.every).map((part) => part.id));
}, POLL_MILLISECONDS);

// Ages tick in text nodes only.
function lasting(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${Math.max(whole, 1)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 ? `${hours} h ${String(minutes % 60).padStart(2, "0")}` : `${hours} h`;
  return hours % 24 ? `${Math.floor(hours / 24)} d ${hours % 24} h` : `${Math.floor(hours / 24)} d`;
}

const offset = Date.parse(pill?.dataset.now) - Date.now() || 0;
function tick() {
  for (const element of document.querySelectorAll("time[data-ago]")) {
    const seconds = (Date.now() + offset - Date.parse(element.dateTime)) / 1000;
    const text = seconds < 0 ? `in ${lasting(-seconds)}` : `${lasting(seconds)} ago`;
    if (element.firstChild && element.firstChild.data !== text) element.firstChild.data = text;
  }
}
setInterval(tick, 1000);

addEventListener("pagehide", () => { release?.(); close(); });
addEventListener("pageshow", (event) => { if (event.persisted) { lead(); refreshAll(); } });
if (document.querySelector("#main .list, #main section, [data-part]")) lead();
