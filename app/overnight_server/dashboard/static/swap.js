// Replace a part of the page by what the server rendered anew, without moving what the reader uses.
//
// Children are matched by what they are about, not by their place: an item of a list by `data-item`, a
// form by the act that it sends, a link by its address. So a form or a link never becomes that of
// another task. While the reader is in a list, the list keeps its items and their order.

// Set by scripts, or by the reader; the server does not know them.
const OWN_ATTRIBUTES = new Set(["open", "checked", "hidden", "aria-busy", "data-sent"]);
const OWN_CLASSES = ["at", "outside"];
// Fields that say from where a form is sent and to which version it belongs, not what it does.
const FORM_FIELDS = new Set(["token", "back", "edition"]);
const BLOCKS = new Set(["DIV", "SECTION", "ASIDE", "HEADER", "DETAILS", "TABLE", "TBODY", "UL", "OL", "DL"]);
const FIELDS = "input:not([type=hidden]), select, textarea";
const FOCUSABLE = `a[href], button, summary, [tabindex], ${FIELDS}`;

function keyOf(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return node.nodeName;
  const about = node.dataset.item ?? node.id;
  if (about) return `${node.nodeName} ${about}`;
  if (node.nodeName === "FORM") return `FORM ${node.getAttribute("action")} ${hiddenFields(node)}`;
  if (node.nodeName === "BUTTON") return `BUTTON ${node.name} ${node.value} ${node.dataset.copy ?? ""}`;
  return `${node.nodeName} ${node.getAttribute("href") ?? node.getAttribute("aria-labelledby") ?? ""}`;
}

function hiddenFields(form) {
  const fields = [...form.querySelectorAll("input[type=hidden]")].filter((field) => !FORM_FIELDS.has(field.name));
  return fields.map((field) => `${field.name}=${field.getAttribute("value")}`).join("&");
}

function isChanged(field) {
  if (field.nodeName === "SELECT") return field.selectedIndex !== Math.max([...field.options].findIndex((option) => option.defaultSelected), 0);
  if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
  return field.value !== field.defaultValue;
}

const fieldsIn = (element) => [...element.querySelectorAll(FIELDS)];

// A form into which somebody types stays as it is, with the version that it was loaded for.
const isInUse = (form) => fieldsIn(form).some((field) => field === document.activeElement || isChanged(field));

function hasSelection(element) {
  const selection = document.getSelection();
  return Boolean(selection && !selection.isCollapsed && element.contains(selection.anchorNode));
}

function isReaderIn(list) {
  return list.matches(":hover") || list.contains(document.activeElement) || hasSelection(list) || fieldsIn(list).some(isChanged);
}

// The lists of a part in which the reader is: with the pointer, the focus, a selection, or a field.
export function listsInUse(part) {
  const lists = new Set([...part.querySelectorAll("[data-item]")].map((item) => item.parentNode));
  return [...lists].filter(isReaderIn);
}

// What stands before a list in use, or around it, would move the list by coming or going. Words may change.
function isFixed(parent, lists) {
  return BLOCKS.has(parent.nodeName) && lists.some((list) => {
    if (list === parent) return true;
    if (list.contains(parent)) return false;
    return !(list.compareDocumentPosition(parent) & Node.DOCUMENT_POSITION_FOLLOWING);
  });
}

// Bring `old` to what `made` says. Returns how many items of lists in use were held back.
export function sync(old, made, lists = []) {
  for (const name of OWN_CLASSES) if (old.classList?.contains(name)) made.classList.add(name);
  if (old.isEqualNode(made)) return 0;
  if (old.nodeType !== Node.ELEMENT_NODE) { old.data = made.data; return 0; }
  if (old.nodeName === "FORM" && isInUse(old)) return 0;
  syncAttributes(old, made);
  return syncChildren(old, made, lists);
}

function syncAttributes(old, made) {
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name) && !OWN_ATTRIBUTES.has(name)) old.removeAttribute(name);
  for (const { name, value } of made.attributes) {
    if (!OWN_ATTRIBUTES.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

function match(old, made) {
  const byKey = Map.groupBy(old.childNodes, keyOf);
  return new Map([...made.childNodes].map((child) => [child, byKey.get(keyOf(child))?.shift()]));
}

function syncChildren(old, made, lists) {
  const matches = match(old, made);
  const kept = new Set([...matches.values()].filter(Boolean));
  // What a key has added to the page is not the server's.
  const leaving = [...old.childNodes].filter((child) => !kept.has(child) && child.dataset?.own === undefined);
  let held = 0;
  if (isFixed(old, lists)) held = holdBack(old, matches, leaving);
  else rearrange(old, matches, leaving);
  for (const [child, known] of matches) if (known) held += sync(known, child, lists);
  return held;
}

// The children stay where they are. Items that are about to leave are dimmed; their acts would be refused.
function holdBack(old, matches, leaving) {
  const visible = (nodes) => nodes.filter((node) => node.nodeType === Node.ELEMENT_NODE || node.data.trim());
  const gone = visible(leaving);
  for (const child of gone) child.classList?.add("gone");
  const coming = visible([...matches.keys()].filter((child) => !matches.get(child)));
  const wanted = visible([...matches.values()].filter(Boolean));
  const isMoved = [...old.childNodes].filter((child) => wanted.includes(child)).some((child, index) => child !== wanted[index]);
  return gone.length + coming.length + Number(isMoved);
}

function rearrange(old, matches, leaving) {
  const left = leaving.find((child) => child.contains(document.activeElement));
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  // What stands in the place of a child that goes gets its focus.
  const place = [...old.childNodes].indexOf(left);
  for (const child of leaving) child.remove();
  let next = old.firstChild;
  const coming = [];
  for (const [child, known] of matches) {
    if (known && known === next) { next = next.nextSibling; continue; }
    if (!known) coming.push(child);
    old.insertBefore(known ?? child, next);
  }
  if (left) focusInstead([...coming, old.childNodes[place], old]);
  else if (focused && focused !== document.activeElement) focused.focus({ preventScroll: true });
}

function focusInstead(candidates) {
  for (const one of candidates) {
    if (one?.nodeType !== Node.ELEMENT_NODE) continue;
    const target = one.matches(FOCUSABLE) ? one : one.querySelector(FOCUSABLE);
    target?.focus({ preventScroll: true });
    if (target && target === document.activeElement) return;
  }
  document.querySelector("#main")?.focus({ preventScroll: true });
}
