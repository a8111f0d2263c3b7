"use strict";
// Questions to the server, one at a time: what has changed meanwhile is asked once that one is answered. While one is open the
// server is asked, again and again, whether it still works on it; if it does not, or does not react, the question is given up
// and asked anew.
const ASKING = {
  rest: 120, // Milliseconds without a change after which is asked
  check: 4000, // Milliseconds between looks whether a question is still being answered
  again: [2000, 4000, 8000, 15000, 30000], // Milliseconds until a lost question is asked again: the first time, the second, ...
  largest: 60000, // Characters of a question
};
const STARTED_ANEW = "headscope serve was started anew, and this page belongs to its earlier run. Open the address that it printed; to keep what you typed, add to it everything from # on in the address of this page.";

// `question` returns {texts, off}; `answered` gets the server's answer and the question, `trouble` a sentence or "",
// `progress` how long the model has been working, or that it waits for a text, and `mark` whether what is shown is outdated, and whether an answer is awaited.
function asker({ question, answered, trouble, progress, mark }) {
  const token = new URLSearchParams(location.search).get("token") || "";
  let asking = false, timer = 0, losses = 0, number = 0;

  // Looks after an open question; `giveUp` ends it.
  async function look(name, begun, giveUp) {
    try {
      const response = await fetch(`asked?name=${name}`, { headers: { token }, signal: AbortSignal.timeout(ASKING.check) });
      const { asked } = await response.json();
      if (asked) progress(`The model has been working on this for ${Math.round((Date.now() - begun) / 1000)} seconds.`);
      else setTimeout(() => giveUp.abort(), 1000); // unless the answer is just arriving
    } catch {
      giveUp.abort();
    }
  }

  // One of {said}, {error}, {busy}, {stranger} and {lost}.
  async function post(asked) {
    const name = `${Date.now()}-${++number}`, giveUp = new AbortController();
    const watch = setInterval(look, ASKING.check, name, Date.now(), giveUp);
    try {
      const body = JSON.stringify({ ...asked, name });
      const response = await fetch("answer", { method: "POST", headers: { token, "Content-Type": "application/json" }, body, signal: giveUp.signal });
      if (response.status === 403) return { stranger: true };
      if (response.status === 503) return { busy: true };
      const said = await response.json();
      return said.error ? { error: said.error } : { said };
    } catch {
      return { lost: giveUp.signal.aborted ? "The server does not react" : "The server cannot be reached: it has ended, or was started anew and printed another address" };
    } finally {
      clearInterval(watch);
      progress("");
    }
  }

  async function send() {
    if (asking) return;
    const asked = question(), before = JSON.stringify(asked);
    const complain = (text) => { mark(true, false); trouble(text); };
    if (!asked.texts.length) { // no fault: an invitation
      complain("");
      return progress("Type a text to see what the heads do with it.");
    }
    if (before.length > ASKING.largest) return complain(`That is ${before.length.toLocaleString("en")} characters; 64 tokens fit, about 300 characters.`);
    asking = true;
    const reply = await post(asked);
    asking = false;
    losses = reply.lost ? losses + 1 : 0;
    if (reply.said) answered(reply.said, asked);
    if (reply.error) trouble(reply.error);
    if (reply.stranger) return complain(STARTED_ANEW);
    if (reply.lost) {
      const after = ASKING.again[Math.min(losses, ASKING.again.length) - 1];
      trouble(`${reply.lost}. Asking again in ${after / 1000} seconds.`);
      return soon(after);
    }
    if (reply.busy) soon(1000); // others are answered first
    else if (before !== JSON.stringify(question())) soon();
    else mark(!reply.said, false);
  }

  function soon(after = ASKING.rest) {
    mark(true, true);
    clearTimeout(timer);
    timer = setTimeout(send, after);
  }
  return soon;
}
