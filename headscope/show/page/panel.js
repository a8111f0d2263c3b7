"use strict";
// The panel of the selected head. Its parts are made once and then filled in: what has the focus keeps it, what is
// unfolded stays open, and the panel stays where it was scrolled to. `flip` switches a head off; a page that is not live has none.
function headPanel(data, { select, step, flip }) {
  const panel = document.getElementById("panel");
  const button = (text, label, act, kind = "plain") => {
    const made = element("button", text, kind, { type: "button" });
    if (label) made.setAttribute("aria-label", label);
    made.addEventListener("click", act);
    return made;
  };
  let shown = ""; // the head's name

  // The title, with what one can do
  const title = element("div", undefined, "panel-head"), name = element("h3"), tag = element("span");
  const turn = flip && button("", "", () => flip([shown]), "plain turn");
  const sheet = button("More", "", () => {
    const open = panel.classList.toggle("open");
    sheet.setAttribute("aria-expanded", String(open));
    sheet.textContent = open ? "Less" : "More";
  }, "plain sheet");
  sheet.setAttribute("aria-expanded", "false");
  title.append(name, tag, ...(turn ? [turn] : []), button("←", "Previous head", () => step(-1)), button("→", "Next head", () => step(1)), sheet);

  // What it does: in words, in pictures, and which heads are like it
  const answer = element("p", undefined, "answer soft"), sentence = element("p", undefined, "plainly");
  const figures = element("div", undefined, "pictures");
  const pictures = [0, 1, 2].map(() => { // its mean, on the sentence, as it was pinned
    const figure = element("figure");
    figure.append(element("figcaption"));
    figures.append(figure);
    return figure;
  });
  const alike = element("p", "Most alike on this sentence: ", "soft alike");
  const near = [0, 1, 2].map(() => {
    const other = button("", "", () => select(other.textContent)), share = element("span");
    alike.append(other, share);
    return [other, share];
  });

  // Its numbers
  const three = element("dl", undefined, "three"), more = element("details", undefined, "more"), numbers = element("div");
  more.append(element("summary", "All numbers of this head"), numbers);
  panel.replaceChildren(title, answer, sentence, figures, alike, three, more);

  function picture(figure, made, caption) {
    figure.hidden = !made;
    for (const old of figure.querySelectorAll("canvas, svg")) old.remove();
    if (!made) return;
    figure.prepend(made);
    figure.querySelector("figcaption").textContent = caption;
  }

  function meanPicture(head) {
    if (!head.mean) return null;
    const made = headPicture(head.mean, data.side);
    made.setAttribute("role", "img");
    made.setAttribute("aria-label", "Mean attention of " + head.name + ", queries down, keys across");
    made.removeAttribute("aria-hidden");
    return made;
  }

  function fillNumbers(head) {
    const list = element("dl", undefined, "facts"), made = [];
    for (const [caption, text] of head.facts) list.append(element("dt", data.captions[caption]), element("dd", text));
    if (head.labels.length) made.push(tableOf("Roles, and what they must beat", ["role", "what", "score", "baseline", "95% interval", "adj. p"], head.labels, 2));
    made.push(list);
    if (head.ranks.length) made.push(tableOf("Dimensions that hold 90%, and of controls of the same shape", ["matrix", "this head", ...data.controls, "effective rank", "stable rank"], head.ranks, 1));
    numbers.replaceChildren(...made);
    for (const box of numbers.querySelectorAll(".scroll")) hintAtMore(box);
  }

  // Shows a head on a sample; `pinned` is {sample, words} of an earlier state, `said` the answer of a live page.
  return function show(head, { sample, pinned, off, said }) {
    const other = shown !== head.name;
    shown = head.name;
    if (other) name.replaceChildren(...head.name.split(/(?<=:)/).flatMap((part, i) => i ? [element("wbr"), part] : [part]));
    tag.textContent = head.roles.length ? head.roles.join(", ") : head.mark ? "no role on this corpus" : "not classified";
    tag.className = "tag " + (head.primary || "none");
    if (turn) turn.textContent = off ? "Switch on" : "Switch off";
    answer.hidden = !said;
    tellSentence(answer, said || "");
    sentence.textContent = head.sentence;

    const full = Math.max(254, Math.min(460, panel.clientWidth - 34)), half = (full - 14) / 2;
    const now = patternOn(sample, head.name), before = pinned && patternOn(pinned.sample, head.name);
    // A picture in half of the width that cannot name each token gets all of it.
    const width = [now, before].some((pattern) => pattern && heatLayout(pattern, half).every > 1) ? full : half;
    figures.classList.toggle("below", width === full);
    if (other) picture(pictures[0], meanPicture(head), data.meanCaption);
    picture(pictures[1], now && heatPicture(now, width), "on the sentence below; rows ask, columns are looked at");
    picture(pictures[2], before && heatPicture(before, width), pinned ? "as it was pinned: " + pinned.words : "");

    const others = mostAlike(sample, head.name);
    alike.hidden = !others.length;
    near.forEach(([button, share], i) => {
      button.hidden = !others[i];
      button.textContent = others[i] ? others[i][0] : "";
      share.textContent = others[i] ? ` ${Math.round(100 * others[i][1])}% ` : "";
    });
    if (!other) return;
    three.replaceChildren(...head.numbers.map(([caption, text, baseline]) => {
      const cell = element("div");
      cell.append(element("dt", caption), element("dd", text), element("dd", baseline, "soft"));
      return cell;
    }));
    fillNumbers(head);
  };
}
