"use strict";
// What the model answers: a sentence and its control, and below them a table of all numbers. The table is filled in, not made
// anew, so that it stays open, scrolled and focused as it was.

const headsOff = (off) => off ? `${off} ${off === 1 ? "head" : "heads"} off` : "all heads on";

function answerBoard() {
  const byId = (id) => document.getElementById(id);
  const table = byId("numbers").querySelector("table");
  const tell = (id, text) => {
    const place = byId(id);
    place.hidden = !text;
    tellSentence(place, text);
  };

  // Numbers with a true minus; texts that a model wrote stay as they are.
  const written = (text) => /^-?[\d.]+( to -?[\d.]+)?$/.test(text) ? text.replaceAll("-", "−") : text;

  // Probabilities are bars under their numbers, of random sets from the smallest to the largest.
  function drawBars(row, isProbability) {
    for (const cell of row.querySelectorAll("td.n")) {
      const ends = cell.textContent.split(" to ").map((text) => 100 * Number(text));
      const known = isProbability && ends.every(Number.isFinite) && cell.textContent !== "";
      cell.classList.toggle("share", known);
      if (!known) continue;
      cell.style.setProperty("--from", `${ends.length > 1 ? ends[0] : 0}%`);
      cell.style.setProperty("--to", `${Math.max(ends[ends.length - 1], 0.5)}%`);
    }
  }

  // Shows what the server said, beside a pinned state if there is one; with every head on one column is enough.
  return function show(shown, pinned) {
    const { answers, off, texts } = shown, random = answers.some((answer) => answer.random);
    tell("said", shown.said.answer);
    tell("control", shown.said.control);
    tell("chance", shown.said.note);
    const columns = [["", (answer) => answer.name], ["whole model", (answer) => answer.full]];
    if (off) columns.push([headsOff(off), (answer) => answer.off]);
    if (random) columns.push([`${shown.sets} random sets`, (answer) => answer.random]);
    if (pinned) {
      const before = new Map(pinned.answers.map((answer) => [answer.name, answer.off]));
      const same = String(pinned.texts) === String(texts);
      columns.push(["pinned: " + headsOff(pinned.off) + (same ? "" : ", other text"), (answer) => before.get(answer.name) || "–"]);
    }
    fillTable(table, columns.map((column) => column[0]), answers.map((answer) => columns.map((column, i) => i ? written(column[1](answer)) : column[1](answer))), 1);
    answers.forEach((answer, i) => drawBars(table.tBodies[0].rows[i], answer.unit === "probability"));
  };
}
