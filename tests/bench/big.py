"""Big models: time and memory of whole commands on random BERT-base and BERT-large geometries.

Run: python tests/bench/big.py [--sizes base large] [--text FILE] [--browser /usr/bin/chromium]
     [--keep FOLDER]; without a text, on the built-in sample. Models and reports go to the folder.

Each command is a process of its own, so that its peak of memory is its own. The report is opened in
a real browser: its size, and the time from a click on a head to its card. Random weights take as
long as trained ones; the tokenizer is the demo model's.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import cost, load, options, print_head, print_row

#: Layers, heads, d_model, width of the feed-forward layers.
GEOMETRIES = {"base": (12, 12, 768, 3072), "large": (24, 16, 1024, 4096)}
#: What each command is given beside the model; a report is that of the packaged quick.toml.
COMMANDS = {
    "classify": ["--limit", "512"],
    "rank": [],
    "spectrum": ["--sequences", "32"],
    "report": ["--config", "quick"],
}
_BUILD = """
import sys
import torch
from transformers import AutoTokenizer, BertConfig, BertModel
from headscope.models.load.source import demo_folder
folder, (layers, heads, width, hidden) = sys.argv[1], map(int, sys.argv[2:])
torch.manual_seed(0)
BertModel(BertConfig(num_hidden_layers=layers, num_attention_heads=heads, hidden_size=width,
    intermediate_size=hidden), add_pooling_layer=False).save_pretrained(folder)
AutoTokenizer.from_pretrained(demo_folder(), model_max_length=512).save_pretrained(folder)
"""
_HEADS = "[...document.querySelectorAll('button.cell[data-head]')].map(c => c.dataset.head)"
_CLICK = """name => new Promise(done => {
    const cell = document.querySelector(`button.cell[data-head=${name}]`);
    const start = performance.now();
    cell.click();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
})"""


def clicks(page_file, browser_path, picture):
    """Milliseconds from a click on a head to its card, drawn; and a picture of the map."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(page_file.as_uri())
        page.locator("button.cell").first.scroll_into_view_if_needed()
        page.screenshot(path=picture)
        names = page.evaluate(_HEADS)
        times = []
        for name in names[:: max(1, len(names) // 20)]:
            times.append(page.evaluate(_CLICK, name))
            assert page.locator("dialog#card").is_visible()
            page.keyboard.press("Escape")
        browser.close()
    return times


def main():
    chosen = {"sizes": list(GEOMETRIES), "browser": "/usr/bin/chromium"}
    settings = options(__doc__, text="", keep="", **chosen)
    print(f"{os.cpu_count()} cores, load {load()} at the start\n")
    print_head(("geometry", "command", "seconds", "processor seconds", "peak MiB"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(settings.keep or temporary)
        notes = []
        for size in settings.sizes:
            geometry = "{} x {}".format(*GEOMETRIES[size])
            model = str(folder / size)
            numbers = map(str, GEOMETRIES[size])
            subprocess.run([sys.executable, "-c", _BUILD, model, *numbers], check=True)
            for command, more in COMMANDS.items():
                reads = settings.text and command not in ("rank", "report")
                words = [
                    "headscope",
                    command,
                    model,
                    *more,
                    "-o",
                    str(folder / f"{size}-{command}"),
                ]
                if reads:
                    words += ["--text", settings.text]
                costs = cost(["-m", *words])
                figures = f"{costs.wall:.0f}", f"{costs.cpu:.0f}", f"{costs.peak:,.0f}"
                print_row((geometry, command, *figures))
            page = folder / f"{size}-report" / "report.html"
            note = f"{geometry}: report.html {page.stat().st_size / 2**20:.2f} MiB"
            if Path(settings.browser).exists():
                times = clicks(page, settings.browser, folder / f"{size}-map.png")
                median = f"{statistics.median(times):.0f} ms of a click (median of {len(times)})"
                note += f"; a card within {median}, {max(times):.0f} ms at most"
            notes.append(note)
    print("", *notes, sep="\n")


if __name__ == "__main__":
    main()
