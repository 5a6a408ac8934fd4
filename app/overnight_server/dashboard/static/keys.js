// Single keys: they do nothing in fields, with a modifier, or when the reader has switched them off.

const dialog = document.querySelector("#keys");
const places = { m: "/", t: "/tasks", q: "/queue", d: "/dead", l: "/limits", w: "/workers" };
const isOff = document.cookie.includes("overnight_keys=off");
let before = "";

const rows = () => [...document.querySelectorAll("[data-rows] > tr")];
const current = () => document.querySelector("[data-rows] > tr.at");

function move(step) {
  const all = rows();
  if (!all.length) return;
  const next = all[Math.min(Math.max(all.indexOf(current()) + step, 0), all.length - 1)];
  current()?.classList.remove("at");
  next.classList.add("at");
  next.querySelector("a")?.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

function press(selector) { document.querySelector(selector)?.click(); }

function nextClock() {
  const buttons = [...document.querySelectorAll(".clockmode button")];
  const at = buttons.findIndex((button) => button.getAttribute("aria-pressed") === "true");
  buttons[(at + 1) % buttons.length]?.click();
}

const acts = {
  "?": () => dialog?.showModal(),
  "/": () => (document.querySelector("#query") ?? document.querySelector("#q"))?.focus(),
  j: () => move(1),
  k: () => move(-1),
  x: () => current()?.querySelector("input[type=checkbox]")?.click(),
  p: () => press("#live"),
  t: nextClock,
  n: () => press("[data-fresh]"),
  c: () => press("[data-key=c]"),
  r: () => press("[data-key=r]"),
  e: () => press("[data-key=e]"),
  y: () => press("[data-key=y]"),
  Y: () => press("[data-key=Y]"),
  "[": () => press("[data-key=before]"),
  "]": () => press("[data-key=after]"),
};
for (let number = 1; number < 7; number += 1) acts[number] = () => press(`.tabs a:nth-of-type(${number})`);

addEventListener("keydown", (event) => {
  if (isOff || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.("input:not([type=checkbox]), textarea, select, dialog, [contenteditable]")) return;
  const key = event.key;
  if (before === "g" && places[key]) { location.href = places[key]; return; }
  before = key;
  if (!acts[key]) return;
  event.preventDefault();
  acts[key]();
});
