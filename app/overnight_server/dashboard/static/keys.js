// Single keys: they do nothing in fields, with a modifier, or when the reader has switched them off.
// What is here and the table of keys.html are the same.

import { copy, show } from "./actions.js";
import { clear, selectUpTo } from "./select.js";

const dialog = document.querySelector("#keys");
const places = { m: "/", t: "/tasks", q: "/queue", d: "/dead", l: "/limits", w: "/workers" };
const isOff = document.cookie.includes("overnight_keys=off");
let before = "";

const rows = () => [...document.querySelectorAll("[data-rows] > tr")];
const current = () => document.activeElement?.closest("[data-rows] > tr") ?? document.querySelector("[data-rows] > tr.at");
const link = (row) => row.querySelector("a.title");

function move(step) {
  const all = rows();
  if (!all.length) return;
  const next = all[Math.min(Math.max(all.indexOf(current()) + step, 0), all.length - 1)];
  document.querySelector("[data-rows] > tr.at")?.classList.remove("at");
  next.classList.add("at");
  link(next)?.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

// The control of the page itself, not that of a row.
function press(selector) {
  const found = [...document.querySelectorAll(selector)].find((one) => !one.closest("[data-rows], .bulk"));
  found?.click();
  return Boolean(found);
}

function onRow(act) {
  const row = current();
  if (row) act(row);
  else if (rows().length) show("No row is chosen. j and k choose one.");
}

// An act on the selected rows, else on the row, else on what the page is about.
function act(key) {
  const bar = document.querySelector(".bulk");
  const button = bar?.querySelector(`[data-key=${key}]`);
  if (button && !bar.classList.contains("idle")) {
    if (button.hidden) show("This act fits none of the selected tasks.");
    else button.click();
  } else if (current() || !press(`[data-key=${key}]`)) {
    onRow((row) => (button ? askFor(row, button) : pressIn(row, key)));
  }
}

function pressIn(row, key) {
  const control = row.querySelector(`[data-key=${key}]`);
  if (control) control.click();
  else show("This row has no such act. Its page may have one.");
}

// The bar acts on one row as on a selected one: it asks first.
function askFor(row, button) {
  const box = row.querySelector(".pick input");
  if (!button.dataset.fits.split(" ").includes(box.dataset.state)) { show("This act does not fit the task as it is now."); return; }
  const query = new URLSearchParams({ back: button.form.elements.back.value, act: button.value, id: box.value });
  location.href = `${button.form.getAttribute("action")}?${query}`;
}

function edit() {
  const chosen = document.querySelectorAll("[data-rows] .pick input:checked");
  const row = chosen.length === 1 ? chosen[0].closest("tr") : current();
  const path = row && link(row)?.pathname;
  if (path?.startsWith("/tasks/")) location.href = `${path}/edit`;
  else if (!press("[data-key=e]")) onRow(() => show("This row cannot be edited."));
}

function copyId() {
  if (current() || !press("[data-key=y]")) onRow((row) => copy(link(row).pathname.split("/").pop()));
}

// The reasons of a row, in its place; on the page of a task, those of the task.
async function why() {
  const said = document.querySelector(".say");
  if (said) { said.tabIndex = -1; said.focus(); return; }
  const row = current();
  const cell = row?.querySelector("td.why");
  if (!cell) { onRow(() => {}); return; }
  const shown = cell.querySelector("[data-own]");
  if (shown) { shown.remove(); return; }
  const live = await import("./live.js");
  await live.addPart(`why:${row.dataset.item}`, cell);
}

function nextClock() {
  const buttons = [...document.querySelectorAll(".clockmode button")];
  const at = buttons.findIndex((button) => button.getAttribute("aria-pressed") === "true");
  buttons[(at + 1) % buttons.length]?.click();
}

function escape() {
  clear();
  for (const shown of document.querySelectorAll("[data-own]")) shown.remove();
}

const acts = {
  "?": () => dialog?.showModal(),
  "/": () => (document.querySelector("#query") ?? document.querySelector("#q"))?.focus(),
  j: () => move(1),
  k: () => move(-1),
  x: () => onRow((row) => row.querySelector(".pick input")?.click()),
  X: () => onRow((row) => selectUpTo(row.querySelector(".pick input"))),
  p: () => press("#live"),
  t: nextClock,
  n: () => press("[data-fresh]:not([hidden])"),
  c: () => act("c"),
  r: () => act("r"),
  e: edit,
  w: why,
  y: copyId,
  Y: () => press("[data-key=Y]"),
  "[": () => press("[data-key=before]"),
  "]": () => press("[data-key=after]"),
  Escape: escape,
};
for (let number = 1; number < 7; number += 1) acts[number] = () => press(`.tabs a:nth-of-type(${number})`);

addEventListener("keydown", (event) => {
  if (isOff || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.("input:not([type=checkbox]), textarea, select, dialog, [contenteditable]")) return;
  const key = event.key;
  const isPlace = before === "g" && places[key];
  before = isPlace ? "" : key;
  if (!isPlace && !acts[key]) return;
  event.preventDefault();
  if (isPlace) press(`.side a[href="${places[key]}"]:not(.brand)`);
  else acts[key]();
});
