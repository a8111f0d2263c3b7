"use strict";
// Charts, drawn at the width that they have: type keeps its size, and panels go below each other where they do not fit side by side.
(function () {
  const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const LINE = 12, CHAR = 7.2; // Pixels: size of type, and width of a character.

  // Without its yellow, which neither white nor black paper shows well.
  function shade(t) {
    const at = 0.8 * t * (VIRIDIS.length - 1), i = Math.min(VIRIDIS.length - 2, Math.floor(at));
    return `rgb(${VIRIDIS[i].map((v, k) => Math.round(v + (at - i) * (VIRIDIS[i + 1][k] - v))).join(" ")})`;
  }

  const xsOf = (series) => Array.isArray(series.x) ? series.x : series.y.map((_, i) => series.x + i);
  const known = (values) => values.filter((value) => value !== null && Number.isFinite(value));

  // Where values stand between two pixels, and the ticks of that axis: their values and texts.
  function axis(kind, values, from, to, room) {
    const log = { log: Math.log2, log10: Math.log10 }[kind], f = log || ((value) => value);
    const at = known(values.map((value) => value === null ? null : f(value)));
    let low = at.reduce((a, b) => Math.min(a, b), Infinity), high = at.reduce((a, b) => Math.max(a, b), -Infinity);
    if (low === high) { low -= 0.5; high += 0.5; }
    const gap = 0.04 * (high - low), place = (value) => Number.isFinite(f(value)) ? from + (f(value) - low + gap) / (high - low + 2 * gap) * (to - from) : from; // what a logarithm has no place for lies at the edge
    const most = Math.max(2, Math.floor(Math.abs(to - from) / room));
    let marks = ticks(low, high, most);
    if (kind === "log") marks = marks.filter(Number.isInteger).map((power) => 2 ** power);
    if (kind === "log10") {
      const all = [1, 2, 5].flatMap((m) => { const powers = []; for (let p = Math.floor(low); p <= high; p++) powers.push(m * 10 ** p); return powers; });
      const inside = all.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high).sort((a, b) => a - b);
      marks = inside.length > most ? inside.filter((value) => /^1(e|$)/.test(value.toExponential().replace(/\.0+e/, "e"))) : inside;
    }
    const words = kind === "percent" ? (t) => `${Math.round(100 * t)}%` : kind === "log" ? (t) => t < 1 ? `1/${Math.round(1 / t)}` : String(t) : plainly;
    return { place, ticks: marks.map((value) => [value, words(value)]) };
  }

  const MARKS = {
    o: "M4 0A4 4 0 1 1-4 0A4 4 0 1 1 4 0", ".": "M2 0A2 2 0 1 1-2 0A2 2 0 1 1 2 0", s: "M-3.5-3.5H3.5V3.5H-3.5z", D: "M0-4.5L4.5 0L0 4.5L-4.5 0z", d: "M0-4.5L3 0L0 4.5L-3 0z",
    "^": "M0-4.5L4 3H-4z", v: "M0 4.5L4-3H-4z", "<": "M-4.5 0L3-4V4z", ">": "M4.5 0L-3-4V4z", "*": "M0-6L1.6-1.9L6-1.8L2.5.9L3.8 5.2L0 2.7L-3.8 5.2L-2.5.9L-6-1.8L-1.6-1.9z",
  };
  const levelDash = (i) => ["6 4", "2 3", "8 3 2 3"][i % 3];
  const DASHES = { "--": "6 4", ":": "2 3" };

  function mark(marker, x, y, colour) {
    const strokes = { x: "M-3.5-3.5L3.5 3.5M-3.5 3.5L3.5-3.5", P: "M-4 0H4M0-4V4" }[marker];
    return drawn("path", { d: strokes || MARKS[marker] || MARKS.o, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, ...(strokes ? { stroke: colour, "stroke-width": 2, fill: "none" } : { fill: colour }) });
  }

  function panelOf(panel, width, range, paper) {
    const bar = paper ? 13 : 20; // Pixels of a bar and the gap below it
    const bars = panel.series.find((series) => series.k === "bars"), rows = bars ? bars.x.length : 0, names = panel.names || [];
    const xs = panel.series.flatMap(xsOf), ends = panel.series.flatMap((series) => [...series.y, ...(series.e || []).flat(), ...(series.b || []).flat()]);
    const levels = panel.levels.map((level) => level[1]), turned = names.length && names.join("").length * CHAR + 12 * names.length > width - 60;
    const longest = Math.max(0, ...names.map((name) => name.length)), foot = turned ? 14 + 0.75 * CHAR * longest : 24;
    const height = bars ? bar * rows + 34 : Math.round((paper ? 150 : Math.min(300, Math.max(180, 0.62 * width))) + foot - 24), bottom = height - foot;
    const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": panel.alt });
    const frame = drawn("g", { class: "frame" }), marks = drawn("g", { class: "marks" });
    svg.append(frame, marks);
    const text = (x, y, words, anchor, more) => frame.append(drawn("text", { x, y, "text-anchor": anchor, "font-size": LINE, ...more }, words));
    const line = (x1, y1, x2, y2, more, into) => (into || frame).append(drawn("line", { x1, y1, x2, y2, ...more }));
    if (bars) {
      const left = 8 + CHAR * Math.max(...bars.x.map((name) => name.length)), across = axis(panel.xs, range || [0, ...ends, ...levels], left, width - 6, 50);
      for (const [value, words] of across.ticks) { const x = across.place(value); line(x, 2, x, bottom, { class: "grid" }); text(x, bottom + 16, words, "middle"); }
      bars.x.forEach((name, i) => {
        const y = bar * (i + 0.6), value = bars.y[i], colour = Array.isArray(bars.c) ? bars.c[i] : bars.c;
        text(left - 6, y + 4, name, "end");
        if (value === null) return;
        const [a, b] = [across.place(0), across.place(value)].sort((p, q) => p - q);
        marks.append(drawn("rect", { x: a, y: y - 0.35 * bar, width: b - a, height: 0.7 * bar, fill: colour }));
        if (bars.e && bars.e[i]) line(across.place(bars.e[i][0]), y, across.place(bars.e[i][1]), y, { stroke: "#000", "stroke-width": 1.4 }, marks);
      });
      line(across.place(0), 2, across.place(0), bottom, { class: "zero" });
      panel.levels.forEach(([, value], i) => line(across.place(value), 2, across.place(value), bottom, { class: "level", "stroke-dasharray": levelDash(i) }));
      return svg;
    }
    const up = axis(panel.ys, range || [...ends, ...levels], bottom, 4, 33), left = Math.max(10 + CHAR * Math.max(...up.ticks.map((tick) => tick[1].length)), turned ? 0.77 * CHAR * names[0].length - 16 : 0);
    const across = axis(panel.xs, names.length ? [-0.4, names.length - 0.6] : [...xs, ...panel.xlevels.map((level) => level[1])], left, width - 8, 44);
    for (const [value, words] of up.ticks) { const y = up.place(value); line(left, y, width - 4, y, { class: "grid" }); text(left - 6, y + 4, words, "end"); }
    line(left, bottom, width - 4, bottom, { class: "zero" });
    const every = names.length ? Math.ceil(22 / Math.abs(across.place(1) - across.place(0))) : 1; // turned names need 22 pixels
    for (const [value, words] of names.length ? names.map((name, i) => [i, name]) : across.ticks) {
      const x = across.place(value);
      line(x, bottom, x, bottom + 4, { class: "zero" });
      if (turned && value % every) continue;
      if (turned) text(0, 0, words, "end", { transform: `translate(${x + 4} ${bottom + 14}) rotate(-40)` });
      else text(x, bottom + 17, words, "middle");
    }
    for (const series of panel.series) {
      const x = xsOf(series), points = x.map((value, i) => [value, series.y[i], i]).filter((point) => known(point.slice(0, 2)).length === 2 && Number.isFinite(up.place(point[1])));
      const colour = (i) => series.g ? shade(series.g[i] / Math.max(1, panel.shades - 1)) : series.c;
      if (series.b) {
        const edge = (side) => points.map(([value, , i]) => `${across.place(value).toFixed(1)} ${up.place(series.b[i][side]).toFixed(1)}`);
        if (points.length) marks.append(drawn("path", { d: `M${edge(0).join("L")}L${edge(1).reverse().join("L")}z`, fill: series.c, "fill-opacity": 0.15 }));
      }
      if (series.k === "line" && points.length > 1)
        marks.append(drawn("path", { d: "M" + points.map(([value, y]) => `${across.place(value).toFixed(1)} ${up.place(y).toFixed(1)}`).join("L"), fill: "none", stroke: series.c, "stroke-width": series.w, "stroke-dasharray": DASHES[series.d] || "none" }));
      for (const [value, y, i] of points) {
        const at = across.place(value);
        if (series.e && series.e[i]) line(at, up.place(series.e[i][0]), at, up.place(series.e[i][1]), { stroke: colour(i), "stroke-width": 1.4 }, marks);
        if (series.m) marks.append(mark(series.m, at, up.place(y), colour(i)));
      }
    }
    panel.levels.forEach(([, value], i) => line(left, up.place(value), width - 4, up.place(value), { class: "level", "stroke-dasharray": levelDash(i) }));
    panel.xlevels.forEach(([, value], i) => line(across.place(value), 2, across.place(value), bottom, { class: "level", "stroke-dasharray": levelDash(i + panel.levels.length) }));
    return svg;
  }

  // What each colour, mark and dash means, once for all panels.
  function keyOf(data) {
    const seen = new Map(), key = element("ul", undefined, "key");
    const swatch = (words, ...parts) => {
      const item = element("li"), svg = drawn("svg", { width: 26, height: 12, viewBox: "0 -6 26 12", "aria-hidden": "true" }), marks = drawn("g", { class: "marks" });
      marks.append(...parts);
      svg.append(marks);
      item.append(svg, " ", words);
      seen.set(words, item);
    };
    const stroke = (colour, dash, width) => drawn("path", { d: "M0 0H26", stroke: colour, "stroke-width": width, "stroke-dasharray": dash || "none" });
    for (const panel of data.panels) for (const series of panel.series) {
      if (!series.n || seen.has(series.n) || series.g || series.k === "bars") continue;
      swatch(series.n, ...(series.k === "line" ? [stroke(series.c, DASHES[series.d], Math.min(3, series.w))] : []), ...(series.m ? [mark(series.m, 13, 0, series.c)] : []));
    }
    for (const panel of data.panels) {
      panel.levels.forEach(([name], i) => seen.has(name) || swatch(name, stroke("#4d4d4d", levelDash(i), 1.2)));
      panel.xlevels.forEach(([name], i) => seen.has(name) || swatch(name, drawn("path", { d: "M13-6V6", stroke: "#4d4d4d", "stroke-width": 1.2, "stroke-dasharray": levelDash(i + panel.levels.length) })));
    }
    if (data.groups) {
      const [caption, names] = data.groups, by = Math.ceil(names.length / 8); // of many groups some are named
      names.forEach((name, i) => i % by && i < names.length - 1 || swatch(`${caption} ${name}`, mark("s", 13, 0, shade(i / Math.max(1, names.length - 1)))));
    }
    key.append(...seen.values());
    return seen.size > 1 || data.panels.some((panel) => panel.levels.length) ? key : null;
  }

  function draw(figure, data, whole = Math.floor(figure.clientWidth), paper = false) {
    if (!whole) return;
    // Panels of many lines go below each other, where each has the whole width.
    const least = data.panels.some((panel) => panel.series.filter((series) => series.k === "line" && series.n).length > 6) ? 480 : 300;
    const beside = Math.min(data.panels.length, Math.max(1, Math.floor((whole + 20) / least))), width = Math.floor((whole - 20 * (beside - 1)) / beside);
    const bars = data.panels.every((panel) => panel.x === data.panels[0].x && panel.series.every((series) => series.k === "bars"));
    const range = (data.shared || bars) && data.panels.flatMap((panel) => [...(bars ? [0] : []), ...panel.levels.map((level) => level[1]), ...panel.series.flatMap((series) => [...series.y, ...(series.e || []).flat(), ...(series.b || []).flat()])]);
    const made = [element("figcaption", data.title, "title")], box = element("div", undefined, "panels");
    for (const panel of data.panels) {
      const part = element("div");
      part.style.width = width + "px";
      if (panel.title) part.append(element("p", panel.title, "panel-title"));
      if (panel.y) part.append(element("p", panel.y, "up"));
      part.append(panelOf({ ...panel, shades: data.groups ? data.groups[1].length : 1 }, width, range, paper));
      if (panel.x) part.append(element("p", panel.x, "across"));
      box.append(part);
    }
    const key = keyOf(data);
    figure.replaceChildren(...made, box, ...(key ? [key] : []));
  }

  const PAPER = 330; // Pixels of one of the two columns of a printed page

  for (const figure of document.querySelectorAll("figure.chart")) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    let last = 0;
    new ResizeObserver(() => { if (figure.clientWidth && figure.clientWidth !== last) { last = figure.clientWidth; draw(figure, data); } }).observe(figure);
    draw(figure, data);
    last = figure.clientWidth;
    addEventListener("beforeprint", () => draw(figure, data, figure.closest(".parts") ? PAPER : 2 * PAPER, true));
    addEventListener("afterprint", () => draw(figure, data));
  }
})();
