r"""Is the suite able to fail? Seeded faults, one at a time, and which test catches each.

    python tests/bench/mutants.py [--only ID] [--quick | --all] [--random 30 --seed 1] [--jobs 2]

Each row below is a wrong number that a user would believe: a sign, a tail, a split, a lost factor.
For each row a copy of the project gets the fault, and pytest runs the tests most likely to see it,
then those of ``_CORE``, then (``--all``) the whole suite; a test that caught a fault is run again
without it. ``--random`` draws further faults by rule from the same files, so that faults which
nobody chose are tried too: those that survive are read one by one, as many change no result.
Exit code 1: a row survives or no longer applies (the code has changed: write the row anew).
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_CORE = ("unit", "planted", "parity")
_SKIPPED = shutil.ignore_patterns(".git", ".venv", "*.egg-info", ".*_cache", ".hypothesis")
_MISSED = ("SURVIVED", "UNKNOWN")
#: The package of the folder that pytest runs in wins over one that is installed.
_PYTEST = """
import sys, pathlib, pytest, headscope
assert pathlib.Path(headscope.__file__).is_relative_to(pathlib.Path.cwd()), headscope.__file__
options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--color=no"]
sys.exit(pytest.main([*options, *sys.argv[1:]]))
"""

#: id | file in headscope/ [@ occurrence] | what breaks; then: old => new
ROWS = r"""
causal-diagonal | attention.py | a query of a decoder does not see itself
    .tril()[None, None] => .tril(-1)[None, None]
scale-of-length | attention.py | scale by the length, not the head's width
    default_scale(q.shape[-1]) if => default_scale(k.shape[-2]) if
additive-mask | attention.py | numbers of an additive mask are lost
    (bias + mask.clamp(min=lowest / 2)) => (bias)
neuron-costs | shrinking/neurons.py | the dearest neurons go first
    largest=False).indices => largest=True).indices
neuron-map | shrinking/neurons.py | what goes is not written by the rest
    torch.linalg.solve(A_remaining, target[remaining]) => W[remaining]
rotary-sine | models/layouts/steps.py | rotates one half back
    b * cos + a * sin, unturned => b * cos - a * sin, unturned
rotary-pair-sine | models/layouts/steps.py | rotates every second coordinate back
    b * cos + a * sin], dim=-1)\n    return => b * cos - a * sin], dim=-1)\n    return
pruned-bias | models/layouts/steps.py | the bias of other heads
    bias[:, list(heads)] => bias[:, : len(heads)]
gate-to-mean | models/run/intervene.py | half a gate to the mean
    z * site_gates + mean * (1 - site_gates)  # => z * site_gates + mean  #
mcnemar-sides | stats/statistics.py | p of syntactic labels is one-sided
    2.0 * one_sided => 1.0 * one_sided
binomial-tail | stats/statistics.py | more than the hits, not as many
    betainc(k, n - k + 1, np => betainc(k + 1, n - k, np
cluster-factor | stats/statistics.py | n / (n - 1) of the sentences is lost
    residual * n / (n - 1) => residual * n / n
cross-sides | analyses/classify/roles/monotonic.py | p is one-sided
    two_sided = 2 * t_p( => two_sided = t_p(
best-of-ten | analyses/classify/roles/positional.py | ten offsets, tested as one
    len(OFFSETS) * binomial_p( => binomial_p(
offset-of-both | analyses/classify/two_halves.py | B's baseline is chosen on B too
    name, (1,), offset_of_a) => name, (1,), offset)
rare-gain | analyses/classify/roles/rare.py | gain over chance, not over uniform
    (rate - uniform >= => (rate - chance >=
broad-at-20 | analyses/classify/rows.py | rows of 20 keys are left out
    for least in (2, LONG) => for least in (2, LONG + 1)
dealt-anywhere | analyses/classify/optional/role_tests.py | labels cross layers
    deal(values, has, layers, rng) => deal(values, has, one_group, rng)
effective-rank | stats/spectra.py | entropy in bits, exponent e
    xlogy(p, p).sum(-1).tolist() => xlogy(p, p).sum(-1).div(0.6931).tolist()
dims-off-by-one | stats/spectra.py | one dimension too few
    too_little.sum(-1) + 1 => too_little.sum(-1)
rank-tolerance | stats/spectra.py | the smaller side sets the rank
    max(shape) * self.eps => min(shape) * self.eps
fold-shift | stats/factors.py | LayerNorm's shift
    shift @ W + _exact( => _exact(
crossed-draws | stats/statistics.py | draws do not widen intervals
    half_width=np.hypot( => half_width=np.maximum(
collapse-axis | analyses/depth/measure.py | residual of the wrong mean
    hidden.mean(dim=-2, keepdim=True) => hidden.mean(dim=-1, keepdim=True)
flow-held-out | analyses/flow/passes.py | R^2 on the sentences of the fit
    half=1, seed=seed => half=0, seed=seed
flow-repeated | analyses/flow/passes.py | sentences of the fit are measured
    elif words in self._first_half: => elif not words:
linear-mean | analyses/linear/measure.py | errors beside zero, not beside the mean
    z_square - np.square(z_sum).sum(-1) / tokens[..., None] => z_square - 0 * tokens[..., None]
noise-size | analyses/symmetric/measure.py | noise of another size
    size_of_A = _norm(_as_seen(A, seen)) => size_of_A = _norm(A)
tango-sides | stats/tango.py | gains for losses
    -upper(lost, gained), upper => -upper(gained, lost), upper
bootstrap-n | stats/paired_change.py | small samples are not widened
    students * math.sqrt(n / (n - 1)) => students
brevity | tasks/seq2seq.py | long translations are punished
    n_reference / np.maximum(n_written, => n_written / np.maximum(n_reference,
fisher-square | tasks/gauss_newton.py | the root of the sum of squares stands for the sum
    unit_squares=matrix.diagonal() / => unit_squares=matrix.diagonal().sqrt() /
keep-the-worst | pruning/ranking.py | the head with the largest score goes first
    key=lambda unit: (rounded[unit], -unit) => key=lambda unit: (-rounded[unit], -unit)
importance-abs | pruning/methods.py | signs cancel
    exact(gradient)).abs().cpu() => exact(gradient)).cpu()
budget-end | stats/confirm.py | the last head may go, too
    if 0 < k < n} => if 0 < k <= n} | {n}
tested-examples | pruning/max_drop.py | examples that heads were chosen on are tested on
    return examples\n => return np.arange(task.n_examples)\n
sequence-end | stats/confirm.py | a refusal ends nothing
    return Stopped(confirmed, number) => continue
drop-bound | stats/confirm.py | the mean, not the bound
    above(most_lost, bound) => above(-sign * change.difference, bound)
permanent-gates | models/surgery/output_maps.py | gates of other heads
    gates[site.row, indices] => gates[site.row, : len(indices)]
half-weights | artefacts/saving.py | weights lose digits
    tensor.to(half).to(tensor.dtype)).all()) => tensor.to(half).to(tensor.dtype)).any())
onnx-segments | artefacts/runtime_files.py | a pair is run as one text
    is None else token_type_ids\n => is None else torch.zeros_like(input_ids)\n
ratio-of-times | removal/times.py | times are multiplied
    whole_seconds / cut_seconds => whole_seconds * cut_seconds
card-baseline | pruning/card.py | the pruned model's value as the whole's
    "full_model": round(full, 4) => "full_model": round(point.value.value or 0.0, 4)
alike-models | reports/conditions.py | models differ by nature
    is_of_model = kind == "model" or name in => is_of_model = name in
drop-percent | reports/bounds.py | a share of 1, not of the old value
    allowed *= abs(old or 0.0) / 100 => allowed *= 1.0 / 100
worse-or-better | reports/changes.py | old and new are swapped
    row.better * (row.value - new_row.value) => row.better * (new_row.value - row.value)
limit-of-loss | reports/limit_kinds.py | a limit of a loss is upside down
    row.better * (_value(row) - least) < 0 => _value(row) - least < 0
interference-random | reports/claims/interference.py | no random weights
"random", random.over_random, text => "random", linear.stored.difference, text
at-least-mean | reports/claims/intervals.py | the mean, not its interval
    if least <= number.low and => if least <= (number.value or 0.0) and
roles-tail | reports/claims/labelled_heads.py | p of doing worse
    random_scores >= labelled_score - tolerance => random_scores <= labelled_score + tolerance
low-rank-none | reports/claims/low_rank.py | open counts as low rank
    if outcome == HOLDS] => if outcome != FAILS]
"""

#: Start of a file's name in headscope/: the tests that are tried first.
LIKELY = {
    "": "unit cli/test_flow.py",
    "attention.py": "unit/test_attention.py",
    "analyses/": "unit/analyses planted",
    "analyses/classify/": "unit/analyses/classify planted/test_classification.py",
    "analyses/rank/": "unit/analyses/rank parity/test_rank.py",
    "analyses/spectrum/": "unit/analyses/spectrum",
    "artefacts/": "unit/artefacts parity/test_compact.py",
    "models/": "unit/models parity",
    "pruning/": "unit/pruning",
    "tasks/": "unit/pruning parity",
    "shrinking/": "unit/shrinking/test_neurons.py",
    "removal/": "unit/removal unit/pruning",
    "reports/": "unit/reports cli/test_compare.py",
    "stats/": "unit/stats unit/reports",
    "stats/spectra.py": "unit/stats unit/analyses/rank planted/test_rank.py",
}


class Mutant(namedtuple("Mutant", "name file start end new what")):
    """A fault: bytes ``start`` to ``end`` of a file of headscope/ become ``new``."""

    @property
    def faulty(self):
        text = read(self.file)
        return text[: self.start] + self.new + text[self.end :]


def rows():
    """Yield the table; raise where a row does not fit the code as it is."""
    lines = ROWS.strip().splitlines()
    for head, change in zip(lines[::2], lines[1::2], strict=True):
        name, location, fault = head.split(" | ")
        file, _, number = location.partition(" @ ")
        old, new = (code.replace(r"\n", "\n").encode() for code in change.strip().split(" => "))
        matches = [m.start() for m in re.finditer(re.escape(old), read(file))]
        if len(matches) < int(number or 1) or (len(matches) > 1 and not number):
            raise SystemExit(f"row {name} no longer applies: {len(matches)} x {old!r} in {file}")
        start = matches[int(number or 1) - 1]
        mutant = Mutant(name, file, start, start + len(old), new, fault)
        ast.parse(mutant.faulty)
        yield mutant


def read(file):
    return (ROOT / "headscope" / file).read_bytes()


# A comparison, a sum, a whole number, a `not`, the arguments of where, min for max.
_FLIPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+"}
_NAMES = {"min": "max", "minimum": "maximum", "amin": "amax", "argmin": "argmax"}
_NAMES |= {new: old for old, new in _NAMES.items()}


def faults_of(file):
    """Yield every fault that the rules make of a file."""
    text = read(file)
    starts = [0, *(m.end() for m in re.finditer(b"\n", text))]

    def span(node):
        first = starts[node.lineno - 1]
        last = starts[node.end_lineno - 1]
        return first + node.col_offset, last + node.end_col_offset

    def fault(start, stop, new):
        line = text[:start].count(b"\n") + 1
        line_start = starts[line - 1]
        to = text.index(b"\n", stop)
        shown = (
            text[line_start:start],
            b"[[",
            text[start:stop],
            b" => ",
            new,
            b"]]",
            text[stop:to],
        )
        description = b" ".join(b"".join(shown).split())
        return Mutant(f"{file}:{line}", file, start, stop, new, description.decode())

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare | ast.BinOp):
            right = node.comparators[0] if isinstance(node, ast.Compare) else node.right
            between = span(node.left)[1], span(right)[0]
            sign = text[slice(*between)].strip(b" ()\n").decode()
            if sign in _FLIPS:
                start = text.index(sign.encode(), *between)
                yield fault(start, start + len(sign), _FLIPS[sign].encode())
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield fault(*span(node), str(node.value + 1).encode())
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield fault(*span(node), text[slice(*span(node.operand))])
        elif isinstance(node, ast.Call):
            name = text[slice(*span(node.func))].rpartition(b".")[2].decode()
            name_stop = span(node.func)[1]
            if name in _NAMES:
                yield fault(name_stop - len(name), name_stop, _NAMES[name].encode())
            elif name == "where" and len(node.args) >= 2:
                first = span(node.args[-2])
                last = span(node.args[-1])
                swapped = text[slice(*last)] + text[first[1] : last[0]] + text[slice(*first)]
                yield fault(first[0], last[1], swapped)


class Tree:
    """A copy of the project in which faults are made, one at a time."""

    def __init__(self, folder):
        self.path = Path(tempfile.mkdtemp(dir=folder), "project")
        shutil.copytree(ROOT, self.path, ignore=_SKIPPED)
        shared = os.environ.get("HEADSCOPE_SHARED", str(ROOT.parent / "shared"))
        environment = {
            "PYTHONPATH": str(self.path),
            "HEADSCOPE_SHARED": shared,
            "OMP_NUM_THREADS": "1",
        }
        self.environment = {**os.environ, **environment, "HF_HUB_OFFLINE": "1"}

    def change(self, file, text):
        """Write a file of the package; what was compiled of it could be taken for the new one."""
        path = self.path / "headscope" / file
        path.write_bytes(text)
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()

    def run(self, tests, seconds):
        """Run tests until one fails; return its name, and nothing if all pass."""
        command = [sys.executable, "-c", _PYTEST, *tests]
        options = {"cwd": self.path, "env": self.environment, "timeout": seconds}
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
        except subprocess.TimeoutExpired:
            return "timeout"
        if done.returncode == 0:
            return ""
        failed = re.search(r"^(?:FAILED|ERROR) (tests/\S+\.py.*?)(?: - .*)?$", done.stdout, re.M)
        if done.returncode == 5 or (failed is None and done.returncode != 4):
            said = (done.stdout + done.stderr)[-2000:]
            raise RuntimeError(f"pytest gave {done.returncode}: {said}")
        return failed[1] if failed else "an import that fails"

    def caught_by(self, mutant, stages, seconds):
        """Return which test catches a fault."""
        prefix = max((name for name in LIKELY if mutant.file.startswith(name)), key=len)
        likely = ("unit/test_faults_caught.py", *LIKELY[prefix].split())
        for names in (likely, _CORE, ("",))[:stages]:
            tests = [str(Path("tests", t)) for t in names if (self.path / "tests" / t).exists()]
            self.change(mutant.file, mutant.faulty)
            caught = self.run(tests, seconds) if tests else ""
            self.change(mutant.file, read(mutant.file))
            if "::" in caught and self.run([caught], seconds):
                return f"{_MISSED[1]}: {caught} fails without the fault, too"
            if caught:
                return caught
        return _MISSED[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="ID", action="append", help="this row; may be repeated")
    parser.add_argument("--quick", action="store_true", help="the likely tests of each row alone")
    parser.add_argument("--all", action="store_true", help="at last the whole suite")
    parser.add_argument("--random", type=int, metavar="K", help="K faults by rule, not the rows")
    parser.add_argument("--seed", type=int, default=0, help="of the random faults")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="faults at a time")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds; more is caught")
    options = parser.parse_args()
    mutants = list(rows())
    if options.random:
        files = sorted({mutant.file for mutant in mutants})
        faults = [fault for file in files for fault in faults_of(file)]
        mutants = random.Random(options.seed).sample(faults, options.random)
    if options.only and not (mutants := [m for m in mutants if m.name in options.only]):
        parser.error(f"no row is called {' or '.join(options.only)}")
    stages = 1 if options.quick else 3 if options.all else 2
    missed = 0
    thread = threading.local()

    def attempt(mutant):
        thread.tree = getattr(thread, "tree", None) or Tree(folder)
        return mutant, thread.tree.caught_by(mutant, stages, options.timeout)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        for done in as_completed(pool.submit(attempt, mutant) for mutant in mutants):
            mutant, by = done.result()
            missed += by.startswith(_MISSED)
            print(f"{mutant.name} ({mutant.what}): {by}", flush=True)
    print(f"{len(mutants) - missed} of {len(mutants)} faults are caught")
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
