"""How long ``headscope serve`` takes for an answer: ``python tests/bench/serve.py MODEL ...``.

Each question is two sentences, 20 words together, once with all heads on and once with a layer off;
medians of 50, with the JSON that goes to the browser.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from headscope.live.answers import Answers
from headscope.session.opening import open_for_tasks

TEXTS = [
    "The old ferry left the harbour before dawn in the rain.",
    "Nobody could say who had untied the boat.",
]


def main() -> None:
    for name in sys.argv[1:] or ["demo"]:
        answers = Answers(open_for_tasks(name))
        layer = [head for head in answers.heads if head.startswith("L1H")]
        for off in ([], layer):
            spent = []
            for _ in range(53):
                start = time.perf_counter()
                json.dumps(answers(TEXTS, off))
                spent.append(1000 * (time.perf_counter() - start))
            median, worst = statistics.median(spent[3:]), max(spent[3:])
            print(f"{name}: {len(off)} heads off, median {median:.0f} ms, slowest {worst:.0f} ms")


if __name__ == "__main__":
    main()
