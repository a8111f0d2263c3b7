"""Make the gallery's figures and the moving picture of ``headscope serve`` anew.

``python tests/bench/pictures.py gallery`` runs the commands whose figures docs/gallery.md shows and
draws them into docs/figures; ``gallery FOLDER ...`` draws results that these folders hold, without
measuring. ``python tests/bench/pictures.py twins`` makes the dark twins of README's figures.
``python tests/bench/pictures.py serve`` types a sentence into the real
page in Chromium, looks at a head, switches layers off, and writes docs/figures/serve.gif; it needs
the extra serve and the package playwright. ``python tests/bench/pictures.py page`` photographs
reports/demo/report.html in light and dark. The first two need the extra demo.
"""

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from headscope.reports.reading import read_results
from headscope.show.view import view_of

HERE = Path(__file__).parents[2] / "docs" / "figures"
PAIR = ("A man is playing a guitar.", "Someone plays an instrument.")
#: Commands of the gallery; a figure is taken from the last one that writes it.
COMMANDS = (
    ("report", "demo", "--config", "ci"),
    ("rank", "demo", "--copying", "--limit", "32"),
    ("attribute", "demo", *PAIR),
)
#: Pictures of the page, and figures of runs of many minutes (docs/measurements.md).
OTHERS = {"page-dark", "page-light", "shrink", "shrink-dark", "attribute_curves"}
#: Figures of README, which have a twin for dark pages.
TWINS = ("shrink",)
DARK = (13, 17, 23)  # The background of GitHub's dark pages
# Of the browser's window; width of the moving picture
WIDTH = 1240
HEIGHT = 800
SHOWN = 930
TYPED = "The old ferry left the harbour before dawn."
SECOND = "Before sunrise the boat sailed out of the port."


def headscope(*words: str) -> list[str]:
    return [sys.executable, "-m", "headscope", *words]


def gallery(folders: list[str]) -> None:
    """Draw every figure that the gallery shows, of the results in folders, or of new ones."""
    with tempfile.TemporaryDirectory() as temporary:
        if not folders:
            for i, command in enumerate(COMMANDS):
                folders.append(str(Path(temporary) / str(i)))
                subprocess.run(headscope(*command, "--quiet", "-o", folders[-1]), check=True)
        pictures: dict[str, bytes] = {}
        for folder in folders:
            for name, result in read_results(folder).sections.items():
                pictures |= {
                    Path(file).stem: content
                    for file, content in view_of(name).files(result).items()
                    if file.endswith(".png")
                }
    names = {path.stem for path in HERE.glob("*.png")} - OTHERS
    for name in names & set(pictures):
        (HERE / f"{name}.png").write_bytes(pictures[name])
    print("drawn:", *sorted(names & set(pictures)))
    if missing := names - set(pictures):
        print("no command draws:", *sorted(missing))


def twins() -> None:
    """Turn light into dark in README's figures: each colour keeps its hue."""
    for name in TWINS:
        light = np.asarray(Image.open(HERE / f"{name}.png").convert("RGB"), dtype=float) / 255
        # Lightness L becomes 1 - L (of HLS), hue and chroma stay; black becomes nearly white.
        turned = light.max(axis=2, keepdims=True) + light.min(axis=2, keepdims=True) - light
        dark = (1 - turned) * (1 - np.array(DARK) / 255) + np.array(DARK) / 255
        Image.fromarray((255 * dark).round().astype(np.uint8)).save(HERE / f"{name}-dark.png")


class Film:
    """Frames of a page, each with the pointer drawn where the mouse is."""

    def __init__(self, page) -> None:
        self.page = page
        self.frames = []
        self.lengths = []
        self.at = (WIDTH * 0.6, HEIGHT * 0.5)

    def settled(self) -> None:
        """Wait until what is shown belongs to what is typed."""
        self.page.wait_for_selector("#answers[aria-busy=false]")
        self.page.wait_for_timeout(450)  # what was faint comes back

    def take(self, milliseconds: int) -> None:
        shot = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        x, y = self.at
        arrow = [(0, 0), (0, 21), (5, 16), (9, 25), (13, 23), (9, 15), (16, 15)]
        outline = [(x + a, y + b) for a, b in arrow]
        ImageDraw.Draw(shot).polygon(outline, fill="black", outline="white")
        self.frames.append(shot.resize((SHOWN, SHOWN * HEIGHT // WIDTH), Image.Resampling.LANCZOS))
        self.lengths.append(milliseconds)

    def go(self, selector: str) -> None:
        """Move the pointer to the middle of an element, in some steps."""
        box = self.page.locator(selector).first.bounding_box()
        goal = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        (x, y) = self.at
        steps = 5
        for step in range(1, steps + 1):
            self.at = (x + (goal[0] - x) * step / steps, y + (goal[1] - y) * step / steps)
            self.page.mouse.move(*self.at)
            self.take(60)

    def click(self, selector: str) -> None:
        self.go(selector)
        self.page.mouse.click(*self.at)

    def save(self, path: Path) -> None:
        sheet = Image.new("RGB", (SHOWN, 3 * self.frames[0].height))
        for i, frame in enumerate(self.frames[:: max(1, len(self.frames) // 3)][:3]):
            sheet.paste(frame, (0, i * frame.height))
        palette = sheet.quantize(colors=128, dither=Image.Dither.NONE)
        plain = [f.quantize(palette=palette, dither=Image.Dither.NONE) for f in self.frames]
        plain[0].save(path, save_all=True, append_images=plain[1:], duration=self.lengths, loop=0)


def serve() -> None:
    """Film the page: type, look at a head, switch a layer off, read the answer."""
    from playwright.sync_api import sync_playwright

    command = headscope("serve", "demo", "--no-browser", "--quiet")
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip()
        with sync_playwright() as playwright:
            chromium = shutil.which("chromium") or shutil.which("chromium-browser")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.goto(f"{address}#a=&b=")
            film = Film(page)
            page.wait_for_selector("button.cell[aria-current=true]")
            film.take(600)
            film.click("#text-a")
            for word in TYPED.split():
                page.keyboard.type(f"{word} ")
                film.settled()
                film.take(260)
            film.take(900)
            film.click("#text-b")
            page.keyboard.type(SECOND)
            film.settled()
            film.take(2200)
            film.click("button.cell[data-head=L1H8]")
            film.take(2000)
            film.click("button.cell[data-head=L3H7]")
            film.take(1600)
            for layer in ("L0H", "L1H"):
                film.click(f"button.layer[data-heads={layer}]")
                film.settled()
                film.take(2600)
            film.save(HERE / "serve.gif")
            browser.close()
    finally:
        server.terminate()
        server.wait()
    size = (HERE / "serve.gif").stat().st_size
    print(f"serve.gif: {len(film.frames)} frames, {size / 1e6:.2f} MB")


def page() -> None:
    """Photograph the first screen of the demo's report."""
    from playwright.sync_api import sync_playwright

    report = HERE.parents[1] / "reports" / "demo" / "report.html"
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            shown = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
            shown.goto(report.as_uri())
            shown.wait_for_selector("button.cell[aria-current=true]")
            shown.screenshot(path=HERE / f"page-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("gallery", "twins", "serve", "page"))
    parser.add_argument("folders", nargs="*", help="of results, for the gallery")
    arguments = parser.parse_args()
    if arguments.what == "gallery":
        gallery(arguments.folders)
    else:
        {"twins": twins, "serve": serve, "page": page}[arguments.what]()
