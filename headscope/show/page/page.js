"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const heads = new Map(data.heads.map((head) => [head.name, head]));
  const cells = new Map(Array.from(document.querySelectorAll("button.cell"), (cell) => [cell.dataset.head, cell]));
  const panel = document.getElementById("panel"), table = document.getElementById("heads-table");
  const byId = (id) => document.getElementById(id);
  let selected = null;
  const live = data.live ? liveState() : null;

  function roleText(head) {
    return head.roles.length ? head.roles.join(", ") : head.mark ? "no role on this corpus" : "not classified";
  }

  // --- small pictures: mean attention of a head ------------------------------------------------

  const SIDE = data.side, thumbs = byId("thumbs");

  const picture = (head) => headPicture(head.mean, SIDE);
  const shownSample = () => data.samples[sampleIndex()];

  // A head's pattern with what asks and what is looked at: a decoder's tokens ask, cross-attention looks at the source. A
  // causal model has no source: its decoder reads the text itself.
  const stackOf = (name) => name.includes(":") ? name.split(":")[0] : "encoder";
  function grid(sample, name) {
    const flat = sample && sample.patterns[name], stack = stackOf(name);
    const target = sample && sample.target && sample.target.tokens ? sample.target : sample;
    return flat && { flat, ask: stack === "encoder" ? sample : target, seen: stack === "decoder" ? target : sample };
  }

  function drawThumbs() {
    const sample = thumbs && thumbs.value === "sentence" ? shownSample() : null;
    for (const [name, cell] of cells) {
      const head = heads.get(name), shown = grid(sample, name), old = cell.querySelector("canvas");
      if (old) old.remove();
      if (shown) cell.prepend(weightsPicture(shown.flat, shown.seen.tokens.length, 100));
      else if (!sample && head.mean) cell.prepend(picture(head));
    }
  }

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
    const sample = shownSample(), pinned = live && live.pinned && live.pinned.samples[sampleIndex()];
    if (sample && sample.patterns[head.name]) box.append(heat(sample, head.name, "on the sentence below; rows ask, columns are looked at"));
    if (pinned && pinned.patterns[head.name]) box.append(heat(pinned, head.name, "as it was pinned: " + live.pinned.words));
    return box;
  }

  // A pattern on one sentence with its tokens, in pixels, so that type is never smaller than 11: where rows are lower, only some are named.
  function heat(sample, name, caption) {
    const figure = element("figure"), { flat, ask, seen } = grid(sample, name), across = seen.tokens.length, down = ask.tokens.length;
    const width = Math.max(120, (Math.min(460, panel.clientWidth - 34) - 14) / 2), label = (token) => measured(token, "11px system-ui");
    const edge = Math.min(0.45 * width, 6 + Math.max(...[...ask.tokens, ...seen.tokens].map(label))), cell = (width - edge) / Math.max(across, down), every = Math.ceil(11.5 / cell);
    const svg = drawn("svg", { class: "heat", viewBox: `${-edge} ${-edge} ${across * cell + edge} ${down * cell + edge}`, role: "img", "aria-label": "Attention on the chosen sentence, queries down, keys across" });
    svg.append(drawn("rect", { class: "ground", width: across * cell, height: down * cell }));
    // Only a token that is wider than nearly half of the picture is cut.
    const cut = (token) => { let letters = Array.from(token); while (letters.length > 1 && label(letters.join("") + "…") > edge - 4) letters = letters.slice(0, -1); return label(token) > edge - 4 ? letters.join("") + "…" : token; };
    ask.tokens.forEach((token, i) => i % every || svg.append(drawn("text", { x: -3, y: (i + 0.5) * cell + 4, "text-anchor": "end" }, cut(token))));
    seen.tokens.forEach((token, i) => i % every || svg.append(drawn("text", { x: 0, y: 0, transform: `translate(${(i + 0.5) * cell + 4} -3) rotate(-90)` }, cut(token))));
    flat.forEach((weight, k) => {
      if (!weight) return;
      const i = Math.floor(k / across), j = k % across;
      const square = drawn("rect", { x: j * cell, y: i * cell, width: cell, height: cell, "fill-opacity": (weight / 100).toFixed(2) });
      square.append(drawn("title", {}, `${ask.tokens[i]} → ${seen.tokens[j]}: ${(weight / 100).toFixed(2)}`));
      svg.append(square);
    });
    figure.append(svg, element("figcaption", caption));
    return figure;
  }

  // The heads whose patterns on the shown sentence share most weight with this one's.
  function similar(head) {
    const sample = shownSample(), shown = grid(sample, head.name);
    if (!shown) return [];
    const own = shown.flat, n = shown.ask.tokens.length, shared = [];
    for (const [name, other] of Object.entries(sample.patterns)) {
      if (name === head.name || stackOf(name) !== stackOf(head.name)) continue;
      let least = 0;
      for (let k = 0; k < own.length; k++) least += Math.min(own[k], other[k]);
      shared.push([name, least / (100 * n)]);
    }
    return shared.sort((a, b) => b[1] - a[1]).slice(0, 3);
  }

  function similarLine(head) {
    const near = similar(head), line = element("p", near.length ? "Most alike on this sentence: " : undefined, "soft alike");
    for (const [name, share] of near) {
      const button = element("button", name, "plain", { type: "button" });
      button.addEventListener("click", () => select(name));
      line.append(button, ` ${Math.round(100 * share)}% `);
    }
    return line;
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
    if (live) {
      const out = live.off.has(head.name), flip = element("button", out ? "Switch on" : "Switch off", "plain", { type: "button" });
      flip.addEventListener("click", () => live.flip([head.name]));
      title.append(flip);
    }
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
    panel.replaceChildren(title, ...(live ? answerLine() : []), element("p", head.sentence, "plainly"), pictures(head), similarLine(head), three, more);
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
    if (from !== "start") history.replaceState(null, "", "#" + (live ? live.state() : name));
    return true;
  }

  function step(by) {
    const names = data.heads.filter(fits).map((head) => head.name);
    if (names.length) select(names[(names.indexOf(selected) + by + names.length) % names.length]);
  }

  function move(cell, event) {
    if (live && event.key === "x") return live.flip([cell.dataset.head]);
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
    cell.addEventListener("click", () => { if (live && byId("flip").checked) live.flip([name]); select(name); });
    cell.addEventListener("keydown", (event) => move(cell, event));
  }
  if (table) for (const button of table.querySelectorAll("button[data-head]")) button.addEventListener("click", () => select(button.dataset.head));
  const jump = byId("jump");
  if (jump) jump.addEventListener("change", () => {
    const match = /^\s*((?:decoder|cross):)?\s*l?\s*(\d+)\s*[h., ]\s*(\d+)\s*$/i.exec(jump.value);
    jump.setAttribute("aria-invalid", String(jump.value !== "" && !(match && select(`${(match[1] || "").toLowerCase()}L${Number(match[2])}H${Number(match[3])}`))));
  });
  if (!data.live) addEventListener("hashchange", () => select(location.hash.slice(1)));

  // --- filter and colours ----------------------------------------------------------------------

  const chips = Array.from(document.querySelectorAll(".chip[data-role]"));

  function fits(head) {
    const wanted = chips.filter((chip) => chip.getAttribute("aria-pressed") === "true").map((chip) => chip.dataset.role);
    return !wanted.length || wanted.some((role) => role === "none" ? head.mark && !head.roles.length : head.keys.includes(role));
  }

  function filter() {
    for (const [name, cell] of cells) cell.classList.toggle("out", !fits(heads.get(name)));
    for (const dot of document.querySelectorAll("#plane-chart circle")) dot.classList.toggle("out", !fits(heads.get(dot.dataset.head)));
    if (table) for (const row of table.tBodies[0].rows) row.hidden = !fits(heads.get(row.dataset.head));
    const count = data.heads.filter(fits).length;
    byId("count").textContent = count < data.heads.length ? `${count} of ${data.heads.length} heads` : "";
    if (live) byId("shown-off").hidden = count === data.heads.length;
  }

  for (const chip of chips) chip.addEventListener("click", () => {
    chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
    filter();
  });

  const valuesOf = (key) => data.heads.map((head) => head.values[key]).filter((value) => value !== undefined);
  const colours = byId("colours"), scale = byId("scale");

  // A number that has both signs gets two colours that meet at zero; any other runs from its least to its largest.
  function paint() {
    const key = colours.value, values = valuesOf(key), low = Math.min(...values), high = Math.max(...values);
    const unit = Math.max(-low, high) < 0.1 ? 1000 : 1; // small numbers do not fit into a cell
    const signed = low < 0 && high > 0, most = signed ? Math.max(-low, high) : high, least = signed ? 0 : low;
    for (const [name, cell] of cells) {
      const head = heads.get(name), value = head.values[key], mark = cell.querySelector(".mark");
      cell.classList.toggle("scaled", key !== "role");
      cell.classList.toggle("less", signed && value < 0);
      if (key === "role") { mark.textContent = head.mark; continue; }
      const share = value === undefined ? 0 : most > least ? (Math.abs(value - (signed ? 0 : least))) / (most - least) : 1;
      cell.style.setProperty("--t", Math.round(100 * share) + "%");
      mark.textContent = value === undefined ? "–" : short(unit * value);
    }
    scale.hidden = key === "role";
    scale.classList.toggle("signed", signed);
    const [from, zero, to, words] = scale.querySelectorAll("b, span");
    from.textContent = short(signed ? -most : least);
    zero.textContent = signed ? "0" : "";
    to.textContent = short(most);
    words.textContent = (data.scales[key] || "") + (unit > 1 ? "; cells in thousandths" : "") + (values.length < data.heads.length ? "; –: not measured" : "");
  }
  if (colours) colours.addEventListener("change", paint);

  // --- a sentence with the lines of the selected head ------------------------------------------

  const samples = byId("samples"), special = byId("special"), links = byId("links"), reading = byId("reading");

  function sampleIndex() { const chosen = samples && samples.querySelector("input:checked"); return chosen ? Number(chosen.value) : 0; }

  const pointAt = reading ? reading.textContent : "";

  function drawLinks() {
    const shown = grid(shownSample(), selected || "");
    if (links && shown) showSentence(links, { ...shown, name: selected, special, say: (text, note) => { reading.textContent = text || note + pointAt; } });
  }

  if (samples) {
    samples.addEventListener("change", redraw);
    byId("whole-screen").addEventListener("click", () => document.fullscreenElement ? document.exitFullscreen() : samples.closest("section").requestFullscreen());
  }
  if (thumbs) thumbs.addEventListener("change", drawThumbs);

  function redraw() {
    drawThumbs();
    if (panel && selected) fill(heads.get(selected));
    drawLinks();
  }


  // --- heads by two numbers --------------------------------------------------------------------

  const plane = byId("plane-chart");

  function drawPlane() {
    const keys = [byId("across").value, byId("up").value], W = Math.max(300, plane.clientWidth), H = Math.round(Math.min(360, Math.max(260, 0.55 * W))), left = 62, bottom = 44;
    const shown = data.heads.filter((head) => keys.every((key) => head.values[key] !== undefined));
    const range = keys.map((key) => { const v = shown.map((head) => head.values[key]); return [Math.min(...v), Math.max(...v)]; });
    const place = (value, [low, high], from, to) => from + (high > low ? (value - low) / (high - low) : 0.5) * (to - from);
    const svg = drawn("svg", { class: "plane", viewBox: `0 0 ${W} ${H}`, width: W, height: H, role: "group", "aria-label": `${data.scales[keys[1]]} against ${data.scales[keys[0]]}` });
    for (const t of ticks(...range[0], Math.max(2, Math.floor(W / 120)))) { const x = place(t, range[0], left + 12, W - 14); svg.append(drawn("line", { class: "grid", x1: x, x2: x, y1: 8, y2: H - bottom }), drawn("text", { x, y: H - bottom + 18, "text-anchor": "middle" }, short(t))); }
    for (const t of ticks(...range[1], 5)) { const y = place(t, range[1], H - bottom - 10, 14); svg.append(drawn("line", { class: "grid", x1: left, x2: W - 8, y1: y, y2: y }), drawn("text", { x: left - 8, y: y + 5, "text-anchor": "end" }, short(t))); }
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

  // --- live: sentences that are typed, heads that are switched off ------------------------------

  function liveState() {
    const state = { off: new Set(), pinned: null, answers: [], texts: [] };
    state.state = () => new URLSearchParams({ head: selected || "", off: Array.from(state.off).join("."), a: byId("text-a").value, b: byId("text-b").value }).toString();
    state.flip = (names) => {
      const on = names.every((name) => state.off.has(name));
      for (const name of names) if (on) state.off.delete(name); else state.off.add(name);
      changed();
    };
    return state;
  }

  const words = (off) => off ? `${off} ${off === 1 ? "head" : "heads"} off` : "all heads on";

  function changed() {
    for (const [name, cell] of cells) {
      cell.classList.toggle("off", live.off.has(name));
      cell.setAttribute("aria-label", `${name}: ${heads.get(name).roles.join(", ") || "no role"}${live.off.has(name) ? "; switched off" : ""}`);
    }
    for (const button of document.querySelectorAll("button.layer")) button.setAttribute("aria-pressed", String(ofLayer(button).every((name) => live.off.has(name))));
    byId("all-on").hidden = !live.off.size;
    if (selected) fill(heads.get(selected));
    ask();
  }

  const ofLayer = (button) => data.heads.filter((head) => head.name.startsWith(button.dataset.heads)).map((head) => head.name);

  // One request at a time; what has changed meanwhile is asked once that one is answered. Until what is shown belongs
  // to what is typed it is faint, and busy as long as an answer is awaited.
  let asking = false, timer = 0;
  const question = () => ({ texts: [byId("text-a").value, byId("text-b").value].filter((text) => text.trim()), off: Array.from(live.off) });

  function mark(stale, busy) {
    for (const part of [byId("answers"), document.querySelector(".desk")]) {
      part.classList.toggle("stale", stale);
      part.setAttribute("aria-busy", String(busy));
    }
  }

  function ask(after = 120) {
    mark(true, true);
    clearTimeout(timer);
    timer = setTimeout(send, after);
  }

  async function send() {
    if (asking) return;
    const asked = question(), body = JSON.stringify(asked);
    history.replaceState(null, "", "#" + live.state());
    if (!asked.texts.length) {
      mark(true, false);
      return trouble("Type a sentence to see what the heads do with it.");
    }
    let answered = false, wait = 0;
    asking = true;
    try {
      const token = new URLSearchParams(location.search).get("token") || "";
      const response = await fetch("answer", { method: "POST", headers: { token, "Content-Type": "application/json" }, body });
      const said = await response.json();
      if (response.status === 503) wait = 1000; // others are answered first
      if (said.error) trouble(said.error); else { show(said, asked.texts); answered = true; }
    } catch (error) {
      trouble("The server does not answer: it has ended, or cannot be reached.");
    } finally {
      asking = false;
      if (wait || body !== JSON.stringify(question())) ask(wait); else mark(!answered, false);
    }
  }

  function trouble(text) {
    byId("trouble").textContent = text || "";
    byId("trouble").hidden = !text;
  }

  function show(said, texts) {
    trouble("");
    const index = Math.min(sampleIndex(), said.texts.length - 1);
    data.samples = said.texts.map((text) => ({ ...text, patterns: Object.fromEntries(Object.entries(text.patterns).map(([name, bytes]) => [name, bytesOf(bytes)])) }));
    samples.replaceChildren(samples.querySelector("legend"), ...data.samples.map((sample, i) => {
      const label = element("label"), button = element("input", undefined, "", { type: "radio", name: "sample", value: String(i) });
      button.checked = i === index;
      label.append(button, " ", sample.text);
      return label;
    }));
    live.answers = said.answers;
    live.sets = said.sets;
    live.note = said.note;
    live.texts = texts;
    live.words = words(said.off);
    showAnswers();
    redraw();
  }

  // The first answer, beside the heads: on a small screen the table of all is far from the map.
  function answerLine() {
    const [first] = live.answers;
    if (!first) return [];
    const random = first.random ? `; random sets ${first.random}` : "";
    return [element("p", `${first.name}: ${first.full}` + (live.words === words(0) ? "" : `; ${live.words}: ${first.off}${random}`), "soft answer")];
  }

  // Probabilities are bars under their numbers, of random sets from the smallest to the largest.
  function drawBars(row) {
    for (const cell of row.querySelectorAll("td.n")) {
      const ends = cell.textContent.split(" to ").map((text) => 100 * Number(text));
      cell.classList.add("share");
      cell.style.setProperty("--from", `${ends.length > 1 ? ends[0] : 0}%`);
      cell.style.setProperty("--to", `${Math.max(ends[ends.length - 1], 0.5)}%`);
    }
  }

  function showAnswers() {
    const pinned = live.pinned && new Map(live.pinned.answers.map((answer) => [answer.name, answer.off]));
    const random = live.answers.some((answer) => answer.random);
    const header = ["", "whole model", live.words, ...(random ? [`${live.sets} random sets of as many heads in the same layers`] : []), ...(pinned ? ["pinned: " + live.pinned.words + (String(live.pinned.texts) === String(live.texts) ? "" : ", other text")] : [])];
    const rows = live.answers.map((answer) => [answer.name, answer.full, answer.off, ...(random ? [answer.random] : []), ...(pinned ? [pinned.get(answer.name) || "–"] : [])]);
    const note = random ? `If these heads were like any others, their value would lie outside the range of the ${live.sets} sets in 2 of ${live.sets + 1} cases.` : live.note;
    const table = tableOf("", header, rows, 1);
    live.answers.forEach((answer, i) => { if (answer.unit === "probability") drawBars(table.querySelectorAll("tbody tr")[i]); });
    byId("answers").replaceChildren(table, ...(note ? [element("p", note, "soft")] : []));
  }

  if (live) {
    for (const id of ["text-a", "text-b"]) byId(id).addEventListener("input", () => ask());
    byId("ask").addEventListener("submit", (event) => event.preventDefault());
    byId("all-on").addEventListener("click", () => { live.off.clear(); changed(); });
    byId("shown-off").addEventListener("click", () => live.flip(data.heads.filter(fits).map((head) => head.name)));
    for (const button of document.querySelectorAll("button.layer")) button.addEventListener("click", () => live.flip(ofLayer(button)));
    byId("pin").addEventListener("click", () => {
      live.pinned = live.pinned ? null : { answers: live.answers, texts: live.texts, samples: data.samples, words: live.words };
      byId("pin").textContent = live.pinned ? "Unpin" : "Pin this state";
      showAnswers();
      redraw();
    });
  }

  // --- two columns of sections, as even as they can be; each in the page's order ---------------

  const parts = document.querySelector(".parts"), sections = Array.from(parts.children), room = matchMedia("(min-width: 1200px)");

  function arrange() {
    parts.replaceChildren(...sections);
    if (!room.matches || sections.length < 2 || sections.length > 16) return;
    const heights = sections.map((section) => section.offsetHeight + 36), total = heights.reduce((a, b) => a + b, 0);
    let best = Infinity, chosen = 1;
    for (let left = 1; left < 2 ** sections.length; left += 2) { // the first section stands on the left
      const off = Math.abs(total - 2 * heights.reduce((sum, height, i) => sum + (left >> i & 1 ? height : 0), 0));
      if (off < best) { best = off; chosen = left; }
    }
    const columns = [1, 0].map((side) => { const made = element("div", undefined, "column"); made.append(...sections.filter((_, i) => (chosen >> i & 1) === side)); return made; });
    parts.replaceChildren(...columns);
  }

  let width = innerWidth, settled = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's bars came or went
    width = innerWidth;
    clearTimeout(settled);
    settled = setTimeout(() => { if (selected) fill(heads.get(selected)); if (plane) drawPlane(); arrange(); }, 100);
  });

  // --- light and dark, links to folded parts, the first head -----------------------------------

  function unfold() {
    const target = /^#[\w-]+$/.test(location.hash) && document.querySelector(location.hash), box = target && target.closest("details");
    if (box) { box.open = true; target.scrollIntoView(); }
  }
  addEventListener("hashchange", unfold);
  unfold();
  const start = new URLSearchParams(location.hash.slice(1));
  if (data.heads.length && !select(data.live ? start.get("head") : location.hash.slice(1), "start")) select(data.first, "start");
  if (live) {
    byId("text-a").value = start.get("a") ?? data.samples[0]?.text ?? "";
    byId("text-b").value = start.get("b") ?? data.samples[1]?.text ?? "";
    for (const name of (start.get("off") || "").split(".")) if (heads.has(name)) live.off.add(name);
    changed();
  }
  drawThumbs();
  if (plane) drawPlane();
  arrange();
})();
