"use strict";
// A sentence twice, queries on the left and keys on the right: an arrow for each weight of one head.
(function () {
  for (const figure of document.querySelectorAll("figure.arrows")) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const choice = figure.querySelector("select"), special = figure.querySelector("input");
    const lines = figure.querySelector("g.weights"), asking = Array.from(figure.querySelectorAll("text.query"));
    const n = data.tokens.length;

    function draw() {
      const flat = data.patterns[choice.value], made = [];
      for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) {
        const weight = flat[i * n + j] / 100;
        if (weight < data.least || (!special.checked && (data.special[i] || data.special[j]))) continue;
        const line = drawn("line", { x1: data.left, y1: data.top + i * data.row, x2: data.right, y2: data.top + j * data.row, opacity: weight.toFixed(2), "marker-end": "url(#tip)", "data-query": i });
        line.append(drawn("title", {}, `${data.tokens[i]} → ${data.tokens[j]}: ${weight.toFixed(2)}`));
        made.push([weight, line]);
      }
      made.sort((a, b) => a[0] - b[0]); // the strongest lie on top
      lines.replaceChildren(...made.map((pair) => pair[1]));
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

    function only(query) {
      for (const line of lines.children) line.classList.toggle("out", query !== null && Number(line.dataset.query) !== query);
    }

    choice.addEventListener("change", draw);
    draw();
    special.addEventListener("change", draw);
    asking.forEach((text, i) => {
      for (const kind of ["mouseenter", "focus"]) text.addEventListener(kind, () => only(i));
      for (const kind of ["mouseleave", "blur"]) text.addEventListener(kind, () => only(null));
    });
  }
})();
