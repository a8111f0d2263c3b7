"""Record what all commands do, or say what has changed since: see CONTRIBUTING.md."""

import argparse
import fnmatch
import json
import lzma
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from golden.cases import Case, all_cases
from golden.compare import changes, report

RECORDS = Path(__file__).parents[2] / "reports" / "golden"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m golden", description=__doc__)
    parser.add_argument("what", choices=["record", "compare", "list", "show"])
    parser.add_argument("case", nargs="?", help="the case to show")
    parser.add_argument(
        "--only", default="*", metavar="GLOB[,GLOB]", help="cases, as bert/*,*prune*"
    )
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--times", action="store_true", help="say how long each case took")
    options = parser.parse_args()
    globs = (options.case if options.case else options.only).split(",")
    cases = [case for case in all_cases() if any(fnmatch.fnmatch(case.id, glob) for glob in globs)]
    if options.what == "list":
        print("\n".join(f"{case.id}\t{' ; '.join(case.steps)}" for case in cases))
        return 0
    if options.what == "show":
        for case in cases:
            _show(case.id, read_record(case.model).get(case.name, "not recorded"))
        return 0
    return _run(cases, options)


def _run(cases: list[Case], options: argparse.Namespace) -> int:
    _settle()
    from golden.inputs import SHARED
    from golden.run import run_all, warm_up

    shared = Path(os.environ["HEADSCOPE_SHARED"])
    if not shared.is_dir():
        cases = [c for c in cases if c.model not in SHARED and "shared/" not in "".join(c.steps)]
        print(f"without the models and data of {shared}", file=sys.stderr)
    warm_up()
    start = time.monotonic()
    used = 0.0
    results: dict[str, dict[str, Any]] = defaultdict(dict)
    try:
        for case, steps, seconds in run_all(cases, options.jobs, shared):
            results[case.model][case.name] = steps
            used += seconds
            if options.times:
                print(f"{seconds:7.1f} s  {case.id}", flush=True)
    except KeyboardInterrupt:
        print("interrupted: the rest is as it was", file=sys.stderr)
    done = sum(map(len, results.values()))
    print(f"{done} of {len(cases)} cases, {used:.0f} s of CPU, {time.monotonic() - start:.0f} s")
    if options.what == "record":
        for model, new in results.items():
            _write_record(model, new)
        return 0
    records = {model: read_record(model) for model in results}
    changed = {
        f"{model}/{name}": [*changes(records[model].get(name, "not recorded"), steps)]
        for model, new in results.items()
        for name, steps in sorted(new.items())
    }
    changed = {case: some for case, some in changed.items() if some}
    print("\n".join(report(changed)))
    print(f"\n{done - len(changed)} cases are unchanged, {len(changed)} changed.")
    return int(bool(changed))


def _settle() -> None:
    """Let terminal, language, folders and threads be the same everywhere; before torch starts."""
    for name in ("WORLD_SIZE", "GITHUB_STEP_SUMMARY", "FORCE_COLOR"):
        os.environ.pop(name, None)
    fixed = {"COLUMNS": "80", "LINES": "24", "TERM": "dumb", "NO_COLOR": "1", "TZ": "UTC"}
    os.environ.update(fixed, LC_ALL="C.UTF-8", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    shared = Path(__file__).parents[3] / "shared"
    os.environ.setdefault("HEADSCOPE_SHARED", str(shared))


def read_record(model: str) -> dict[str, Any]:
    """Return the cases of a model as they were recorded."""
    path = RECORDS / f"{model}.json.xz"
    return json.loads(lzma.decompress(path.read_bytes())) if path.exists() else {}


def _write_record(model: str, new: dict[str, Any]) -> None:
    """Put new cases in the place of the old; those that the table no longer has go."""
    record = read_record(model) | new
    names = sorted(case.name for case in all_cases() if case.model == model and case.name in record)
    text = json.dumps({name: record[name] for name in names}, ensure_ascii=False)
    RECORDS.mkdir(exist_ok=True)
    data = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
    (RECORDS / f"{model}.json.xz").write_bytes(data)
    print(f"{model}: {len(names)} cases, {len(data) / 1000:.0f} kB")


def _show(case: str, value: Any, most: int = 60) -> None:
    """Print texts as they stand, and the first lines of everything else."""
    if isinstance(value, list) and value and isinstance(value[0], dict) and "command" in value[0]:
        for step in value:
            print(f"== {case}: {step['command']}")
            for name, shown in {**step, **step.get("files", {})}.items():
                if name not in ("command", "files") and shown not in ("", []):
                    _show(name, shown)
        return
    text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
    lines = text.split("\n")
    n_more = len(lines) - most
    shown_lines = [f"-- {case}", *lines[:most]]
    if n_more > 0:
        shown_lines.append(f"... {n_more} more lines")
    print("\n".join(shown_lines))


if __name__ == "__main__":
    sys.exit(main())
