"use strict";
// One head, selected in every model's map: what it does in each stands side by side.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const cells = Array.from(document.querySelectorAll("button.cell"));
  const told = Array.from(document.querySelectorAll("[data-told]"));
  const differ = new Set(data.differ);
  for (const cell of cells) {
    const head = data.models[cell.dataset.model][cell.dataset.head];
    if (differ.has(cell.dataset.head)) { cell.classList.add("differs"); cell.setAttribute("aria-label", cell.getAttribute("aria-label") + "; differs"); }
    if (head.mean) cell.prepend(headPicture(head.mean, data.side));
    cell.addEventListener("mouseenter", () => tell(cell.dataset.head));
    cell.addEventListener("focus", () => tell(cell.dataset.head));
    cell.addEventListener("click", () => select(cell.dataset.head));
    cell.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!by) return;
      event.preventDefault();
      const name = `L${Number(cell.dataset.row) + by[0]}H${Number(cell.dataset.column) + by[1]}`;
      const next = cells.find((other) => other.dataset.model === cell.dataset.model && other.dataset.head === name);
      if (next) { select(name); next.focus(); }
    });
  }

  function tell(name) {
    for (const place of told) {
      const head = data.models[place.dataset.told][name];
      place.textContent = `${name}: ${head ? head.sentence : "not in this model"}`;
    }
    for (const cell of cells) cell.classList.toggle("same", cell.dataset.head === name);
  }

  function select(name) {
    for (const cell of cells) cell.setAttribute("aria-current", String(cell.dataset.head === name));
    tell(name);
    history.replaceState(null, "", "#" + name);
  }

  // Heads of the same role, and numbers that are not clearly different, step back.
  const only = document.getElementById("changed-only");
  only.addEventListener("change", () => {
    for (const cell of cells) cell.classList.toggle("out", only.checked && !differ.has(cell.dataset.head));
    for (const row of document.querySelectorAll("tr.alike")) row.hidden = only.checked;
    for (const body of document.querySelectorAll(".side tbody")) body.hidden = only.checked && !body.querySelector("tr:not(.alike) td");
  });

  const asked = location.hash.slice(1);
  const first = cells.some((cell) => cell.dataset.head === asked) ? asked : data.first;
  if (first) { for (const cell of cells) cell.setAttribute("aria-current", String(cell.dataset.head === first)); tell(first); }
})();
