"use strict";
// What every page draws with. All is built with textContent and setAttribute: no string from a model or a corpus is ever read as markup.
function element(name, text, className, attributes) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  return made;
}

// Fills in a sentence. What it quotes may run from right to left: isolated, it leaves in place what stands behind it.
function tellSentence(place, text) {
  if (place.textContent === text) return;
  place.replaceChildren(...text.split(/(“[^”]*”)/).map((part, i) => i % 2 ? element("bdi", part) : part));
}

function drawn(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  if (text !== undefined) made.textContent = text;
  return made;
}

// A number as print has it, with a true minus.
function plainly(value) {
  const text = Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 0.001) ? value.toExponential().replace(/e\+?/, "e") : String(Number(value.toPrecision(6)));
  return text.replaceAll("-", "−");
}

// Two significant digits.
function short(value) {
  if (value === undefined || value === null) return "–";
  const text = Math.abs(value) >= 100 || value === 0 ? value.toFixed(0) : Math.abs(value) >= 0.001 ? String(Number(value.toPrecision(2))) : value.toExponential(1);
  return text.replaceAll("-", "−");
}

// Round numbers between two ends, `most` at most.
function ticks(low, high, most) {
  const raw = (high - low) / most || 1, size = 10 ** Math.floor(Math.log10(raw)), by = [1, 2, 2.5, 5, 10].find((m) => m * size >= raw * 0.999) * size, all = [];
  for (let k = Math.ceil(low / by - 1e-9); k * by <= high + by / 1e6; k++) all.push(Number((k * by).toPrecision(6)) + 0);
  return all;
}

// Rows of weights from 0 to `most` as a canvas, blue on white; the style sheet turns it round in the dark.
function weightsPicture(weights, columns, most) {
  const canvas = document.createElement("canvas");
  canvas.className = "mean";
  canvas.width = columns;
  canvas.height = weights.length / columns;
  canvas.setAttribute("aria-hidden", "true");
  const context = canvas.getContext("2d"), image = context.createImageData(columns, canvas.height);
  for (let i = 0; i < weights.length; i++) {
    const t = weights[i] / most;
    image.data.set([255 - 244 * t, 255 - 168 * t, 255 - 47 * t, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

const bytesOf = (base64) => Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));

// A head's mean attention: a byte a cell.
function headPicture(base64, side) { return weightsPicture(bytesOf(base64), side, 255); }

// The switch between light and dark; without it the page follows the system.
function followTheme() {
  const root = document.documentElement, theme = document.getElementById("theme"), night = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.style.colorScheme || (night.matches ? "dark" : "light")) === "dark";
  const named = () => {
    theme.textContent = dark() ? "Light" : "Dark";
    root.classList.toggle("night", dark());
  };
  theme.addEventListener("click", () => { root.style.colorScheme = dark() ? "light" : "dark"; named(); });
  night.addEventListener("change", named);
  named();
}
followTheme();
