"use strict";

// What a filter shows: no document is needed for that, so that it can be tried anywhere.
function wordsOf(text) {
  return text.toLowerCase().split(/\s+/).filter(Boolean);
}

function isWanted(row, filter) {
  return (!filter.action || row.action === filter.action)
    && (!filter.kind || row.kind === filter.kind)
    && (!filter.domain || row.domains.includes(filter.domain))
    && (!filter.hazard || row.hazards.includes(filter.hazard))
    && filter.words.every((word) => row.text.includes(word));
}

// A change of the page as plain data; its text is read once, when it is first searched in.
function rowOf(element) {
  let text = null;
  return {
    element,
    action: element.dataset.action,
    kind: element.dataset.kind,
    domains: element.dataset.domains.split(" "),
    hazards: element.dataset.hazards.split(" "),
    count: Number(element.dataset.count),
    get text() { return text ??= element.textContent.toLowerCase(); },
  };
}

function start() {
  const form = document.getElementById("filter"), rows = [...document.querySelectorAll("details.change")].map(rowOf);
  const sections = [...document.querySelectorAll("section.changes")];
  const total = rows.reduce((sum, row) => sum + row.count, 0);

  function show() {
    const { action, kind, domain, hazard, search } = form.elements;
    const filter = { action: action.value, kind: kind.value, domain: domain.value, hazard: hazard.value, words: wordsOf(search.value) };
    let count = 0;
    for (const row of rows) {
      const wanted = isWanted(row, filter);
      if (row.element.hidden === wanted) row.element.hidden = !wanted;
      if (wanted) count += row.count;
    }
    for (const section of sections) section.hidden = !section.querySelector("details.change:not([hidden])");
    form.elements.count.value = `${count.toLocaleString("en")} of ${total.toLocaleString("en")} changes`;
    document.getElementById("none").hidden = count > 0;
  }

  function openAll(open) {
    for (const row of rows) if (!row.element.hidden) row.element.open = open;
  }

  // A hazard leads to its change, also if the filter hides it.
  function follow(event) {
    const link = event.target.closest("a[href^='#c']"), found = link && document.getElementById(link.hash.slice(1));
    if (!found) return;
    if (found.hidden) form.reset(), show();
    found.open = true;
  }

  function shortcut(event) {
    if (event.key !== "/" || event.target.closest("input, select")) return;
    event.preventDefault();
    form.elements.search.focus();
  }

  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(show));
  form.elements.open.onclick = () => openAll(true);
  form.elements.close.onclick = () => openAll(false);
  document.addEventListener("click", follow);
  document.addEventListener("keydown", shortcut);
  show();
}

function themed() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

if (typeof document !== "undefined") {
  document.getElementById("theme").onclick = themed;
  if (document.getElementById("filter")) start();
}
