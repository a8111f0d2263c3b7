"use strict";
// Everything is built with textContent and setAttribute: no string from a model or a corpus is ever read as markup.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const heads = new Map(data.heads.map((head) => [head.name, head]));
  const cells = Array.from(document.querySelectorAll("button.cell"));
  const hint = document.getElementById("hint");
  const dialog = document.getElementById("card");
  const SVG = "http://www.w3.org/2000/svg";
  let shown = null;

  function element(name, text, className) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function drawn(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function roleText(head) {
    return head.roles.length ? head.roles.join(", ") : data.classified ? "no role on this corpus" : "not classified";
  }

  // --- the map ---------------------------------------------------------------------------------

  function tell(head) {
    hint.replaceChildren(element("strong", head.name + ": " + roleText(head) + ". "));
    hint.append(head.facts.slice(0, 4).map(([caption, text]) => caption + " " + text).join("; "));
  }

  function move(cell, event) {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    let row = Number(cell.dataset.row), column = Number(cell.dataset.column);
    for (let i = 0; i < 200; i++) {
      row += step[0];
      column += step[1];
      const next = cells.find((other) => Number(other.dataset.row) === row && Number(other.dataset.column) === column);
      if (next) return next.focus();
    }
  }

  for (const cell of cells) {
    const head = heads.get(cell.dataset.head);
    cell.addEventListener("mouseenter", () => tell(head));
    cell.addEventListener("focus", () => tell(head));
    cell.addEventListener("click", () => open(head));
    cell.addEventListener("keydown", (event) => move(cell, event));
  }

  // --- filter and colours ----------------------------------------------------------------------

  const chips = Array.from(document.querySelectorAll(".chip[data-role]"));
  const table = document.getElementById("heads-table");

  function filter() {
    const wanted = chips.filter((chip) => chip.getAttribute("aria-pressed") === "true").map((chip) => chip.dataset.role);
    const fits = (head) => !wanted.length || wanted.some((role) => role === "none" ? !head.roles.length : head.keys.includes(role));
    for (const cell of cells) cell.classList.toggle("out", !fits(heads.get(cell.dataset.head)));
    if (table) for (const row of table.tBodies[0].rows) row.hidden = !fits(heads.get(row.dataset.head));
    const count = data.heads.filter(fits).length;
    document.getElementById("count").textContent = wanted.length ? count + " of " + data.heads.length + " heads" : "";
  }

  for (const chip of chips) {
    chip.addEventListener("click", () => {
      chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
      filter();
    });
  }

  const colours = document.getElementById("colours");
  if (colours) colours.addEventListener("change", () => {
    const key = colours.value;
    const values = data.heads.map((head) => head.values[key]).filter((value) => value !== undefined);
    const low = Math.min(...values), high = Math.max(...values);
    for (const cell of cells) {
      const head = heads.get(cell.dataset.head), value = head.values[key];
      cell.classList.toggle("scaled", key !== "role");
      if (key === "role") { cell.textContent = head.mark; continue; }
      const share = value === undefined ? 0 : high > low ? (value - low) / (high - low) : 1;
      cell.style.setProperty("--t", Math.round(100 * (key === "importance" ? 1 - share : share)) + "%");
      cell.textContent = value === undefined ? "-" : Math.abs(value) >= 10 ? Math.round(value) : value.toFixed(Math.abs(value) >= 1 ? 1 : 2).replace(/^(-?)0\./, "$1.");
    }
  });

  // --- sorting ---------------------------------------------------------------------------------

  for (const button of document.querySelectorAll("table.sortable th button")) {
    button.addEventListener("click", () => {
      const header = button.closest("th"), whole = header.closest("table"), column = header.cellIndex;
      const down = header.getAttribute("aria-sort") !== "descending" && header.classList.contains("n") || header.getAttribute("aria-sort") === "ascending";
      for (const other of whole.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const number = (text) => text === "" || Number.isNaN(Number(text)) ? null : Number(text);
      const order = (a, b) => {
        const x = key(a), y = key(b), m = number(x), n = number(y);
        if (m === null && n === null) return down ? y.localeCompare(x) : x.localeCompare(y);
        if (m === null || n === null) return m === null ? 1 : -1;
        return down ? n - m : m - n;
      };
      whole.tBodies[0].append(...Array.from(whole.tBodies[0].rows).sort(order));
    });
  }

  // --- the card of one head --------------------------------------------------------------------

  function tableOf(caption, header, rows, numbers) {
    const box = element("div", undefined, "scroll"), made = element("table"), top = element("tr");
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", caption || "Table");
    if (caption) made.append(element("caption", caption));
    header.forEach((text, i) => { const th = element("th", text, i >= numbers ? "n" : ""); th.scope = "col"; top.append(th); });
    const head = element("thead"), body = element("tbody");
    head.append(top);
    for (const row of rows) {
      const line = element("tr");
      row.forEach((text, i) => line.append(element("td", text, i >= numbers ? "n" : "")));
      body.append(line);
    }
    made.append(head, body);
    box.append(made);
    return box;
  }

  function heat(sample, flat) {
    const n = sample.tokens.length, side = 18, left = 84, top = 78, size = n * side;
    const figure = element("figure"), caption = element("figcaption", sample.text);
    const svg = drawn("svg", { class: "heat", viewBox: `0 0 ${left + size + 34} ${top + size + 4}`, role: "img" });
    const short = (token) => { const letters = Array.from(token); return letters.length > 11 ? letters.slice(0, 10).join("") + "…" : token; };
    const strongest = [];
    svg.append(drawn("rect", { class: "ground", x: left, y: top, width: size, height: size }));
    sample.tokens.forEach((token, i) => {
      const middle = (i + 0.5) * side + 4;
      svg.append(drawn("text", { x: left - 5, y: top + middle, "text-anchor": "end" }, short(token)));
      svg.append(drawn("text", { x: left + middle, y: top - 5, transform: `rotate(-60 ${left + middle} ${top - 5})` }, short(token)));
      const row = flat.slice(i * n, (i + 1) * n), best = row.indexOf(Math.max(...row));
      strongest.push([token, sample.tokens[best], (row[best] / 100).toFixed(2)]);
      row.forEach((weight, j) => {
        if (!weight) return;
        const cell = drawn("rect", { x: left + j * side, y: top + i * side, width: side - 1, height: side - 1, "fill-opacity": (weight / 100).toFixed(2) });
        cell.append(drawn("title", {}, `${token} → ${sample.tokens[j]}: ${(weight / 100).toFixed(2)}`));
        svg.append(cell);
      });
    });
    svg.setAttribute("aria-label", "Attention pattern, queries down, keys across; the strongest key of every token is listed below.");
    const more = element("details");
    more.append(element("summary", "Strongest key of every token"));
    more.append(tableOf("", ["token", "looks at", "weight"], strongest, 2));
    figure.append(caption, svg, more);
    return figure;
  }

  function content(head) {
    const parts = [];
    parts.push(element("p", roleText(head).replace(/^./, (c) => c.toUpperCase()) + "."));
    if (head.labels.length) parts.push(tableOf("Roles with what they must beat", ["role", "what", "score", "baseline", "95% interval", "adj. p"], head.labels, 2));
    const list = element("dl", undefined, "facts");
    for (const [caption, text] of head.facts) list.append(element("dt", caption), element("dd", text));
    parts.push(element("h3", "Numbers"), list);
    if (head.ranks.length) parts.push(element("h3", "Ranks"), tableOf("dims90: dimensions that hold 90%; the same of controls of the same shape", ["matrix", "dims90", ...data.controls, "effective", "stable"], head.ranks, 1));
    const patterns = data.samples.filter((sample) => sample.patterns[head.name]);
    if (patterns.length) {
      const box = element("div", undefined, "patterns");
      for (const sample of patterns) box.append(heat(sample, sample.patterns[head.name]));
      parts.push(element("h3", "Attention on sample sentences (queries down, keys across)"), box);
    }
    return parts;
  }

  function open(head) {
    shown = head.name;
    document.getElementById("card-title").textContent = head.name;
    document.getElementById("card-body").replaceChildren(...content(head));
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  }

  function step(by) {
    const names = data.heads.map((head) => head.name);
    open(heads.get(names[(names.indexOf(shown) + by + names.length) % names.length]));
  }

  if (dialog) {
    document.getElementById("card-close").addEventListener("click", () => dialog.close());
    document.getElementById("card-previous").addEventListener("click", () => step(-1));
    document.getElementById("card-next").addEventListener("click", () => step(1));
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") step(-1);
      if (event.key === "ArrowRight") step(1);
    });
    dialog.addEventListener("close", () => {
      const cell = cells.find((other) => other.dataset.head === shown);
      if (cell) cell.focus();
    });
    if (table) for (const button of table.querySelectorAll("button[data-head]")) button.addEventListener("click", () => open(heads.get(button.dataset.head)));
  }
})();
