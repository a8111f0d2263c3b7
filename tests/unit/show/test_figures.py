"""What figures draw, number by number, is what the JSON of the same result says."""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from tiny_models import OTHERS, SOURCES, framed_tokenizer, tiny_bert, translator, write_pairs

import headscope
from headscope.analyses.classify.cards import mark_of
from headscope.analyses.classify.figures import role_map
from headscope.analyses.classify.scores import Confirmation
from headscope.analyses.classify.stack_words import legend, role_counts
from headscope.analyses.classify.view import VIEW
from headscope.analyses.depth.result import DepthResult
from headscope.cli.flags import style_of
from headscope.core.roles import NO_ROLE
from headscope.core.serialise import from_dict, to_json
from headscope.reports.registry import section_of
from headscope.show import figures as drawing
from headscope.show.blocks import HeadMap
from headscope.show.figures import figure_files, figures_of
from headscope.show.style import styled
from headscope.show.view import view_of
from headscope.stats.estimate import Estimate

Json = Any
Checks = Iterator[tuple[Any, Any]]
#: For figures of each command: pairs of what is drawn and what the JSON says.
TABLE: dict[tuple[str, str], Callable[[Any, Json], Checks]] = {}


def of(command: str, *names: str) -> Callable[[Any], Any]:
    def enter(function: Any) -> Any:
        TABLE.update({(command, name): function for name in names})
        return function

    return enter


def outside(axes: Any) -> Iterator[Any]:
    """Points of lines that the axes do not reach; lines across the whole panel aside."""
    low, high = np.sort([axes.get_xlim(), axes.get_ylim()], axis=1).T
    for line in axes.lines:
        if line.get_transform() is axes.transData:
            points = np.array(line.get_data(), dtype=float).T
            yield from points[((points < low - 1e-9) | (points > high + 1e-9)).any(axis=1)]


def image(axes: Any) -> np.ndarray:
    return np.ma.filled(np.ma.asarray(axes.images[0].get_array(), dtype=float), np.nan)


def lines(axes: Any) -> list[list[list[float]]]:
    return [[list(line.get_xdata()), list(line.get_ydata())] for line in axes.lines]


def has_lines(axes: Any, *wanted: Any) -> Checks:
    """Every wanted (x, y) is among the lines of the axes; None in y is a gap."""
    known = [np.array(line, dtype=float) for line in lines(axes)]
    for x, y in wanted:
        want = np.array([x, y], dtype=float)
        found = [k for k in known if k.shape == want.shape and np.allclose(k, want, equal_nan=True)]
        assert found, f"no line {want.tolist()}"
        yield found[0], want


def segments(axes: Any) -> np.ndarray:
    found = [c.get_segments() for c in axes.collections if hasattr(c, "get_segments")]
    return np.array([s for some in found for s in some if np.shape(s) == (2, 2)])


def has_ends(axes: Any, wanted: Any, column: int) -> Checks:
    """The wanted (low, high) are the ends of bars, in any order; ``column`` 0 lies, 1 stands."""
    ends = {tuple(np.round(np.sort(s[:, column]), 9)) for s in segments(axes)}
    for pair in wanted:
        assert tuple(np.round(pair, 9)) in ends, pair
        yield pair, pair


def band(axes: Any, number: int) -> np.ndarray:
    """Corners of a filled band, as a set of points."""
    return np.unique(np.round(axes.collections[number].get_paths()[0].vertices, 9), axis=0)


def grid(rows: list[Json], value: Callable[[Json], Any]) -> np.ndarray:
    made = np.full((1 + max(r["layer"] for r in rows), 1 + max(r["head"] for r in rows)), np.nan)
    for row in rows:
        made[row["layer"], row["head"]] = value(row)
    return made


#: Maps of heads: what each cell is of its head's JSON, and how many digits are written into it.
HEAT_MAPS: dict[tuple[str, str], tuple[Callable[[Json], Any], int]] = {
    ("classify", "alignment"): (lambda row: row["alignment"]["score"]["value"], 2),
    ("classify", "prefix_after"): (lambda row: row["prefix"]["after"]["gain"]["value"], 3),
    ("classify", "prefix_same"): (lambda row: row["prefix"]["same"]["gain"]["value"], 3),
    ("classify", "prefix_before"): (lambda row: row["prefix"]["before"]["gain"]["value"], 3),
    ("rank", "effective_rank"): (lambda row: row["qk"]["effective_rank"], 1),
    ("spectrum", "spectrum_map"): (lambda row: row["share_at_k"]["value"], 2),
    ("attribute", "attribute_removed"): (lambda row: 1000 * row["removed"]["value"], 0),
    ("attribute", "attribute_direct"): (lambda row: 1000 * row["direct"]["value"], 0),
    ("symmetric", "symmetric_map"): (lambda r: 1000 * (1 - r["symmetric"]["cosine"]["value"]), 1),
    ("prune", "ablation"): (lambda row: row["difference"]["value"], 3),
}


def heat(key: tuple[str, str], figure: Any, data: Json) -> Checks:
    value, digits = HEAT_MAPS[key]
    rows = data["ablation"] if key == ("prune", "ablation") else data["heads"]
    if key == ("classify", "alignment"):
        rows = [head for head in rows if head["stack"] == "cross"]
    axes = figure.axes[0]
    wanted = grid(rows, value)
    yield image(axes), wanted
    written = np.full(wanted.shape, np.nan)
    for text in axes.texts:
        column, row = map(int, text.get_position())
        written[row, column] = float(text.get_text())
    yield written, np.round(wanted, digits) + 0.0


TABLE.update({key: functools.partial(heat, key) for key in HEAT_MAPS})


def figures(command: str, result: Any, **presentation: Any) -> dict[str, Any]:
    """Draw what a command writes into its folder, without making files of it."""
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "figure_files", lambda drawn: found.update(drawn) or {})
        view_of(command).files(result, **presentation)
    return found


#: What heads of roles without a detail are marked with.
MARKS = {"punctuation": "punct", "duplicate": "dup", "monotonic": "mono", "anti_monotonic": "anti"}
MARKS |= {name: name for name in ("rare", "broad", "self", "sharp")}


@of("classify", "roles")
def _roles(figure: Any, data: Json) -> Checks:
    axes = figure.axes[0]
    marks = {tuple(map(int, t.get_position())): t.get_text() for t in axes.texts}
    rows = list(dict.fromkeys((head["stack"], head["layer"]) for head in data["heads"]))
    for head in data["heads"]:
        first = next((x for x in head["labels"] if x["role"] == head["primary"]), None)
        detail = first["detail"] if first else ""
        detail = detail.split(" ")[0] or (MARKS[head["primary"]] if first else "")
        yield marks[head["head"], rows.index((head["stack"], head["layer"]))] == detail, True
    shown = [text.get_text() for text in axes.get_legend().get_texts()]
    yield len(shown), len({head["primary"] for head in data["heads"]})


@of("classify", "causes")
def _causes(figure: Any, data: Json) -> Checks:
    left, right = figure.axes
    causes = [(head["layer"], head["cause"]) for head in data["heads"]]
    dots = sorted((round(x), y) for line in lines(left) for x, y in zip(*line, strict=True))
    yield dots, sorted((layer, cause["zero"]["value"]) for layer, cause in causes)
    *roles, _ = lines(right)  # the last is the diagonal
    pairs = sorted((x, y) for line in roles for x, y in zip(*line, strict=True))
    yield pairs, sorted((cause["noise"]["value"], cause["zero"]["value"]) for _, cause in causes)
    zeros = [cause["zero"] for _, cause in causes if cause["zero"]["low"] is not None]
    for axes in (left, right):
        yield from has_ends(axes, [[zero["low"], zero["high"]] for zero in zeros], 1)


@of("classify", "relations")
def _relations(figure: Any, data: Json) -> Checks:
    axes = figure.axes[0]
    asked: dict[str, list[Json]] = {}
    for head in data["heads"]:
        for score in filter(lambda score: score["confirmed"], head["syntactic"]):
            row = {"head": f"L{head['layer']}H{head['head']}", **score}
            asked.setdefault(f"{score['relation']} {score['direction']}", []).append(row)
    best = {
        name: max(rows, key=lambda r: (r["labelled"], r["confirmed"]["accuracy"]["value"]))
        for name, rows in asked.items()
    }
    names = [label.get_text() for label in axes.get_yticklabels()]
    yield sorted(names), sorted(f"{name}  {row['head']}" for name, row in best.items())
    for bar, name in zip(axes.patches, names, strict=True):
        found = best[name.partition("  ")[0]]["confirmed"]
        value, *ends = found["accuracy"].values()
        yield bar.get_width(), value
        yield from has_ends(axes, [ends], 0)
        marks = {round(x, 9) for line in axes.lines for x in line.get_xdata()}
        offset, *others = found["baselines"].values()
        assert {round(offset, 9), round(max(others), 9)} <= marks


@of("depth", "depth")
def _depth(figure: Any, data: Json) -> Checks:
    for curves in (data, data["control"]):
        points = list(range(len(curves["variants"]["full"])))
        yield from has_lines(figure.axes[0], *((points, y) for y in curves["variants"].values()))


@of("rank", "cumulative_qk", "cumulative_ov")
def _cumulative(figure: Any, data: Json) -> Checks:
    name = "qk" if "W_Q" in figure.get_suptitle() else "ov"
    for axes, rows in zip(figure.axes, (data["heads"], data["layers"]), strict=True):
        for row in rows:
            sigma = np.array(row[name]["singular_values"]) ** 2
            y = [0.0, *(sigma.cumsum() / sigma.sum())]
            yield from has_lines(axes, (range(len(y)), y))


@of("spectrum", "spectrum_curves")
def _spectra(figure: Any, data: Json) -> Checks:
    for axes, name in zip(figure.axes, ("curve", "curve_sq"), strict=True):
        x = range(1, data["length"] + 1)
        sources = [*data["heads"], *data["controls"].values(), data["random_weights"]]
        yield from has_lines(axes, *((x, source[name]) for source in sources if source))


@of("flow", "flow")
def _flow(figure: Any, data: Json) -> Checks:
    points = {tuple(np.round(line.get_ydata(), 9)) for line in figure.axes[0].lines}
    targets = ("whole", "directions", "token", "token_directions", "value", "gaussian", "other")
    for target in targets:
        wanted = [head["recovery"][target]["value"] for head in data["heads"]]
        drawn = tuple(np.round([value for value in wanted if value is not None], 9))
        yield drawn in points or not drawn, True


def band_of(estimate: Json) -> list[float]:
    ends = [estimate["low"], estimate["high"]]
    return 2 * [estimate["value"]] if ends[0] is None else ends


@of("prune", "curves")
def _curves(figure: Any, data: Json) -> Checks:
    axes = figure.axes[0]
    for i, curve in enumerate(data["curves"]):
        x = [point["fraction"] for point in curve["points"]]
        yield from has_lines(axes, (x, [point["value"]["value"] for point in curve["points"]]))
        ends = ((p["fraction"], band_of(p["value"])) for p in curve["points"])
        corners = [(fraction, end) for fraction, both in ends for end in both]
        yield band(axes, i), np.unique(np.round(corners, 9), axis=0)
    assert axes.lines[-1].get_ydata()[0] == data["baseline"]["value"]["value"]


@of("attribute", "attribute_heads")
def _attributed(figure: Any, data: Json) -> Checks:
    heads = sorted(data["heads"], key=lambda head: -abs(head["removed"]["value"]))
    for axes, name in zip(figure.axes, ("removed", "direct"), strict=True):
        yield [bar.get_width() for bar in axes.patches], [h[name]["value"] for h in heads]


@of("explain", "explain")
def _steps(figure: Any, data: Json) -> Checks:
    found = {m["name"]: m for step in data["steps"] for m in step["matrices"]}
    for axes, name in zip(figure.axes, ("scores", "pattern", "other direction"), strict=False):
        yield image(axes), np.array(found[name]["values"], dtype=float)
    widths = [bar.get_width() for bar in figure.axes[3].patches]
    yield widths, [100 * row[0] for row in found["heads"]["values"]]


def with_relations(result: Any) -> Any:
    """Let every head have some relations that were confirmed, a few of them labelled."""
    rng = np.random.default_rng(0)
    heads = []
    for head in result.heads:
        scores = list(head.syntactic)
        for i in rng.choice(len(scores), 3, replace=False).tolist():
            rate, *rates = rng.random(6).round(3).tolist()
            known = dict(zip(("offset", "first", "last", "uniform", "kernel"), rates, strict=True))
            accuracy = Estimate(rate, rate / 2, (1 + rate) / 2)
            strongest = max(known, key=known.__getitem__)
            confirmed = Confirmation(accuracy, rate, known, strongest, 0.01, 60)
            given = {"selected": True, "confirmed": confirmed, "labelled": rng.random() < 0.4}
            scores[i] = dataclasses.replace(scores[i], **given)
        heads.append(dataclasses.replace(head, syntactic=tuple(scores)))
    return dataclasses.replace(result, heads=tuple(heads))


@pytest.fixture(scope="module")
def made(documents: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Results of every command that draws, with all that can be asked of it."""
    base = tmp_path_factory.mktemp("figures")
    loaded = headscope.load(str(tiny_bert(base / "model")))
    path = write_pairs(base / "pairs.tsv", list(zip(SOURCES, [*OTHERS, *OTHERS], strict=False)))
    both = headscope.wrap(translator("bart"), framed_tokenizer("$A [SEP]"), name="bart")
    plain = {"validate": False}
    asked = {"limit": 30, "ablate": True, "ablate_limit": 8, "prefix_matching": True, **plain}
    few = {"methods": ["magnitude"], "repairs": ["none"], "step": 0.5, **plain}
    few |= {"limit": 8, "calibration_limit": 8}
    classified = with_relations(headscope.classify(loaded, **asked))
    found = {
        "classify": [classified, headscope.classify(both, path, **plain)],
        "symmetric": [headscope.symmetric(loaded, sentences=4, alone=True, **plain)],
        "prune": [headscope.prune(loaded, ablation=True, roles=classified, **few)],
    }
    as_they_are = ("depth", "flow", "linear", "transfer", "explain", "attribute")
    as_they_are += ("rank", "spectrum")
    known = {name: [from_dict(section_of(name).kind, documents[name])] for name in as_they_are}
    return {**found, **known}


def test_a_chart_is_drawn_on_axes_that_are_given(made):
    axes = Figure().add_subplot()
    assert made["depth"][0].plot(ax=axes) is axes.figure
    own = made["depth"][0].plot().axes[0]
    for ours, theirs in zip(axes.lines, own.lines, strict=True):
        np.testing.assert_array_equal(ours.get_xydata(), theirs.get_xydata())


def test_figures_draw_what_the_json_says(made):
    """All within their axes; those of the table number by number, others are of the same kinds."""
    compared = set()
    for command, results in made.items():
        for result in results:
            data = json.loads(to_json(result))
            for name, figure in figures(command, result).items():
                key = command, name
                for axes in figure.axes:
                    assert not list(outside(axes)), f"{key}: the axes leave out what is drawn"
                for shown, said in TABLE[key](figure, data) if key in TABLE else ():
                    compared.add(key)
                    if isinstance(said, bool) or np.array(said).dtype.kind == "U":
                        assert shown == said, key
                    else:
                        a = np.array(shown, dtype=float)
                        b = np.array(said, dtype=float)
                        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9, err_msg=str(key))
    assert compared == set(TABLE), "nothing was compared"


def test_one_count_of_heads_without_a_role(made):
    """A head whose one role is the least of all is no head without a role, wherever it is shown."""
    result = made["classify"][0]
    roles = [("duplicate",), ("self", "duplicate"), ("broad", "self"), (), (), (), (), ()]
    heads = tuple(
        dataclasses.replace(head, roles=has, labels=(), primary=(*has, "none")[0])
        for head, has in zip(result.heads, roles, strict=True)
    )
    changed = dataclasses.replace(result, heads=heads, untestable={}, causes=None, prefix=None)
    assert [head.primary for head in heads][:4] == ["duplicate", "self", "broad", "none"]
    terminal = "".join(str(part) for part in VIEW.human(changed) if not hasattr(part, "columns"))
    assert "5 have none" in " ".join(terminal.split())
    assert [mark_of(head) for head in heads].count(NO_ROLE.mark) == 5
    assert role_counts(changed)[-1][2] == 5
    assert [card.mark for card in VIEW.facts(changed, ())].count(NO_ROLE.mark) == 5
    assert list(changed.to_frame().primary).count("none") == 5
    names = [text.get_text() for text in role_map(changed).axes[0].get_legend().get_texts()]
    assert names == ["broad", "self", "duplicate-token", "no role"]
    shown = ["broad", "self", "dup = duplicate token", ". = no role"]
    assert legend(changed).split("; ") == shown


def test_a_log_axis_shows_all_of_a_collapse(documents):
    data = json.loads(json.dumps(documents["depth"]))
    data["variants"]["attention"][-2:] = [1e-10, 0.0]
    result = from_dict(DepthResult, data)
    axes = figures("depth", result, log=True)["depth"].axes[0]
    curve = next(y for _, y in lines(axes) if y[-2] == 1e-10)
    assert axes.get_ylim()[0] < curve[-2]


def test_the_same_figure_gives_the_same_bytes_and_leaves_no_setting_changed():
    def drawn() -> dict[str, bytes]:
        values = {("L0", 0): 0.1, ("L1", 0): 0.7, ("L1", 1): 0.2}
        return figure_files(dict(figures_of([HeadMap("t", "l", values, 2, "map")])))

    before = dict(mpl.rcParams)
    first = drawn()
    assert set(first) == {"map.png", "map.svg"}
    assert drawn() == first
    assert dict(mpl.rcParams) == before
    assert before["svg.hashsalt"] is None


def test_without_kinds_of_files_nothing_is_drawn():
    flags = {"figures": "none", "figure_width": None, "no_titles": False}
    blocks = [HeadMap("t", "l", {("L0", 0): 0.1}, 2, "map")]
    with styled(style_of(flags)):
        assert list(figures_of(blocks)) == []
    assert [name for name, _ in figures_of(blocks)] == ["map"]
