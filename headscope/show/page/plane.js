"use strict";
// Heads by two numbers: a dot a head. The drawing is one tab stop; arrow keys go to the next dot in their direction.
function headsPlane(data, { select, roleText }) {
  const plane = document.getElementById("plane-chart"), choices = ["across", "up"].map((id) => document.getElementById(id));
  const NEAR = 24; // Pixels from a dot within which a click means it
  let dots = [], selected = "";

  function mark(name) {
    selected = name;
    const stop = dots.find((dot) => dot.head.name === name) || dots[0];
    for (const dot of dots) {
      dot.node.classList.toggle("chosen", dot.head.name === name);
      dot.node.setAttribute("tabindex", dot === stop ? "0" : "-1");
    }
  }

  function go(from, axis, by) {
    const inOrder = [...dots].sort((a, b) => a.at[axis] - b.at[axis] || a.at[1 - axis] - b.at[1 - axis]);
    const next = inOrder[inOrder.indexOf(from) + by];
    if (!next) return;
    select(next.head.name);
    next.node.focus();
  }

  function draw() {
    const keys = choices.map((choice) => choice.value), held = plane.contains(document.activeElement);
    const W = Math.max(300, plane.clientWidth), H = Math.round(Math.min(360, Math.max(260, 0.55 * W))), left = 62, bottom = 44;
    const shown = data.heads.filter((head) => keys.every((key) => head.values[key] !== undefined));
    const range = keys.map((key) => { const v = shown.map((head) => head.values[key]); return [Math.min(...v), Math.max(...v)]; });
    const place = (value, [low, high], from, to) => from + (high > low ? (value - low) / (high - low) : 0.5) * (to - from);
    const x = (value) => place(value, range[0], left + 12, W - 14), y = (value) => place(value, range[1], H - bottom - 10, 14);
    const svg = drawn("svg", { class: "plane", viewBox: `0 0 ${W} ${H}`, width: W, height: H, role: "group", "aria-label": `${data.scales[keys[1]]} against ${data.scales[keys[0]]}` });
    for (const t of ticks(...range[0], Math.max(2, Math.floor(W / 120)))) svg.append(drawn("line", { class: "grid", x1: x(t), x2: x(t), y1: 8, y2: H - bottom }), drawn("text", { x: x(t), y: H - bottom + 18, "text-anchor": "middle" }, short(t)));
    for (const t of ticks(...range[1], 5)) svg.append(drawn("line", { class: "grid", x1: left, x2: W - 8, y1: y(t), y2: y(t) }), drawn("text", { x: left - 8, y: y(t) + 5, "text-anchor": "end" }, short(t)));
    svg.append(drawn("text", { x: (left + W) / 2, y: H - 6, "text-anchor": "middle" }, data.scales[keys[0]]), drawn("text", { x: 14, y: H / 2 - 20, "text-anchor": "middle", transform: `rotate(-90 14 ${H / 2 - 20})` }, data.scales[keys[1]]));
    dots = shown.map((head) => {
      const at = [x(head.values[keys[0]]), y(head.values[keys[1]])];
      const node = drawn("circle", { class: "dot " + (head.primary || "none"), cx: at[0], cy: at[1], r: 6, role: "button", "aria-label": head.name, "data-head": head.name });
      node.append(drawn("title", {}, `${head.name}: ${roleText(head)}`));
      const dot = { head, at, node };
      node.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, -1], ArrowDown: [1, 1] }[event.key];
        if (step) go(dot, ...step); else if (event.key === "Enter" || event.key === " ") select(head.name); else return;
        event.preventDefault();
      });
      svg.append(node);
      return dot;
    });
    // A dot is small: a click beside it means the nearest one.
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect(), scale = W / box.width;
      const point = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
      const away = (dot) => Math.hypot(dot.at[0] - point[0], dot.at[1] - point[1]);
      const nearest = dots.reduce((best, dot) => !best || away(dot) < away(best) ? dot : best, null);
      if (nearest && away(nearest) <= NEAR) select(nearest.head.name);
    });
    plane.replaceChildren(svg);
    mark(selected);
    if (held) svg.querySelector("[tabindex='0']").focus();
  }

  for (const choice of choices) choice.addEventListener("change", draw);
  return { draw, select: mark, filter(fits) { for (const dot of dots) dot.node.classList.toggle("out", !fits(dot.head)); } };
}
