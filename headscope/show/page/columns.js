"use strict";
// Two columns of sections, as even as they can be; each in the page's order.
function evenColumns() {
  const parts = document.querySelector(".parts"), sections = Array.from(parts.children), wide = matchMedia("(min-width: 1200px)");
  return function arrange() {
    const held = parts.contains(document.activeElement) ? document.activeElement : null;
    parts.replaceChildren(...sections);
    if (wide.matches && sections.length > 1 && sections.length <= 16) {
      const heights = sections.map((section) => section.offsetHeight + 36), total = heights.reduce((a, b) => a + b, 0);
      let best = Infinity, chosen = 1;
      for (let left = 1; left < 2 ** sections.length; left += 2) { // the first section stands on the left
        const off = Math.abs(total - 2 * heights.reduce((sum, height, i) => sum + (left >> i & 1 ? height : 0), 0));
        if (off < best) { best = off; chosen = left; }
      }
      parts.replaceChildren(...[1, 0].map((side) => {
        const column = element("div", undefined, "column");
        column.append(...sections.filter((_, i) => (chosen >> i & 1) === side));
        return column;
      }));
    }
    if (held) held.focus({ preventScroll: true });
  };
}
