"use strict";
// The page of `headscope serve`: sentences that are typed, heads that are switched off, and the address that holds both.
// `page` gives {data, heads, selected, select, fits, redraw, sampleIndex, showSamples}.
function startLive(page) {
  const byId = (id) => document.getElementById(id), fields = [byId("text-a"), byId("text-b")];
  const off = new Set(), show = answerBoard();
  let answer = null, pinned = null;
  const begun = fields.map((field) => field.value);

  // --- what is typed and switched --------------------------------------------------------------

  const grow = (field) => { field.style.height = "auto"; field.style.height = `${field.scrollHeight + 2}px`; };
  const headsOf = (button) => page.data.heads.map((head) => head.name).filter((name) => name.startsWith(button.dataset.heads));
  const layers = Array.from(document.querySelectorAll("button.layer"));

  function switched() {
    page.map.switchedOff(off);
    for (const button of layers) button.setAttribute("aria-pressed", String(headsOf(button).every((name) => off.has(name))));
    byId("all-on").setAttribute("aria-disabled", String(!off.size));
    page.redraw();
  }

  function flip(names) {
    const on = names.every((name) => off.has(name));
    for (const name of names) if (on) off.delete(name); else off.add(name);
    remember(true);
    switched();
    ask();
  }

  // --- the address: what is typed, the heads that are off, the selected head ---------------------

  let typing = 0; // set while keystrokes follow each other: they are one step back
  const state = () => "#" + new URLSearchParams({ head: page.selected(), off: Array.from(off).join("."), a: fields[0].value, b: fields[1].value });

  function remember(step) {
    if (state() === location.hash) return;
    if (step) history.pushState(null, "", state()); else history.replaceState(null, "", state());
  }

  function typed() {
    remember(!typing);
    clearTimeout(typing);
    typing = setTimeout(() => { typing = 0; }, 3000);
    ask();
  }

  // Takes a state from the address: at the start, of a pasted one, by back and forward.
  function recall() {
    const said = new URLSearchParams(location.hash.slice(1));
    fields.forEach((field, i) => {
      const text = said.get("ab"[i]) ?? begun[i];
      if (field.value !== text) field.value = text;
      grow(field);
    });
    off.clear();
    for (const name of (said.get("off") || "").split(".")) if (page.heads.has(name)) off.add(name);
    clearTimeout(typing);
    typing = 0;
    if (!page.select(said.get("head") || "", "address") && !page.selected()) page.select(page.data.first, "address");
    switched();
    ask();
  }

  const isState = (hash) => !hash || /(^|[#&])(head|off|a|b)=/.test(hash);

  // Sections of the page are gone to, and the address keeps the state.
  function goTo(target) {
    if (!target) return;
    target.scrollIntoView();
    if (target.tabIndex < 0) target.setAttribute("tabindex", "-1");
    target.focus({ preventScroll: true });
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (!link) return;
    event.preventDefault();
    goTo(document.getElementById(link.getAttribute("href").slice(1)));
  });
  addEventListener("hashchange", () => {
    if (location.hash === state()) return;
    if (isState(location.hash)) return recall();
    const section = location.hash.slice(1);
    history.replaceState(null, "", state());
    goTo(document.getElementById(section));
  });

  // --- what the server answers -------------------------------------------------------------------

  const ask = asker({
    question: () => ({ texts: fields.map((field) => field.value).filter((text) => text.trim()), off: Array.from(off) }),
    answered(said, asked) {
      trouble("");
      answer = { ...said, texts: asked.texts };
      const samples = said.texts.map((text) => ({ ...text, patterns: Object.fromEntries(Object.entries(text.patterns).map(([name, bytes]) => [name, bytesOf(bytes)])) }));
      answer.samples = samples;
      page.showSamples(samples);
      show(answer, pinned);
      page.redraw();
    },
    trouble,
    progress(text) {
      byId("progress").hidden = !text;
      byId("progress").textContent = text;
    },
    // Until what is shown belongs to what is typed it is faint, and busy as long as an answer is awaited.
    mark(stale, busy) {
      for (const part of [byId("answers"), document.querySelector(".desk")]) {
        part.classList.toggle("stale", stale);
        part.setAttribute("aria-busy", String(busy));
      }
    },
  });

  function trouble(text) {
    byId("trouble").textContent = text;
    byId("trouble").hidden = !text;
  }

  // --- what the page's fields and buttons do ------------------------------------------------------

  for (const field of fields) field.addEventListener("input", () => { grow(field); typed(); });
  addEventListener("resize", () => fields.forEach(grow));
  byId("ask").addEventListener("submit", (event) => event.preventDefault());
  byId("all-on").addEventListener("click", () => flip(Array.from(off)));
  byId("shown-off").addEventListener("click", () => flip(page.data.heads.filter(page.fits).map((head) => head.name)));
  for (const button of layers) button.addEventListener("click", () => flip(headsOf(button)));
  byId("pin").addEventListener("click", () => {
    pinned = pinned || !answer ? null : answer;
    byId("pin").textContent = pinned ? "Unpin" : "Pin this state";
    if (answer) show(answer, pinned);
    page.redraw();
  });
  if (innerWidth < 900) byId("numbers").open = false;

  return {
    flip,
    start: recall,
    remember: () => remember(false),
    // What the panel shows beside a head
    beside(name) {
      const sample = pinned && pinned.samples[Math.min(page.sampleIndex(), pinned.samples.length - 1)];
      return { off: off.has(name), said: answer && answer.off ? answer.said.answer : "", pinned: sample && { sample, words: headsOff(pinned.off) } };
    },
  };
}
