"use strict";
// The map of heads: a cell a head, with its picture, its mark, and the colour of its role or of a number.
// `chosen` is told which head is clicked or reached by an arrow key, `key` what other keys are pressed on it.
function headsMap(heads, { chosen, clicked, key }) {
  const cells = new Map(Array.from(document.querySelectorAll("button.cell"), (cell) => [cell.dataset.head, cell]));
  const tables = Array.from(document.querySelectorAll("table.map"));
  const places = new Map(), steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const last = [0, 0]; // row and column
  for (const cell of cells.values()) {
    const row = Number(cell.dataset.row), column = Number(cell.dataset.column);
    places.set(`${row} ${column}`, cell);
    last[0] = Math.max(last[0], row);
    last[1] = Math.max(last[1], column);
  }

  // The next cell in a direction; places of removed heads are passed over.
  function neighbour(cell, [down, right]) {
    let row = Number(cell.dataset.row) + down, column = Number(cell.dataset.column) + right;
    while (row >= 0 && row <= last[0] && column >= 0 && column <= last[1]) {
      const next = places.get(`${row} ${column}`);
      if (next) return next;
      row += down;
      column += right;
    }
    return null;
  }

  for (const [name, cell] of cells) {
    cell.addEventListener("click", () => { clicked(name); chosen(name); });
    cell.addEventListener("keydown", (event) => {
      if (!steps[event.key]) return key(name, event);
      event.preventDefault();
      const next = neighbour(cell, steps[event.key]);
      if (!next) return;
      chosen(next.dataset.head);
      next.focus();
    });
  }

  // Marks stand in the cells wherever they fit, in smaller letters if need be. Where a role's does not, it is cut to its first
  // letters, which the legend explains; numbers are never cut.
  function fitMarks() {
    const cut = new Map(), known = new Set(Array.from(heads.values(), (head) => head.mark));
    for (const table of tables) {
      const cell = table.querySelector("button.cell"), marks = Array.from(table.querySelectorAll(".mark"));
      if (!cell || !cell.clientWidth) continue;
      const room = cell.clientWidth, width = (text, pixels) => measured(text, `600 ${pixels}px system-ui, sans-serif`);
      const fits = (text) => width(text, 11) * 0.96 <= room;
      for (const mark of marks) {
        const full = mark.dataset.full || mark.textContent, isNumber = mark.closest(".scaled") || !/^[\p{L}]/u.test(full);
        mark.dataset.full = full;
        mark.textContent = isNumber || fits(full) ? full : initials(full, known);
        if (mark.textContent !== full && fits(mark.textContent)) cut.set(mark.textContent, full);
      }
      const shown = new Set(marks.map((mark) => mark.textContent));
      table.classList.toggle("tight", Array.from(shown).some((text) => width(text, 11.5) > room));
      table.classList.toggle("unmarked", !Array.from(shown).every(fits));
    }
    const note = document.getElementById("cut-marks");
    if (note) note.textContent = cut.size ? ` Where a mark does not fit: ${Array.from(cut, ([letters, full]) => `${letters} = ${full}`).join(", ")}.` : "";
  }
  // The fewest first letters that no other mark begins with.
  function initials(full, known) {
    const letters = Array.from(full), others = Array.from(known).filter((mark) => mark !== full).map((mark) => mark.toLowerCase());
    const least = letters.findIndex((_, i) => !others.some((mark) => mark.startsWith(letters.slice(0, i + 1).join("").toLowerCase())));
    return least < 0 ? full : letters.slice(0, least + 1).join("");
  }
  for (const table of tables) {
    // So that no cell is smaller than a finger; a wider map scrolls in the box around it.
    for (const sized of [table, table.parentElement]) sized.style.setProperty("--columns", String(table.tHead.rows[0].cells.length - 1));
    new ResizeObserver(fitMarks).observe(table);
  }

  // A number that has both signs gets two colours that meet at zero; any other runs from its least to its largest.
  function paint(name, caption, scale) {
    const values = Array.from(heads.values(), (head) => head.values[name]).filter((value) => value !== undefined);
    const low = Math.min(...values), high = Math.max(...values);
    const unit = Math.max(-low, high) < 0.1 ? 1000 : 1; // small numbers do not fit into a cell
    const signed = low < 0 && high > 0, most = signed ? Math.max(-low, high) : high, least = signed ? 0 : low;
    for (const [head, cell] of cells) {
      const value = heads.get(head).values[name], mark = cell.querySelector(".mark");
      cell.classList.toggle("scaled", name !== "role");
      cell.classList.toggle("less", signed && value < 0);
      delete mark.dataset.full;
      if (name === "role") { mark.textContent = heads.get(head).mark; continue; }
      const share = value === undefined ? 0 : most > least ? Math.abs(value - least) / (most - least) : 1;
      cell.style.setProperty("--t", Math.round(100 * share) + "%");
      mark.textContent = value === undefined ? "–" : short(unit * value);
    }
    fitMarks();
    scale.hidden = name === "role";
    scale.classList.toggle("signed", signed);
    const [from, zero, to, words] = scale.querySelectorAll("b, span");
    from.textContent = short(signed ? -most : least);
    zero.textContent = signed ? "0" : "";
    to.textContent = short(most);
    words.textContent = (caption || "") + (unit > 1 ? "; cells in thousandths" : "") + (values.length < heads.size ? "; –: not measured" : "");
  }

  return {
    paint,
    // The selected head: the map is one tab stop, and it is there.
    select(name) {
      for (const [other, cell] of cells) {
        cell.setAttribute("aria-current", String(other === name));
        cell.tabIndex = other === name ? 0 : -1;
      }
    },
    // Pictures: `draw` makes that of a head, or none.
    pictures(draw) {
      for (const [name, cell] of cells) {
        const picture = draw(name), old = cell.querySelector("canvas");
        if (old) old.remove();
        if (picture) cell.prepend(picture);
      }
    },
    filter(fits) { for (const [name, cell] of cells) cell.classList.toggle("out", !fits(heads.get(name))); },
    switchedOff(off) {
      for (const [name, cell] of cells) {
        cell.classList.toggle("off", off.has(name));
        cell.setAttribute("aria-label", `${name}: ${heads.get(name).roles.join(", ") || "no role"}${off.has(name) ? "; switched off" : ""}`);
      }
    },
  };
}
