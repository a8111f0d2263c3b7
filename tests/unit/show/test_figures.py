"""What figures draw, number by number, is what the JSON of the same result says."""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from tiny_models import OTHERS, SOURCES, framed_tokenizer, tiny_bert, translator, write_pairs

import headscope
from headscope.analyses.classify.cards import mark_of
from headscope.analyses.classify.figures import role_map
from headscope.analyses.classify.scores import Confirmation
from headscope.analyses.classify.stack_words import legend, role_counts
from headscope.analyses.classify.view import VIEW
from headscope.commands import COMMANDS
from headscope.core.roles import NO_ROLE
from headscope.core.serialise import from_dict, to_json
from headscope.show import figures as drawing
from headscope.show.blocks import HeadMap
from headscope.show.figures import figure_files, figures_of
from headscope.show.style import showing
from headscope.show.view import view_of
from headscope.stats.estimate import Estimate

Json = Any
Checks = Iterator[tuple[Any, Any]]
#: For figures of each command: pairs of what is drawn and what the JSON says.
TABLE: dict[tuple[str, str], Callable[[Any, Json], Checks]] = {}


def figure_of(command: str, *names: str) -> Callable[[Any], Any]:
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


def points(some_lines: list[list[list[float]]]) -> list[tuple[float, float]]:
    """The points (x, y) of all lines."""
    pairs: list[tuple[float, float]] = []
    for line in some_lines:
        pairs += zip(*line, strict=True)
    return pairs


def has_lines(axes: Any, *curves: Any) -> Checks:
    """Every curve (x, y) is among the lines of the axes; None in y is a gap."""
    known = [np.array(line, dtype=float) for line in lines(axes)]
    for x, y in curves:
        curve = np.array([x, y], dtype=float)
        same = [
            line
            for line in known
            if line.shape == curve.shape and np.allclose(line, curve, equal_nan=True)
        ]
        assert same, f"no line {curve.tolist()}"
        yield same[0], curve


def segments(axes: Any) -> np.ndarray:
    """All straight pieces of two points, such as the bars of intervals."""
    pieces: list[Any] = []
    for collection in axes.collections:
        if hasattr(collection, "get_segments"):
            pieces += collection.get_segments()
    return np.array([piece for piece in pieces if np.shape(piece) == (2, 2)])


def has_intervals(axes: Any, intervals: Any, column: int) -> Checks:
    """Every (low, high) is drawn as a bar, in any order; ``column`` 0 lies, 1 stands."""
    drawn = {tuple(np.round(np.sort(piece[:, column]), 9)) for piece in segments(axes)}
    for interval in intervals:
        assert tuple(np.round(interval, 9)) in drawn, interval
        yield interval, interval


def band(axes: Any, number: int) -> np.ndarray:
    """Corners of a filled band, as a set of points."""
    return np.unique(np.round(axes.collections[number].get_paths()[0].vertices, 9), axis=0)


def grid(rows: list[Json], value: Callable[[Json], Any]) -> np.ndarray:
    n_layers = 1 + max(row["layer"] for row in rows)
    n_heads = 1 + max(row["head"] for row in rows)
    values = np.full((n_layers, n_heads), np.nan)
    for row in rows:
        values[row["layer"], row["head"]] = value(row)
    return values


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
}


def heat(key: tuple[str, str], figure: Any, data: Json) -> Checks:
    value, digits = HEAT_MAPS[key]
    rows = data["heads"]
    if key == ("classify", "alignment"):
        rows = [head for head in rows if head["stack"] == "cross"]
    axes = figure.axes[0]
    expected = grid(rows, value)
    yield image(axes), expected
    written = np.full(expected.shape, np.nan)
    for text in axes.texts:
        column, row = map(int, text.get_position())
        written[row, column] = float(text.get_text().replace("\u2212", "-"))
    yield written, np.round(expected, digits) + 0.0


TABLE.update({key: functools.partial(heat, key) for key in HEAT_MAPS})


def figures(command: str, result: Any) -> dict[str, Any]:
    """Draw what a command writes into its folder, without making files of it."""
    drawn_figures: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "figure_files", lambda drawn: drawn_figures.update(drawn) or {})
        view_of(command).files(result)
    return drawn_figures


#: What heads of roles without a detail are marked with.
MARKS = {"punctuation": "punct", "duplicate": "dup", "monotonic": "mono", "anti_monotonic": "anti"}
MARKS |= {name: name for name in ("rare", "broad", "self", "sharp")}


@figure_of("classify", "roles")
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


@figure_of("classify", "causes")
def _causes(figure: Any, data: Json) -> Checks:
    by_layer, by_noise = figure.axes
    causes = [(head["layer"], head["cause"]) for head in data["heads"]]
    dots = sorted((round(x), y) for x, y in points(lines(by_layer)))
    yield dots, sorted((layer, cause["zero"]["value"]) for layer, cause in causes)
    *roles, _ = lines(by_noise)  # the last is the diagonal
    pairs = sorted(points(roles))
    yield pairs, sorted((cause["noise"]["value"], cause["zero"]["value"]) for _, cause in causes)
    zeros = [cause["zero"] for _, cause in causes if cause["zero"]["low"] is not None]
    for axes in (by_layer, by_noise):
        yield from has_intervals(axes, [[zero["low"], zero["high"]] for zero in zeros], 1)


@figure_of("classify", "relations")
def _relations(figure: Any, data: Json) -> Checks:
    axes = figure.axes[0]
    by_relation: dict[str, list[Json]] = {}
    for head in data["heads"]:
        for score in filter(lambda score: score["confirmed"], head["syntactic"]):
            row = {"head": f"L{head['layer']}H{head['head']}", **score}
            by_relation.setdefault(f"{score['relation']} {score['direction']}", []).append(row)
    best = {
        name: max(rows, key=lambda r: (r["labelled"], r["confirmed"]["accuracy"]["value"]))
        for name, rows in by_relation.items()
    }
    names = [label.get_text() for label in axes.get_yticklabels()]
    yield sorted(names), sorted(f"{name}  {row['head']}" for name, row in best.items())
    for bar, name in zip(axes.patches, names, strict=True):
        confirmed = best[name.partition("  ")[0]]["confirmed"]
        accuracy, *interval = confirmed["accuracy"].values()
        yield bar.get_width(), accuracy
        yield from has_intervals(axes, [interval], 0)
        marks = {round(x, 9) for x, _ in points(lines(axes))}
        offset, *other_baselines = confirmed["baselines"].values()
        assert {round(offset, 9), round(max(other_baselines), 9)} <= marks


@figure_of("depth", "depth")
def _depth(figure: Any, data: Json) -> Checks:
    x = list(range(len(data["variants"]["full"])))
    yield from has_lines(figure.axes[0], *((x, y) for y in data["variants"].values()))
    random = data["control"]["variants"]  # of those that show whether attention alone collapses
    yield from has_lines(figure.axes[0], (x, random["full"]), (x, random["attention"]))


@figure_of("rank", "cumulative_qk", "cumulative_ov")
def _cumulative(figure: Any, data: Json) -> Checks:
    name = "qk" if "W_Q" in figure.get_suptitle() else "ov"
    for axes, rows in zip(figure.axes, (data["heads"], data["layers"]), strict=True):
        for row in rows:
            sigma = np.array(row[name]["singular_values"]) ** 2
            y = [0.0, *(sigma.cumsum() / sigma.sum())]
            yield from has_lines(axes, (range(len(y)), y))


@figure_of("spectrum", "spectrum_curves")
def _spectra(figure: Any, data: Json) -> Checks:
    for axes, name in zip(figure.axes, ("curve", "curve_sq"), strict=True):
        x = range(1, data["length"] + 1)
        sources = [*data["heads"], *data["controls"].values(), data["random_weights"]]
        yield from has_lines(axes, *((x, source[name]) for source in sources if source))


@figure_of("flow", "flow")
def _flow(figure: Any, data: Json) -> Checks:
    panels = (
        ("whole", "directions"),
        ("token", "token_directions"),
        ("value", "gaussian", "other"),
    )
    for axes, targets in zip(figure.axes, panels, strict=True):
        curves = {tuple(np.round(line.get_ydata(), 9)) for line in axes.lines}
        for target in targets:
            values = [head["recovery"][target]["value"] for head in data["heads"]]
            known = tuple(np.round([value for value in values if value is not None], 9))
            yield known in curves or not known, True


def band_of(estimate: Json) -> list[float]:
    if estimate["low"] is None:
        return [estimate["value"], estimate["value"]]
    return [estimate["low"], estimate["high"]]


@figure_of("prune", "curves")
def _curves(figure: Any, data: Json) -> Checks:
    axes = figure.axes[0]
    for i, curve in enumerate(data["curves"]):
        x = [point["fraction"] for point in curve["points"]]
        yield from has_lines(axes, (x, [point["value"]["value"] for point in curve["points"]]))
        corners = []
        for point in curve["points"]:
            corners += [(point["fraction"], y) for y in band_of(point["value"])]
        yield band(axes, i), np.unique(np.round(corners, 9), axis=0)
    assert axes.lines[-1].get_ydata()[0] == data["baseline"]["value"]["value"]


@figure_of("attribute", "attribute_heads")
def _attributed(figure: Any, data: Json) -> Checks:
    heads = sorted(data["heads"], key=lambda head: -abs(head["removed"]["value"]))
    for axes, name in zip(figure.axes, ("removed", "direct"), strict=True):
        yield [bar.get_width() for bar in axes.patches], [h[name]["value"] for h in heads]


@figure_of("explain", "explain")
def _steps(figure: Any, data: Json) -> Checks:
    matrices = {}
    for step in data["steps"]:
        matrices |= {matrix["name"]: matrix for matrix in step["matrices"]}
    for axes, name in zip(figure.axes, ("scores", "pattern", "other direction"), strict=False):
        yield image(axes), np.array(matrices[name]["values"], dtype=float)
    widths = [bar.get_width() for bar in figure.axes[3].patches]
    yield widths, [100 * row[0] for row in matrices["heads"]["values"]]


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
            scores[i] = dataclasses.replace(
                scores[i], selected=True, confirmed=confirmed, labelled=rng.random() < 0.4
            )
        heads.append(dataclasses.replace(head, syntactic=tuple(scores)))
    return dataclasses.replace(result, heads=tuple(heads))


@pytest.fixture(scope="module")
def drawn_results(documents: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Results of every command that draws, with all that can be asked of it."""
    base = tmp_path_factory.mktemp("figures")
    loaded = headscope.load(str(tiny_bert(base / "model")))
    path = write_pairs(base / "pairs.tsv", list(zip(SOURCES, [*OTHERS, *OTHERS], strict=False)))
    seq2seq = headscope.wrap(translator("bart"), framed_tokenizer("$A [SEP]"), name="bart")
    plain = {"validate": False}
    with_causes = {"limit": 30, "ablate": True, "ablate_limit": 8, "prefix_matching": True, **plain}
    few = {"methods": ["magnitude"], "repairs": ["none"], "step": 0.5, **plain}
    few |= {"limit": 8, "calibration_limit": 8}
    classified = with_relations(headscope.classify(loaded, **with_causes))
    new = {
        "classify": [classified, headscope.classify(seq2seq, path, **plain)],
        "symmetric": [headscope.symmetric(loaded, sentences=4, **plain)],
        "prune": [headscope.prune(loaded, roles=classified, **few)],
    }
    as_they_are = ("depth", "flow", "linear", "transfer", "explain", "attribute")
    as_they_are += ("rank", "spectrum")
    known = {name: [from_dict(COMMANDS[name].result, documents[name])] for name in as_they_are}
    return {**new, **known}


def test_a_chart_is_drawn_on_axes_that_are_given(drawn_results):
    (depth,) = drawn_results["depth"]
    axes = Figure().add_subplot()
    assert depth.plot(ax=axes) is axes.figure
    by_itself = depth.plot().axes[0]
    for line, same_line in zip(axes.lines, by_itself.lines, strict=True):
        np.testing.assert_array_equal(line.get_xydata(), same_line.get_xydata())


def check_numbers(pairs: Checks, key: tuple[str, str]) -> None:
    """Hold what is drawn against what the JSON says: words the same, numbers to six digits."""
    n_pairs = 0
    for drawn, said in pairs:
        n_pairs += 1
        if isinstance(said, bool) or np.array(said).dtype.kind == "U":
            assert drawn == said, key
        else:
            numbers = np.array(drawn, dtype=float)
            expected = np.array(said, dtype=float)
            np.testing.assert_allclose(numbers, expected, rtol=1e-6, atol=1e-9, err_msg=str(key))
    assert n_pairs, f"{key}: nothing was compared"


def looks_of(axes: Any) -> list[tuple[str, str]]:
    """The colour of each named line; of the grey lines across also its dash."""
    looks = []
    for line in axes.lines:
        if line.get_label() and not line.get_label().startswith("_"):
            colour = to_hex(line.get_color())
            looks.append((colour, line.get_linestyle() if colour == "#4c4c4c" else ""))
    return looks


def test_figures_draw_what_the_json_says(drawn_results):
    """All within their axes; those of the table number by number, others are of the same kinds."""
    compared = set()
    for command, results in drawn_results.items():
        for result in results:
            data = json.loads(to_json(result))
            for name, figure in figures(command, result).items():
                key = command, name
                for axes in figure.axes:
                    assert not list(outside(axes)), f"{key}: the axes leave out what is drawn"
                    looks = looks_of(axes)
                    assert len(looks) == len(set(looks)), f"{key}: two entries of one look"
                if key in TABLE:
                    compared.add(key)
                    check_numbers(TABLE[key](figure, data), key)
    assert compared == set(TABLE), "some figures were not drawn"


def test_one_count_of_heads_without_a_role(drawn_results):
    """A head whose one role is the least of all is no head without a role, wherever it is shown."""
    result = drawn_results["classify"][0]
    roles = [("duplicate",), ("self", "duplicate"), ("broad", "self"), (), (), (), (), ()]
    heads = tuple(
        dataclasses.replace(head, roles=names, labels=(), primary=(*names, "none")[0])
        for head, names in zip(result.heads, roles, strict=True)
    )
    changed = dataclasses.replace(result, heads=heads, untestable={}, causes=None, prefix=None)
    assert [head.primary for head in heads][:4] == ["duplicate", "self", "broad", "none"]
    sentences = [str(text) for text in VIEW.human(changed) if not hasattr(text, "columns")]
    assert "5 have none" in " ".join("".join(sentences).split())
    assert [mark_of(head) for head in heads].count(NO_ROLE.mark) == 5
    assert role_counts(changed)[-1][2] == 5
    assert [card.mark for card in VIEW.cards(changed, ())].count(NO_ROLE.mark) == 5
    assert list(changed.to_frame().primary).count("none") == 5
    names = [text.get_text() for text in role_map(changed).axes[0].get_legend().get_texts()]
    assert names == ["broad", "self", "duplicate-token", "no role"]
    shown = ["broad", "self", "dup = duplicate token", ". = no role"]
    assert legend(changed).split("; ") == shown


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


def test_numbers_of_both_signs_have_two_colours_that_meet_at_zero():
    values = {("L0", 0): -0.2, ("L0", 1): -0.0001, ("L0", 2): 0.1, ("L0", 3): 0.2}
    ((_, figure),) = figures_of([HeadMap("t", "l", values, 2, "map")])
    axes = figure.axes[0]
    red, _, blue = axes.images[0].to_rgba([-0.2, 0.0, 0.2])[:, :3].T.tolist()
    assert red[0] > blue[0]  # orange below zero,
    assert [red[1], blue[1]] == pytest.approx([1, 1], abs=0.01)  # white at zero,
    assert red[2] < blue[2]  # and blue above
    assert [text.get_text() for text in axes.texts] == ["\u22120.20", "0.00", "0.10", "0.20"]


def test_without_kinds_of_files_nothing_is_drawn():
    blocks = [HeadMap("t", "l", {("L0", 0): 0.1}, 2, "map")]
    with showing([]):
        assert list(figures_of(blocks)) == []
    assert [name for name, _ in figures_of(blocks)] == ["map"]
