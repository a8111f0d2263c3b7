"use strict";
// Puts the page together: one head is selected everywhere, roles filter the heads, a sentence is chosen.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const heads = new Map(data.heads.map((head) => [head.name, head]));
  const byId = (id) => document.getElementById(id);
  const table = byId("heads-table"), thumbs = byId("thumbs"), colours = byId("colours");
  const samples = byId("samples"), special = byId("special"), links = byId("links"), reading = byId("reading");
  const roleText = (head) => head.roles.length ? head.roles.join(", ") : head.mark ? "no role on this corpus" : "not classified";
  let selected = "", live = null;

  // --- one head, selected everywhere -----------------------------------------------------------

  const map = headsMap(heads, {
    chosen: (name) => select(name),
    clicked: (name) => { if (live && byId("flip").checked) live.flip([name]); },
    key: (name, event) => { if (live && event.key === "x") live.flip([name]); },
  });
  const showHead = byId("panel") && headPanel(data, { select, step, flip: data.live ? (names) => live.flip(names) : null });
  const plane = byId("plane-chart") && headsPlane(data, { select, roleText });

  // `from` says that the name stands in the address already.
  function select(name, from) {
    if (!heads.has(name)) return false;
    selected = name;
    map.select(name);
    if (plane) plane.select(name);
    if (table) for (const row of table.tBodies[0].rows) row.classList.toggle("chosen", row.dataset.head === name);
    for (const who of document.querySelectorAll(".who")) who.textContent = name;
    redrawHead();
    if (from === "address") return true;
    if (live) live.remember(); else history.replaceState(null, "", "#" + name);
    return true;
  }

  function step(by) {
    const names = data.heads.filter(fits).map((head) => head.name);
    if (names.length) select(names[(names.indexOf(selected) + by + names.length) % names.length]);
  }

  if (table) for (const button of table.querySelectorAll("button[data-head]")) button.addEventListener("click", () => select(button.dataset.head));
  const jump = byId("jump");
  if (jump) jump.addEventListener("change", () => {
    const match = /^\s*((?:decoder|cross):)?\s*l?\s*(\d+)\s*[h., ]\s*(\d+)\s*$/i.exec(jump.value);
    const names = match ? [`${(match[1] || "").toLowerCase()}L${Number(match[2])}H${Number(match[3])}`] : [];
    if (match && !match[1]) names.push(`decoder:${names[0]}`); // a decoder alone has no other heads
    jump.setAttribute("aria-invalid", String(jump.value !== "" && !names.some((name) => select(name))));
  });

  // --- a sentence, and pictures ----------------------------------------------------------------

  function sampleIndex() {
    const chosen = samples && samples.querySelector("input:checked");
    return chosen ? Number(chosen.value) : 0;
  }
  const shownSample = () => data.samples[sampleIndex()];

  function drawPictures() {
    const sample = thumbs && thumbs.value === "sentence" ? shownSample() : null;
    map.pictures((name) => {
      const shown = patternOn(sample, name), { mean } = heads.get(name);
      if (shown) return weightsPicture(shown.flat, shown.seen.tokens.length, 100);
      return !sample && mean ? headPicture(mean, data.side) : null;
    });
  }

  const pointAt = reading ? reading.textContent : "";

  // The panel and the lines of the sentence.
  function redrawHead() {
    if (showHead && selected) showHead(heads.get(selected), { sample: shownSample(), ...(live ? live.beside(selected) : {}) });
    const shown = patternOn(shownSample(), selected);
    if (links && shown) showSentence(links, { ...shown, name: selected, special, say: (text, note) => { reading.textContent = text || note + pointAt; } });
  }

  function redraw() {
    drawPictures();
    redrawHead();
  }

  // Sentences that a live page has typed; choices that are there already stay.
  function showSamples(typed) {
    data.samples = typed;
    const labels = Array.from(samples.querySelectorAll("label"));
    typed.forEach((sample, i) => {
      if (!labels[i]) {
        labels[i] = element("label");
        const text = element("bdi");
        labels[i].append(element("input", undefined, "", { type: "radio", name: "sample", value: String(i) }), " ", text);
        samples.append(labels[i]);
      }
      labels[i].querySelector("bdi").textContent = sample.text;
    });
    for (const label of labels.slice(typed.length)) label.remove();
    if (!samples.querySelector("input:checked")) samples.querySelector("input").checked = true;
  }

  if (samples) {
    samples.addEventListener("change", redraw);
    byId("whole-screen").addEventListener("click", () => document.fullscreenElement ? document.exitFullscreen() : samples.closest("section").requestFullscreen());
  }
  if (thumbs) thumbs.addEventListener("change", drawPictures);

  // --- filter and colours ----------------------------------------------------------------------

  const chips = Array.from(document.querySelectorAll(".chip[data-role]"));

  function fits(head) {
    const wanted = chips.filter((chip) => chip.getAttribute("aria-pressed") === "true").map((chip) => chip.dataset.role);
    return !wanted.length || wanted.some((role) => role === "none" ? head.mark && !head.roles.length : head.keys.includes(role));
  }

  function filter() {
    map.filter(fits);
    if (plane) plane.filter(fits);
    if (table) for (const row of table.tBodies[0].rows) row.hidden = !fits(heads.get(row.dataset.head));
    const count = data.heads.filter(fits).length;
    byId("count").textContent = count < data.heads.length ? `${count} of ${data.heads.length} heads` : "";
    if (live) byId("shown-off").hidden = count === data.heads.length;
  }

  for (const chip of chips) chip.addEventListener("click", () => {
    chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
    filter();
  });
  if (colours) colours.addEventListener("change", () => map.paint(colours.value, data.scales[colours.value], byId("scale")));

  // --- the page as a whole ---------------------------------------------------------------------

  const arrange = evenColumns();
  for (const sorted of document.querySelectorAll("table.sortable")) sortable(sorted);
  for (const box of document.querySelectorAll(".scroll, .strip")) if (box !== links) hintAtMore(box);

  let width = innerWidth, settled = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's bars came or went
    width = innerWidth;
    clearTimeout(settled);
    settled = setTimeout(() => {
      redrawHead();
      if (plane) drawPlane();
      arrange();
    }, 100);
  });

  function drawPlane() {
    plane.draw();
    plane.filter(fits);
  }

  // A link to something that is folded up opens it.
  function unfold() {
    const target = /^#[\w-]+$/.test(location.hash) && document.querySelector(location.hash), box = target && target.closest("details");
    if (box) { box.open = true; target.scrollIntoView(); }
  }

  if (data.live) {
    live = startLive({ data, heads, map, select, fits, redraw, sampleIndex, showSamples, selected: () => selected });
    live.start();
  } else {
    const asked = location.hash.slice(1);
    if (data.heads.length && !select(asked, "address")) select(data.first, "address");
    addEventListener("hashchange", () => { select(location.hash.slice(1), "address"); unfold(); });
    unfold();
  }
  drawPictures();
  if (plane) drawPlane();
  arrange();
})();
