// Selected rows: how many, and what can be done with them. Without script the bar is always shown.

const bar = document.querySelector(".bulk");
const boxes = () => [...document.querySelectorAll("[data-rows] .pick input")];
const all = document.querySelector("[data-pick-all]");
let last;

function show() {
  if (!bar) return;
  const chosen = boxes().filter((box) => box.checked);
  bar.classList.toggle("idle", chosen.length === 0);
  bar.querySelector("b").textContent = chosen.length;
  for (const button of bar.querySelectorAll("button[data-fits]")) {
    const states = button.dataset.fits.split(" ");
    const number = chosen.filter((box) => states.includes(box.dataset.state)).length;
    button.textContent = `${button.dataset.verb} ${number}…`;
    button.hidden = number === 0;
  }
  if (all) {
    all.checked = chosen.length > 0 && chosen.length === boxes().length;
    all.indeterminate = chosen.length > 0 && !all.checked;
  }
}

addEventListener("click", (event) => {
  const box = event.target.closest?.("[data-rows] .pick input");
  if (!box) return;
  const every = boxes();
  if (event.shiftKey && last && every.includes(last)) {
    const [from, to] = [every.indexOf(last), every.indexOf(box)].sort((a, b) => a - b);
    for (const one of every.slice(from, to + 1)) one.checked = box.checked;
  }
  last = box;
  show();
});
addEventListener("change", (event) => {
  if (event.target === all) for (const box of boxes()) box.checked = all.checked;
  show();
});

export function clear() {
  for (const box of boxes()) box.checked = false;
  show();
}

// Select a row, and those between it and the row that was selected last.
export function selectUpTo(box) {
  if (!box) return;
  box.checked = false;
  box.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true, shiftKey: true }));
}

addEventListener("pageshow", show);
show();
