"use strict";
// A sentence twice, with a line for each weight of one head. It runs across where it fits (queries above, keys below), and
// downwards where it is longer than its place is wide (queries on the left, keys on the right).
const SENTENCE = { font: 15, row: 24, high: 176, least: 0.03, most: 0.5 };
const ruler = document.createElement("canvas").getContext("2d");

// The width of a text in pixels, in the type that the style sheet gives to `.links text`, or to `.heat text`.
function measured(text, font) {
  ruler.font = font;
  return ruler.measureText(text).width;
}

const wordWidth = (token) => measured(token, `${SENTENCE.font}px ui-monospace, Menlo, Consolas, monospace`);

// The special token that takes most of a head's attention, and its mean share over the words, in percent.
function greedy({ ask, seen, flat }) {
  const n = seen.tokens.length, asking = ask.tokens.map((_, i) => i).filter((i) => !ask.special[i]);
  let best = { token: "", share: 0 };
  seen.tokens.forEach((token, j) => {
    if (!seen.special[j] || !asking.length) return;
    const share = asking.reduce((sum, i) => sum + flat[i * n + j], 0) / asking.length;
    if (share > best.share) best = { token, share };
  });
  return best;
}

// Whether a sentence is written from right to left: its words then stand so too.
const rightToLeft = (side) => 2 * side.tokens.filter((token) => /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u.test(token)).length > side.tokens.length;

// Where the words stand: their middles if the sentence runs across; else their height, and the ends of the lines.
function placed(sides, width) {
  const widths = sides.map((side) => side.tokens.map((token) => 12 + wordWidth(token)));
  const total = 8 + Math.max(...widths.map((side) => side.reduce((a, b) => a + b, 0)));
  if (total <= width) {
    const words = widths.map((side, row) => {
      const turned = rightToLeft(sides[row]), middles = [];
      side.reduce((x, w) => { middles.push(turned ? total - x - w / 2 : x + w / 2); return x + w; }, 8);
      return middles.map((x) => ({ x, y: row ? 162 : 24, anchor: "middle" }));
    });
    return { down: false, width: total, height: SENTENCE.high, words, ends: words.map((side, row) => side.map((word) => [word.x, row ? 142 : 34])) };
  }
  const [left, right] = widths.map((side) => Math.max(...side)), gap = Math.min(260, Math.max(80, width - left - right));
  const y = (i) => 18 + SENTENCE.row * i;
  const words = sides.map((side, row) => side.tokens.map((_, i) => ({ x: row ? left + gap : left, y: y(i), anchor: row ? "start" : "end" })));
  return {
    down: true, width: left + gap + right, height: y(Math.max(...sides.map((side) => side.tokens.length)) - 1) + 12, words,
    ends: words.map((side, row) => side.map((word) => [word.x + (row ? -6 : 6), word.y - 5])),
  };
}

// Draws into `box`: `ask` and `seen` are {tokens, special}, `flat` the weights in percent, row by row, `special` the checkbox for
// special tokens, `say` is told what a word attends to, and null when no word is pointed at.
function showSentence(box, spec) {
  if (!box.spec) new ResizeObserver(() => { if (box.clientWidth !== box.drawnFor) drawSentence(box); }).observe(box);
  if (spec.special && !spec.special.dataset.watched) {
    spec.special.dataset.watched = "yes";
    spec.special.addEventListener("change", () => { spec.special.dataset.chosen = "yes"; drawSentence(box); });
  }
  box.spec = spec;
  drawSentence(box);
}

function drawSentence(box) {
  const { ask, seen, flat, name, special, say } = box.spec, sides = [ask, seen], n = seen.tokens.length;
  const held = box.contains(document.activeElement) ? document.activeElement : null;
  const greed = greedy(box.spec);
  if (special && !special.dataset.chosen) special.checked = greed.share <= 100 * SENTENCE.most;
  const shows = (row, i) => !special || special.checked || !sides[row].special[i];
  box.drawnFor = box.clientWidth;
  const at = placed(sides, box.clientWidth || 600);
  const svg = drawn("svg", { class: at.down ? "links down" : "links", width: at.width, height: at.height, viewBox: `0 0 ${at.width} ${at.height}`, role: "group", "aria-label": `Attention of ${name}: a line from each word ${at.down ? "on the left to the words on the right" : "above to the words below"} that it attends to` });
  const lines = drawn("g", {}), words = [[], []], weights = [];
  for (let i = 0; i < ask.tokens.length; i++) for (let j = 0; j < n; j++) {
    const weight = flat[i * n + j] / 100;
    if (weight >= SENTENCE.least && shows(0, i) && shows(1, j)) weights.push([weight, i, j]);
  }
  weights.sort((a, b) => a[0] - b[0]); // the strongest lie on top
  const full = special && !special.checked && weights.length ? weights[weights.length - 1][0] : 1; // what is drawn darkest
  for (const [weight, i, j] of weights) {
    const [x1, y1] = at.ends[0][i], [x2, y2] = at.ends[1][j], strength = Math.min(1, weight / full);
    lines.append(drawn("line", { x1, y1, x2, y2, "stroke-opacity": Math.min(1, strength + 0.05).toFixed(2), "stroke-width": (1 + 3 * strength).toFixed(1), "data-query": i, "data-key": j }));
  }
  svg.append(lines);
  sides.forEach((side, row) => side.tokens.forEach((token, i) => {
    const word = at.words[row][i];
    const text = drawn("text", { x: word.x, y: word.y, "text-anchor": word.anchor, class: shows(row, i) ? "" : "faint", tabindex: row || i ? -1 : 0, role: "button", "data-side": row, "data-word": i }, token);
    words[row].push(text);
    svg.append(text);
  }));

  // Show the lines of one word: the first time it asks, the second it is looked at.
  function only(row, place) {
    const weight = (other) => row === 0 ? flat[place * n + other] : flat[other * n + place];
    for (const line of lines.children) line.classList.toggle("out", row !== null && Number(row === 0 ? line.dataset.query : line.dataset.key) !== place);
    for (const side of [0, 1]) words[side].forEach((word, other) => word.classList.toggle("hit", row !== null && side !== row && weight(other) >= 10));
    if (row === null) return say(null, note);
    const best = sides[1 - row].tokens.map((token, other) => [token, weight(other)]).sort((a, b) => b[1] - a[1]).slice(0, 3).filter((pair) => pair[1] > 0);
    const said = best.map(([token, share]) => `${token} (${share}%)`).join(", ");
    say(`${name}: ${sides[row].tokens[place]} ${row === 0 ? "attends to" : "is attended to by"} ${said || "nothing"}.`, note);
  }
  const left = special && !special.checked && greed.share > 100 * SENTENCE.most;
  const note = left ? `${greed.token} takes ${Math.round(greed.share)}% of the words’ attention; special tokens are left out, and what is left is drawn darker. ` : "";

  // The sentence is one tab stop; arrow keys go from word to word.
  function go(row, i) {
    const word = words[row][Math.max(0, Math.min(words[row].length - 1, i))];
    svg.querySelector("text[tabindex='0']").setAttribute("tabindex", "-1");
    word.setAttribute("tabindex", "0");
    word.focus();
  }
  const forth = sides.map((side) => !at.down && rightToLeft(side) ? -1 : 1);
  const along = at.down ? { ArrowUp: -1, ArrowDown: 1 } : { ArrowLeft: -1, ArrowRight: 1 };
  const over = at.down ? { ArrowLeft: 0, ArrowRight: 1 } : { ArrowUp: 0, ArrowDown: 1 };
  words.forEach((side, row) => side.forEach((word, i) => {
    for (const kind of ["mouseenter", "focus"]) word.addEventListener(kind, () => only(row, i));
    for (const kind of ["mouseleave", "blur"]) word.addEventListener(kind, () => only(null));
    word.addEventListener("keydown", (event) => {
      if (event.key in along) go(row, i + forth[row] * along[event.key]); else if (event.key in over) go(over[event.key], i); else return;
      event.preventDefault();
    });
  }));
  box.replaceChildren(svg);
  say(null, note);
  if (held) go(Number(held.dataset.side), Number(held.dataset.word));
}
