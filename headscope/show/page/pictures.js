"use strict";
// A head's mean attention as a canvas: a byte a cell, blue on white; the style sheet turns it round in the dark.
function headPicture(base64, side) {
  const canvas = document.createElement("canvas"), bytes = atob(base64);
  canvas.className = "mean";
  canvas.width = canvas.height = side;
  canvas.setAttribute("aria-hidden", "true");
  const context = canvas.getContext("2d"), image = context.createImageData(side, side);
  for (let i = 0; i < side * side; i++) {
    const t = bytes.charCodeAt(i) / 255;
    image.data.set([255 - 244 * t, 255 - 168 * t, 255 - 47 * t, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

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
