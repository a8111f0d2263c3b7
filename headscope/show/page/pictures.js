"use strict";
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
