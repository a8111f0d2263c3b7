"use strict";
// The explained sentence with the lines of one head, which a reader may choose.
(function () {
  for (const figure of document.querySelectorAll("figure.arrows")) {
    const data = JSON.parse(figure.querySelector("script").textContent), side = { tokens: data.tokens, special: data.special };
    const choice = figure.querySelector("select"), special = figure.querySelector("input"), reading = figure.querySelector(".reading");
    const pointAt = reading.textContent, n = data.tokens.length;

    function draw() {
      const flat = data.patterns[choice.value];
      showSentence(figure.querySelector(".scroll"), { ask: side, seen: side, flat, name: choice.value, special, say: (text, note) => { reading.textContent = text || note + pointAt; } });
      describe(flat);
    }

    // What the chosen head does in words; the steps below have the numbers of one head alone.
    function describe(flat) {
      const note = figure.querySelector(".chosen-head"), other = choice.value !== data.head, links = [];
      for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) if (i !== j && !data.special[i] && !data.special[j]) links.push([flat[i * n + j], i, j]);
      links.sort((a, b) => b[0] - a[0]);
      const entropy = flat.reduce((sum, w) => w > 0 ? sum - (w / 100) * Math.log2(w / 100) : sum, 0) / n;
      const strongest = links.slice(0, 3).map(([w, i, j]) => `${data.tokens[i]} → ${data.tokens[j]} (${w}%)`).join(", ");
      note.textContent = `${choice.value}: mean entropy ${entropy.toFixed(2)} bits (evenly spread ${Math.log2(n).toFixed(2)}); strongest links between words: ${strongest}.` + (other ? ` The steps below are those of ${data.head}; for this head: ${data.command} ${choice.value}` : "");
      for (const step of document.querySelectorAll("details.step")) step.classList.toggle("other", other);
    }

    choice.addEventListener("change", draw);
    draw();
  }
})();
