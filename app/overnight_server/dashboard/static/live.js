// Live changes: the stream names what has changed, and the page asks for those parts anew.
// One tab of a browser holds the stream and tells the others: browsers open few connections.

import { listsInUse, sync } from "./swap.js";

const DELAY = 250;
const HIDDEN_MILLISECONDS = 10000;
const HELLO_MILLISECONDS = 6000;
const POLL_MILLISECONDS = 5000;
const MAX_PARTS = 150;
// The server computes no more expensive parts for one request. They are those with `data-gap`.
const MAX_EXPENSIVE = 3;
const pill = document.querySelector("#live");
const bar = document.querySelector("[data-fresh]");
const policy = globalThis.trustedTypes?.createPolicy("overnight", { createHTML: (text) => text });
const channel = globalThis.BroadcastChannel ? new BroadcastChannel("overnight") : null;

// The ids of parts that have changed and were not asked for yet; a pause and a hidden tab keep them.
const due = new Set();
// When each part with a gap was asked for, and those for which a timer waits.
const askedAt = new Map();
const postponed = new Set();
// What is held back: the new text of parts whose lists are in use, and how many changes they have.
const held = new Map();
let newRows = "";
let isPaused = false;
let missed = 0;
let lastId = "";
let source;
let release;
let timer;
let polling;
let failures = 0;
let isAsking = false;

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

// --- replace parts; lists that the reader uses keep their items and order until the bar is pressed

function read(text) {
  const template = document.createElement("template");
  template.innerHTML = policy ? policy.createHTML(text) : text;
  return template.content.firstElementChild;
}

function show(text, wanted) {
  const found = new Map();
  for (const piece of text.split("\n<!-- part -->\n")) {
    const made = piece.trim() ? read(piece.trim()) : null;
    if (made?.id) found.set(made.id, piece.trim());
  }
  for (const id of wanted) {
    const old = document.getElementById(id);
    if (!old) continue;
    if (found.has(id)) swap(old, found.get(id), listsInUse(old));
    else { old.classList.add("gone"); old.removeAttribute("data-part"); }
  }
  compareRows();
  sayHeld();
}

function swap(old, text, lists) {
  const before = old.textContent;
  const changes = sync(old, read(text), lists);
  if (changes) held.set(old.id, { text, changes });
  else held.delete(old.id);
  if (before !== old.textContent && old.matches("tr, li, section")) glow(old);
}

function glow(element) {
  element.classList.remove("flash");
  element.getBoundingClientRect();
  element.classList.add("flash");
  element.addEventListener("animationend", () => element.classList.remove("flash"), { once: true });
}

function showHeld(isForced) {
  for (const [id, { text }] of [...held]) {
    const old = document.getElementById(id);
    const lists = old && !isForced ? listsInUse(old) : [];
    if (!old) held.delete(id);
    else if (!lists.length) swap(old, text, lists);
  }
  sayHeld();
}

function sayHeld() {
  if (!bar) return;
  const changes = [...held.values()].reduce((sum, one) => sum + one.changes, 0);
  const words = newRows ? `${newRows} new` : changes ? `${changes} ${changes === 1 ? "change" : "changes"}` : "";
  const text = words && `${words}, show (n)`;
  if (bar.textContent === text) return;
  // The focus does not go with the bar.
  if (!text && bar === document.activeElement) document.querySelector("#main").focus({ preventScroll: true });
  bar.textContent = text;
  bar.hidden = !text;
}

// Rows are not added to a list of tasks, and stay where they no longer match: dimmed, with what they say now.
function compareRows() {
  const list = document.querySelector("[data-matches]");
  if (!list) return;
  const matching = list.dataset.matches.split(" ").filter(Boolean);
  const rows = [...document.querySelectorAll("[data-rows] > tr[data-item]")];
  const shown = new Set(rows.map((row) => row.dataset.item));
  const isCut = matching.length >= Number(list.dataset.most);
  for (const row of rows) {
    const id = row.dataset.item;
    // New rows may have pushed it to the next page.
    const isElsewhere = isCut && id < matching.at(-1);
    row.classList.toggle("outside", !isElsewhere && !matching.includes(id));
  }
  const coming = matching.filter((id) => !shown.has(id) && id > list.dataset.after).length;
  newRows = coming ? `${coming}${coming >= Number(list.dataset.most) ? " or more" : ""}` : "";
}

// --- ask for parts: at most one request at a time, and nothing that is due is forgotten ---------

function want(some) {
  for (const part of some) due.add(part.id);
  refreshSoon();
}

const wantAll = () => want(parts().filter((part) => part.dataset.on || part.dataset.every !== undefined));

function refreshSoon() { if (due.size) timer ??= setTimeout(refresh, DELAY); }

// A part with a gap is asked for no sooner than its gap after the last time.
function isReady(part) {
  const left = (askedAt.get(part.id) ?? -Infinity) + 1000 * part.dataset.gap - performance.now();
  if (left <= 0) return true;
  if (!postponed.has(part.id)) setTimeout(() => { postponed.delete(part.id); want([part]); }, left);
  postponed.add(part.id);
  return false;
}

async function refresh() {
  timer = undefined;
  if (isPaused || document.hidden || isAsking) return;
  const wanted = parts().filter((part) => due.has(part.id));
  due.clear();
  const plain = wanted.filter((part) => !part.dataset.gap);
  const expensive = wanted.filter((part) => part.dataset.gap && isReady(part));
  isAsking = true;
  try {
    for (const some of [...chunks(plain, MAX_PARTS), ...chunks(expensive, MAX_EXPENSIVE)]) await ask(some.map((part) => part.id));
  } finally {
    isAsking = false;
    refreshSoon();
  }
}

function chunks(all, size) {
  return all.flatMap((_, at) => (at % size ? [] : [all.slice(at, at + size)]));
}

async function ask(ids) {
  for (const id of ids) askedAt.set(id, performance.now());
  const text = await load(ids);
  const again = () => { for (const id of ids) due.add(id); refreshSoon(); };
  // The server is busy or away.
  if (text === null) setTimeout(again, POLL_MILLISECONDS);
  // The reader has paused the page meanwhile.
  else if (isPaused) again();
  else show(text, ids);
}

async function load(ids) {
  const query = new URLSearchParams(ids.map((id) => ["for", id]));
  try {
    const response = await fetch(`/parts?${query}`, { redirect: "manual", headers: { "X-Page": location.pathname + location.search } });
    // The session has ended: the page itself leads to the sign-in.
    if (response.type === "opaqueredirect") location.reload();
    return response.ok ? await response.text() : null;
  } catch {
    return null;
  }
}

// Add a part that the page does not show from the beginning.
export async function addPart(id, parent) {
  const text = await load([id]);
  if (text?.trim()) parent.append(read(text.trim()));
}

function take(message) {
  const names = new Set(message.changed);
  if (isPaused) { missed += message.changed.filter((name) => name.startsWith("task_")).length; sayState(); }
  want(parts().filter((part) => part.dataset.on?.split(" ").some((name) => name === "*" || names.has(name))));
}

// --- the stream ---------------------------------------------------------------------------------

function open() {
  if (source) return;
  const query = lastId ? `?after=${lastId}` : "";
  source = new EventSource(`/live${query}`);
  const hello = setTimeout(lose, HELLO_MILLISECONDS);
  source.addEventListener("hello", (event) => {
    clearTimeout(hello);
    failures = 0;
    lastId = event.lastEventId;
    channel?.postMessage({ id: lastId, hello: true });
    greet();
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
    if (source?.readyState === EventSource.CLOSED || failures > 3) { close(); lose(); setTimeout(lead, POLL_MILLISECONDS * 2); }
  });
}

function close() { source?.close(); source = undefined; }

// The stream begins here; what changed before, the page asks for once.
function greet() {
  clearInterval(polling);
  polling = undefined;
  sayState();
  wantAll();
}

// No stream reaches this browser: every tab asks by itself.
function lose() {
  channel?.postMessage({ id: lastId, lost: true });
  poll();
}

function poll() {
  polling ??= setInterval(() => { if (!document.hidden) wantAll(); }, POLL_MILLISECONDS);
  sayState();
}

function lead() {
  if (document.hidden || source) return;
  if (!navigator.locks || !channel || release) { open(); return; }
  const abort = new AbortController();
  release = () => abort.abort();
  navigator.locks.request("overnight-live", { signal: abort.signal }, () => {
    open();
    return new Promise((resolve) => { release = () => { close(); release = undefined; resolve(); }; });
  }).catch(() => { release = undefined; });
}

channel?.addEventListener("message", ({ data }) => {
  lastId = data.id;
  if (data.hello) greet();
  if (data.lost) poll();
  if (data.message) take(data.message);
});

let leaving;
document.addEventListener("visibilitychange", () => {
  clearTimeout(leaving);
  if (document.hidden) { leaving = setTimeout(() => release?.() ?? close(), HIDDEN_MILLISECONDS); return; }
  const isFollower = !source;
  lead();
  if (isFollower) wantAll();
  refreshSoon();
});

pill?.addEventListener("click", () => {
  isPaused = !isPaused;
  missed = 0;
  sayState();
  if (!isPaused) wantAll();
});

bar?.addEventListener("click", () => { if (newRows) location.reload(); else showHeld(true); });

// Parts that change by themselves, such as ages and progress.
setInterval(() => {
  if (!isPaused && !document.hidden && !polling) want(parts().filter((part) => part.dataset.every !== undefined));
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
  // The reader may have left a list.
  if (!isPaused) showHeld(false);
}
setInterval(tick, 1000);

addEventListener("pagehide", () => { release?.(); close(); });
addEventListener("pageshow", (event) => { if (event.persisted) { lead(); wantAll(); } });
if (document.querySelector("#main .list, #main section, [data-part]")) {
  lead();
  // A tab that follows another's stream asks once for what changed after the page was rendered.
  setTimeout(() => { if (!source) wantAll(); }, DELAY);
}
