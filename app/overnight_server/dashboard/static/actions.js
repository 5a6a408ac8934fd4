// Buttons: copy a text, close a dialog, hide the toast, send a form once.

const TOAST_MILLISECONDS = 8000;
const toast = document.querySelector("#toast");
let hiding;

export function show(text) {
  if (!toast) return;
  toast.firstElementChild.textContent = text;
  toast.hidden = false;
  hideLater();
}

function hideLater() {
  clearTimeout(hiding);
  hiding = setTimeout(() => { toast.hidden = true; }, TOAST_MILLISECONDS);
}

if (toast) {
  toast.querySelector(".close").addEventListener("click", () => { toast.hidden = true; });
  // It stays while somebody reads it.
  for (const name of ["pointerenter", "focusin"]) toast.addEventListener(name, () => clearTimeout(hiding));
  for (const name of ["pointerleave", "focusout"]) toast.addEventListener(name, hideLater);
  if (!toast.hidden) hideLater();
}

const canCopy = Boolean(navigator.clipboard);
// Plain http from another machine has no clipboard.
if (!canCopy) for (const button of document.querySelectorAll("[data-copy]")) button.hidden = true;

export async function copy(text) {
  if (!canCopy) return;
  await navigator.clipboard.writeText(text);
  show(`Copied: ${text.slice(0, 80)}`);
}

addEventListener("click", (event) => {
  const button = event.target.closest?.("button");
  if (!button) return;
  if (button.dataset.copy !== undefined) copy(button.dataset.copy);
  if (button.dataset.close !== undefined) button.closest("dialog").close();
});

// A form that was sent cannot be sent again by a second press.
addEventListener("submit", (event) => {
  if (event.target.method !== "post") return;
  if (event.target.dataset.sent) { event.preventDefault(); return; }
  event.target.dataset.sent = "1";
  event.submitter?.setAttribute("aria-busy", "true");
});
// The page may come back from the browser's memory.
addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("[data-sent]")) delete form.dataset.sent;
  for (const button of document.querySelectorAll("[aria-busy]")) button.removeAttribute("aria-busy");
});

document.querySelector("form[data-send]")?.requestSubmit();
