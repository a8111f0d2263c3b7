"use strict";
// Tables: made of texts, sorted by a column, and with a hint where there is more to the right.

function tableOf(caption, header, rows, numbers) {
  const box = element("div", undefined, "scroll", { tabindex: "0", role: "region", "aria-label": caption || "Table" });
  const table = element("table"), head = element("thead"), body = element("tbody");
  if (caption) table.append(element("caption", caption));
  head.append(element("tr"));
  table.append(head, body);
  box.append(table);
  fillTable(table, header, rows, numbers);
  return box;
}

// Writes texts into the cells of a table. Cells, rows and columns that are there already stay: what has the focus keeps it.
function fillTable(table, header, rows, numbers) {
  const line = (row, kind, texts) => {
    while (row.cells.length > texts.length) row.lastElementChild.remove();
    while (row.cells.length < texts.length) row.append(element(kind, undefined, "", kind === "th" ? { scope: "col" } : {}));
    texts.forEach((text, i) => {
      const cell = row.cells[i];
      if (cell.textContent !== text) cell.textContent = text;
      cell.className = i >= numbers ? "n" : "";
      if (kind === "td") cell.dataset.label = header[i];
    });
  };
  const body = table.tBodies[0];
  line(table.tHead.rows[0], "th", header);
  while (body.rows.length > rows.length) body.lastElementChild.remove();
  while (body.rows.length < rows.length) body.append(element("tr"));
  rows.forEach((texts, i) => line(body.rows[i], "td", texts));
}

// Sort by the column whose name is chosen: numbers from the largest at first, words from A; what is not measured comes last.
function sortable(table) {
  const number = (text) => text === "" || Number.isNaN(Number(text)) ? null : Number(text);
  for (const button of table.querySelectorAll("th button")) button.addEventListener("click", () => {
    const header = button.closest("th"), sorted = header.getAttribute("aria-sort");
    const down = sorted === "ascending" || (header.classList.contains("n") && sorted !== "descending");
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[header.cellIndex].dataset.value ?? row.cells[header.cellIndex].textContent;
    const compare = (one, two) => {
      const x = key(one), y = key(two), m = number(x), n = number(y);
      if (m === null && n === null) return down ? y.localeCompare(x) : x.localeCompare(y);
      if (m === null || n === null) return m === null ? 1 : -1;
      return down ? n - m : m - n;
    };
    table.tBodies[0].append(...Array.from(table.tBodies[0].rows).sort(compare));
  });
}

// A region that scrolls sideways fades out where there is more of it; above a table a line says so, too.
function hintAtMore(box) {
  const hint = box.querySelector("table") && element("p", "", "soft sideways", { "aria-hidden": "true", hidden: "" });
  if (hint) box.before(hint);
  const show = () => {
    const right = box.scrollLeft + box.clientWidth < box.scrollWidth - 2, left = box.scrollLeft > 2;
    box.classList.toggle("more-right", right);
    box.classList.toggle("more-left", left);
    if (!hint) return;
    hint.hidden = !right && !left;
    hint.textContent = (left ? "← more to the left " : "") + (right ? "more to the right →" : "");
  };
  const watch = new ResizeObserver(show);
  watch.observe(box);
  for (const child of box.children) watch.observe(child);
  box.addEventListener("scroll", show, { passive: true });
  show();
}
