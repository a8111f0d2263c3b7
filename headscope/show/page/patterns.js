"use strict";
// Patterns of heads on a sentence. A sample is a sentence with its tokens and, by the name of the head, weights in percent.

const stackOf = (name) => name.includes(":") ? name.split(":")[0] : "encoder";

// A head's pattern with what asks and what is looked at: a decoder's tokens ask, cross-attention looks at the source. A
// causal model has no source: its decoder reads the text itself.
function patternOn(sample, name) {
  const flat = sample && sample.patterns[name], stack = stackOf(name);
  const target = sample && sample.target && sample.target.tokens ? sample.target : sample;
  return flat && { flat, ask: stack === "encoder" ? sample : target, seen: stack === "decoder" ? target : sample };
}

// The heads of the same stack whose patterns share most weight with this one's: [name, share].
function mostAlike(sample, name) {
  const shown = patternOn(sample, name);
  if (!shown) return [];
  const own = shown.flat, n = shown.ask.tokens.length, shared = [];
  for (const [other, flat] of Object.entries(sample.patterns)) {
    if (other === name || stackOf(other) !== stackOf(name)) continue;
    let least = 0;
    for (let k = 0; k < own.length; k++) least += Math.min(own[k], flat[k]);
    shared.push([other, least / (100 * n)]);
  }
  return shared.sort((a, b) => b[1] - a[1]).slice(0, 3);
}

const tokenWidth = (token) => measured(token, "11px system-ui");

// How a pattern is laid out in a picture of this width: pixels for names, around, and of a cell; and which tokens are named:
// type is never smaller than 11 pixels, so where rows are lower it is only every second, or third.
function heatLayout({ ask, seen }, width) {
  const widest = Math.max(...[...ask.tokens, ...seen.tokens].map(tokenWidth));
  const edge = Math.max(18, Math.min(0.45 * width, 6 + widest)), beyond = 4;
  const cell = (width - edge - beyond) / Math.max(seen.tokens.length, ask.tokens.length);
  return { edge, beyond, cell, every: Math.ceil(11.5 / cell) };
}

// A pattern with its tokens, in pixels.
function heatPicture(pattern, width) {
  const { flat, ask, seen } = pattern, across = seen.tokens.length, down = ask.tokens.length;
  const label = tokenWidth, { edge, beyond, cell, every } = heatLayout(pattern, width);
  const svg = drawn("svg", { class: "heat", viewBox: `${-edge} ${-edge} ${across * cell + edge + beyond} ${down * cell + edge + beyond}`, role: "img", "aria-label": "Attention on the chosen sentence, queries down, keys across" });
  svg.style.width = `${across * cell + edge + beyond}px`;
  svg.append(drawn("rect", { class: "ground", width: across * cell, height: down * cell }));
  // Only a token that is wider than nearly half of the picture is cut.
  function cut(token) {
    if (label(token) <= edge - 4) return token;
    let letters = Array.from(token);
    while (letters.length > 1 && label(letters.join("") + "…") > edge - 4) letters = letters.slice(0, -1);
    return letters.join("") + "…";
  }
  ask.tokens.forEach((token, i) => i % every || svg.append(drawn("text", { x: -3, y: (i + 0.5) * cell + 4, "text-anchor": "end" }, cut(token))));
  const upright = Math.max(...seen.tokens.map(label)) < cell; // names of columns, where they are short; else they are turned round
  seen.tokens.forEach((token, i) => i % every || svg.append(upright
    ? drawn("text", { x: (i + 0.5) * cell, y: -4, "text-anchor": "middle" }, token)
    : drawn("text", { x: 0, y: 0, transform: `translate(${(i + 0.5) * cell + 4} -3) rotate(-90)` }, cut(token))));
  flat.forEach((weight, k) => {
    if (!weight) return;
    const i = Math.floor(k / across), j = k % across;
    const square = drawn("rect", { x: j * cell, y: i * cell, width: cell, height: cell, "fill-opacity": (weight / 100).toFixed(2) });
    square.append(drawn("title", {}, `${ask.tokens[i]} → ${seen.tokens[j]}: ${(weight / 100).toFixed(2)}`));
    svg.append(square);
  });
  return svg;
}
