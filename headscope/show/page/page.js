"use strict";
// Everything is built with textContent and setAttribute: no string from a model or a corpus is ever read as markup.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const heads = new Map(data.heads.map((head) => [head.name, head]));
  const cells = new Map(Array.from(document.querySelectorAll("button.cell"), (cell) => [cell.dataset.head, cell]));
  const panel = document.getElementById("panel"), table = document.getElementById("heads-table");
  const byId = (id) => document.getElementById(id);
  let selected = null;

  function element(name, text, className, attributes) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    return made;
  }

  function drawn(name, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // Two significant digits, a true minus sign.
  function short(value) {
    if (value === undefined || value === null) return "–";
    const text = Math.abs(value) >= 100 || value === 0 ? value.toFixed(0) : Math.abs(value) >= 0.001 ? String(Number(value.toPrecision(2))) : value.toExponential(1);
    return text.replace("-", "−");
  }

  function roleText(head) {
    return head.roles.length ? head.roles.join(", ") : data.classified ? "no role on this corpus" : "not classified";
  }

  // --- small pictures: mean attention of a head ------------------------------------------------

  const SIDE = data.side;

  const picture = (head) => headPicture(head.mean, SIDE);

  if (SIDE) for (const [name, cell] of cells) if (heads.get(name).mean) cell.prepend(picture(heads.get(name)));

  // --- one head, selected everywhere -----------------------------------------------------------

  function tableOf(caption, header, rows, numbers) {
    const box = element("div", undefined, "scroll", { tabindex: "0", role: "region", "aria-label": caption || "Table" });
    const made = element("table"), top = element("tr"), head = element("thead"), body = element("tbody");
    if (caption) made.append(element("caption", caption));
    header.forEach((text, i) => top.append(element("th", text, i >= numbers ? "n" : "", { scope: "col" })));
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

  function pictures(head) {
    const box = element("div", undefined, "pictures");
    if (head.mean) {
      const figure = element("figure");
      figure.append(picture(head), element("figcaption", data.meanCaption));
      figure.firstChild.setAttribute("role", "img");
      figure.firstChild.setAttribute("aria-label", "Mean attention of " + head.name + ", queries down, keys across");
      figure.firstChild.removeAttribute("aria-hidden");
      box.append(figure);
    }
    const sample = data.samples[sampleIndex()];
    if (sample && sample.patterns[head.name]) {
      const figure = element("figure"), flat = sample.patterns[head.name], n = sample.tokens.length;
      const svg = drawn("svg", { class: "heat", viewBox: `0 0 ${n} ${n}`, role: "img", "aria-label": "Attention on the chosen sentence, queries down, keys across" });
      svg.append(drawn("rect", { class: "ground", width: n, height: n }));
      flat.forEach((weight, k) => {
        if (!weight) return;
        const i = Math.floor(k / n), j = k % n;
        const cell = drawn("rect", { x: j, y: i, width: 1, height: 1, "fill-opacity": (weight / 100).toFixed(2) });
        cell.append(drawn("title", {}, `${sample.tokens[i]} → ${sample.tokens[j]}: ${(weight / 100).toFixed(2)}`));
        svg.append(cell);
      });
      figure.append(svg, element("figcaption", "on the sentence below; rows ask, columns are looked at"));
      box.append(figure);
    }
    return box;
  }

  function fill(head) {
    const title = element("div", undefined, "panel-head");
    title.append(element("h3", head.name), element("span", roleText(head), "tag " + (head.primary || "none")));
    const toggle = element("button", "More", "plain sheet", { type: "button", "aria-expanded": "false" });
    toggle.addEventListener("click", () => {
      const open = panel.classList.toggle("open");
      toggle.setAttribute("aria-expanded", String(open));
      toggle.textContent = open ? "Less" : "More";
    });
    if (panel.classList.contains("open")) { toggle.setAttribute("aria-expanded", "true"); toggle.textContent = "Less"; }
    for (const [text, by, label] of [["←", -1, "Previous head"], ["→", 1, "Next head"]]) {
      const button = element("button", text, "plain", { type: "button", "aria-label": label });
      button.addEventListener("click", () => step(by));
      title.append(button);
    }
    title.append(toggle);
    const three = element("dl", undefined, "three");
    for (const [caption, text, baseline] of head.numbers) {
      const cell = element("div");
      cell.append(element("dt", caption), element("dd", text), element("dd", baseline, "soft"));
      three.append(cell);
    }
    const more = element("details", undefined, "more");
    more.append(element("summary", "All numbers of this head"));
    if (head.labels.length) more.append(tableOf("Roles, and what they must beat", ["role", "what", "score", "baseline", "95% interval", "adj. p"], head.labels, 2));
    const list = element("dl", undefined, "facts");
    for (const [caption, text] of head.facts) list.append(element("dt", data.captions[caption]), element("dd", text));
    more.append(list);
    if (head.ranks.length) more.append(tableOf("Dimensions that hold 90%, and of controls of the same shape", ["matrix", "this head", ...data.controls, "effective rank", "stable rank"], head.ranks, 1));
    panel.replaceChildren(title, element("p", head.sentence, "plainly"), pictures(head), three, more);
  }

  function select(name, from) {
    const head = heads.get(name);
    if (!head) return false;
    selected = name;
    for (const [other, cell] of cells) {
      cell.setAttribute("aria-current", String(other === name));
      cell.tabIndex = other === name ? 0 : -1;
    }
    if (table) for (const row of table.tBodies[0].rows) row.classList.toggle("chosen", row.dataset.head === name);
    for (const dot of document.querySelectorAll("#plane-chart circle")) dot.classList.toggle("chosen", dot.dataset.head === name);
    for (const who of document.querySelectorAll(".who")) who.textContent = name;
    if (panel) fill(head);
    drawLinks();
    if (from !== "start") history.replaceState(null, "", "#" + name);
    return true;
  }

  function step(by) {
    const names = data.heads.filter(fits).map((head) => head.name);
    if (names.length) select(names[(names.indexOf(selected) + by + names.length) % names.length]);
  }

  function move(cell, event) {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const by = steps[event.key];
    if (!by) return;
    event.preventDefault();
    let row = Number(cell.dataset.row), column = Number(cell.dataset.column);
    for (let i = 0; i < 200; i++) {
      row += by[0];
      column += by[1];
      for (const next of cells.values())
        if (Number(next.dataset.row) === row && Number(next.dataset.column) === column) {
          select(next.dataset.head);
          return next.focus();
        }
    }
  }

  for (const [name, cell] of cells) {
    cell.addEventListener("click", () => select(name));
    cell.addEventListener("keydown", (event) => move(cell, event));
  }
  if (table) for (const button of table.querySelectorAll("button[data-head]")) button.addEventListener("click", () => select(button.dataset.head));
  const jump = byId("jump");
  if (jump) jump.addEventListener("change", () => {
    const match = /^\s*l?\s*(\d+)\s*[h., ]\s*(\d+)\s*$/i.exec(jump.value);
    jump.setAttribute("aria-invalid", String(jump.value !== "" && !(match && select(`L${Number(match[1])}H${Number(match[2])}`))));
  });
  addEventListener("hashchange", () => select(location.hash.slice(1)));

  // --- filter and colours ----------------------------------------------------------------------

  const chips = Array.from(document.querySelectorAll(".chip[data-role]"));

  function fits(head) {
    const wanted = chips.filter((chip) => chip.getAttribute("aria-pressed") === "true").map((chip) => chip.dataset.role);
    return !wanted.length || wanted.some((role) => role === "none" ? !head.roles.length : head.keys.includes(role));
  }

  function filter() {
    for (const [name, cell] of cells) cell.classList.toggle("out", !fits(heads.get(name)));
    for (const dot of document.querySelectorAll("#plane-chart circle")) dot.classList.toggle("out", !fits(heads.get(dot.dataset.head)));
    if (table) for (const row of table.tBodies[0].rows) row.hidden = !fits(heads.get(row.dataset.head));
    const count = data.heads.filter(fits).length;
    byId("count").textContent = count < data.heads.length ? `${count} of ${data.heads.length} heads` : "";
  }

  for (const chip of chips) chip.addEventListener("click", () => {
    chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
    filter();
  });

  const valuesOf = (key) => data.heads.map((head) => head.values[key]).filter((value) => value !== undefined);
  const colours = byId("colours");
  if (colours) colours.addEventListener("change", () => {
    const key = colours.value, values = valuesOf(key), low = Math.min(...values), high = Math.max(...values);
    for (const [name, cell] of cells) {
      const head = heads.get(name), value = head.values[key], mark = cell.querySelector(".mark");
      cell.classList.toggle("scaled", key !== "role");
      if (key === "role") { mark.textContent = head.mark; continue; }
      const share = value === undefined ? 0 : high > low ? (value - low) / (high - low) : 1;
      cell.style.setProperty("--t", Math.round(100 * share) + "%");
      mark.textContent = short(value);
    }
  });

  // --- a sentence: queries above, keys below ---------------------------------------------------

  const samples = byId("samples"), special = byId("special"), links = byId("links"), reading = byId("reading");

  function sampleIndex() { return samples ? Number(samples.value) : 0; }

  function drawLinks() {
    const sample = data.samples[sampleIndex()];
    if (!links || !sample || !sample.patterns[selected]) return;
    const n = sample.tokens.length, flat = sample.patterns[selected], width = (token) => 12 + 8.6 * Array.from(token).length;
    const middle = [], total = sample.tokens.reduce((x, token) => { middle.push(x + width(token) / 2); return x + width(token); }, 8);
    const svg = drawn("svg", { class: "links", width: total + 8, height: 176, viewBox: `0 0 ${total + 8} 176`, role: "img", "aria-label": `Attention of ${selected}: a line from each word above to the words below that it attends to` });
    const lines = drawn("g", {}), words = [[], []];
    const shown = (i) => special.checked || !sample.special[i];
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) {
      const weight = flat[i * n + j] / 100;
      if (weight >= 0.04 && shown(i) && shown(j)) lines.append(drawn("line", { x1: middle[i], y1: 34, x2: middle[j], y2: 142, "stroke-opacity": Math.min(1, weight + 0.05).toFixed(2), "stroke-width": (1 + 3 * weight).toFixed(1), "data-query": i }));
    }
    svg.append(lines);
    sample.tokens.forEach((token, i) => {
      for (const [row, y] of [[0, 24], [1, 162]]) {
        const word = drawn("text", { x: middle[i], y, "text-anchor": "middle", class: shown(i) ? "" : "faint" }, token);
        if (row === 0) { word.setAttribute("tabindex", "0"); word.setAttribute("role", "button"); }
        words[row].push(word);
        svg.append(word);
      }
    });
    function only(query) {
      for (const line of lines.children) line.classList.toggle("out", query !== null && Number(line.dataset.query) !== query);
      words[1].forEach((word, j) => word.classList.toggle("hit", query !== null && flat[query * n + j] >= 10));
      if (query === null) return;
      const best = Array.from(flat.slice(query * n, (query + 1) * n).entries()).sort((a, b) => b[1] - a[1]).slice(0, 3).filter((pair) => pair[1] > 0);
      reading.textContent = `${selected}: ${sample.tokens[query]} attends to ` + best.map(([j, weight]) => `${sample.tokens[j]} (${weight}%)`).join(", ") + ".";
    }
    words[0].forEach((word, i) => {
      for (const kind of ["mouseenter", "focus"]) word.addEventListener(kind, () => only(i));
      for (const kind of ["mouseleave", "blur"]) word.addEventListener(kind, () => only(null));
    });
    links.replaceChildren(svg);
  }

  if (samples) {
    samples.addEventListener("change", () => { if (panel) fill(heads.get(selected)); drawLinks(); });
    special.addEventListener("change", drawLinks);
  }

  // --- heads by two numbers --------------------------------------------------------------------

  const plane = byId("plane-chart");

  function ticks(low, high) {
    const raw = (high - low) / 4 || 1, size = 10 ** Math.floor(Math.log10(raw)), by = [1, 2, 5, 10].find((m) => m * size >= raw) * size, all = [];
    for (let t = Math.ceil(low / by) * by; t <= high + by / 1e6; t += by) all.push(Number(t.toPrecision(6)));
    return all;
  }

  function drawPlane() {
    const keys = [byId("across").value, byId("up").value], W = 720, H = 360, left = 62, bottom = 44;
    const shown = data.heads.filter((head) => keys.every((key) => head.values[key] !== undefined));
    const range = keys.map((key) => { const v = shown.map((head) => head.values[key]); return [Math.min(...v), Math.max(...v)]; });
    const place = (value, [low, high], from, to) => from + (high > low ? (value - low) / (high - low) : 0.5) * (to - from);
    const svg = drawn("svg", { class: "plane", viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": `${data.scales[keys[1]]} against ${data.scales[keys[0]]}` });
    for (const t of ticks(...range[0])) { const x = place(t, range[0], left + 12, W - 14); svg.append(drawn("line", { class: "grid", x1: x, x2: x, y1: 8, y2: H - bottom }), drawn("text", { x, y: H - bottom + 18, "text-anchor": "middle" }, short(t))); }
    for (const t of ticks(...range[1])) { const y = place(t, range[1], H - bottom - 10, 14); svg.append(drawn("line", { class: "grid", x1: left, x2: W - 8, y1: y, y2: y }), drawn("text", { x: left - 8, y: y + 5, "text-anchor": "end" }, short(t))); }
    svg.append(drawn("text", { x: (left + W) / 2, y: H - 6, "text-anchor": "middle" }, data.scales[keys[0]]), drawn("text", { x: 14, y: H / 2 - 20, "text-anchor": "middle", transform: `rotate(-90 14 ${H / 2 - 20})` }, data.scales[keys[1]]));
    for (const head of shown) {
      const dot = drawn("circle", { class: "dot " + (head.primary || "none"), cx: place(head.values[keys[0]], range[0], left + 12, W - 14), cy: place(head.values[keys[1]], range[1], H - bottom - 10, 14), r: 6, tabindex: 0, role: "button", "aria-label": head.name, "data-head": head.name });
      dot.append(drawn("title", {}, `${head.name}: ${roleText(head)}`));
      dot.classList.toggle("chosen", head.name === selected);
      dot.addEventListener("click", () => select(head.name));
      dot.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); select(head.name); } });
      svg.append(dot);
    }
    plane.replaceChildren(svg);
    filter();
  }

  if (plane) for (const id of ["across", "up"]) byId(id).addEventListener("change", drawPlane);

  // --- sorting ---------------------------------------------------------------------------------

  for (const button of document.querySelectorAll("table.sortable th button")) button.addEventListener("click", () => {
    const header = button.closest("th"), whole = header.closest("table"), column = header.cellIndex;
    const down = header.getAttribute("aria-sort") !== "descending" && header.classList.contains("n") || header.getAttribute("aria-sort") === "ascending";
    for (const other of whole.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const number = (text) => text === "" || Number.isNaN(Number(text)) ? null : Number(text);
    whole.tBodies[0].append(...Array.from(whole.tBodies[0].rows).sort((a, b) => {
      const x = key(a), y = key(b), m = number(x), n = number(y);
      if (m === null && n === null) return down ? y.localeCompare(x) : x.localeCompare(y);
      if (m === null || n === null) return m === null ? 1 : -1;
      return down ? n - m : m - n;
    }));
  });

  // --- light and dark, links to folded parts, the first head -----------------------------------

  followTheme();
  function unfold() {
    const target = /^#[\w-]+$/.test(location.hash) && document.querySelector(location.hash), box = target && target.closest("details");
    if (box) { box.open = true; target.scrollIntoView(); }
  }
  addEventListener("hashchange", unfold);
  unfold();
  if (data.heads.length && !select(location.hash.slice(1), "start")) select(data.first, "start");
  if (plane) drawPlane();
})();
