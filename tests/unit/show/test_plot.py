"""Figures for papers: what is drawn is what was measured, on the axes that were given."""

import base64

import every_command
import numpy as np
import pytest
from families import COVERED
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

import headscope
from headscope.core.errors import InputError
from headscope.core.serialise import to_json
from headscope.show.figures import figure_files
from headscope.show.style import showing

NAME = "all-MiniLM-L6-v2"


@pytest.fixture(scope="module")
def classified(demo):
    return headscope.classify(demo, limit=12, validate=False)


def test_the_mean_attention_is_the_mean_of_the_patterns(demo, classified):
    """Against a plain loop over the sentences, one at a time, through the model's own outputs."""
    import torch

    from headscope.data.corpus import sample_corpus

    sums = np.zeros((16, 16))
    counts = np.zeros((16, 16))
    model = demo.model
    before = model.config._attn_implementation
    model.config._attn_implementation = "eager"
    try:
        for sentence, _ in zip(sample_corpus(), range(12), strict=False):
            ids = demo.tokenizer(sentence.text)["input_ids"]
            with torch.no_grad():
                out = model(torch.tensor([ids]), output_attentions=True)
            pattern = out.attentions[1][0, 8].numpy()
            n = len(ids)
            tokens = [*range(min(15, n - 1)), n - 1]
            cells = [*range(min(15, n - 1)), 15]
            for a, i in zip(cells, tokens, strict=True):
                for b, j in zip(cells, tokens, strict=True):
                    sums[a, b] += pattern[i, j]
                    counts[a, b] += 1
    finally:
        model.config._attn_implementation = before
    head = next(head for head in classified.heads if head.name == "L1H8")
    cells = np.frombuffer(base64.b64decode(head.mean_pattern), dtype=np.uint8).reshape(16, 16)
    expected = 255 * np.sqrt(sums / np.maximum(counts, 1))
    assert np.abs(cells - expected).max() <= 0.51  # rounded to a byte
    figure = headscope.plot.mean_attention(classified, "L1H8")
    drawn = np.asarray(figure.axes[0].images[0].get_array())
    np.testing.assert_allclose(drawn, sums / np.maximum(counts, 1), atol=5e-3)


def test_figures_take_axes_and_refuse_what_is_not_there(classified):
    ours = Figure()
    axes = ours.subplots(1, 2)
    assert headscope.plot.heads(classified, ax=axes[0]) is ours
    assert headscope.plot.heads(classified, "entropy", ax=axes[1]) is ours
    frame = classified.to_frame()
    drawn = np.asarray(axes[1].images[0].get_array())
    np.testing.assert_allclose(drawn[frame["layer"], frame["head"]], frame["entropy"])
    for call, words in (
        (lambda: headscope.plot.heads(classified, "nothing"), "There is no number 'nothing'"),
        (lambda: headscope.plot.mean_attention(classified, "L9H9"), "no attention of 'L9H9' here"),
        (lambda: classified.plot("nothing"), "There is no figure 'nothing'"),
        (lambda: classified.plot("roles", ax=axes[0]), "'roles' takes no ax"),
    ):
        with pytest.raises(InputError, match=words):
            call()


def test_a_plot_names_its_head_and_has_a_scale(demo, classified):
    explained = headscope.explain(demo, "The cat sat.", head="L0H2", validate=False)
    for figure, title, scale in (
        (headscope.plot.attention(explained), f"L0H2 of {NAME}", "attention weight"),
        (headscope.plot.attention(explained, "L1H8"), f"L1H8 of {NAME}", "attention weight"),
        (
            headscope.plot.mean_attention(classified, "L1H8"),
            f"L1H8: mean attention, {NAME}",
            "attention weight",
        ),
        (headscope.plot.heads(classified, "entropy"), f"Entropy of heads, {NAME}", "entropy"),
    ):
        map_axes, scale_axes = figure.axes
        assert map_axes.get_title() == title
        assert scale_axes.get_ylabel() == scale
    (roles,) = headscope.plot.heads(classified).axes
    assert roles.get_title() == f"Roles of heads, {NAME}"
    assert roles.get_legend() is not None


def test_the_module_offers_its_plots_and_nothing_else():
    assert dir(headscope.plot) == ["attention", "heads", "mean_attention"]
    assert all(callable(getattr(headscope.plot, name)) for name in dir(headscope.plot))


def test_a_model_says_in_one_line_what_it_is(demo):
    assert repr(demo) == "LoadedModel('demo': bert, 6 layers x 12 heads; float32 on cpu)"
    translator = every_command.opened(next(f for f in COVERED if f.kind == "bart"))
    assert repr(translator) == (
        "LoadedModel('This model': bart, encoder 1 layer x 4 heads, decoder 2 layers x 4 heads, "
        "cross 2 layers x 4 heads, with its seq2seq head; float32 on cpu)"
    )


def luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast_of(colour, ground):
    dark, light = sorted([luminance(colour), luminance(ground)])
    return (light + 0.05) / (dark + 0.05)


def test_a_map_has_its_labels_and_text_that_can_be_read(classified):
    """Contrast as WCAG 2 defines it, of every text to the colour under it, drawn or not."""
    for value, texts in (("role", 72), ("entropy", 72)):
        axes = headscope.plot.heads(classified, value).axes[0]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("head", "layer")
        assert len(axes.texts) == texts
        (image,) = axes.images
        grounds = image.get_array() if value == "role" else image.to_rgba(image.get_array())
        for text in axes.texts:
            column, row = map(int, text.get_position())
            contrast = contrast_of(to_rgb(text.get_color()), grounds[row, column])
            assert contrast >= 4.5, (value, text.get_text())
    bare = headscope.plot.heads(classified, text=False, legend=False).axes
    assert len(bare) == 1
    assert not bare[0].texts
    assert bare[0].get_legend() is None


def test_a_result_gives_its_answer_a_head_and_a_table_by_name(classified):
    assert "of 72 heads have a role" in str(classified)
    assert classified["L1H8"] is classified.heads[20]
    assert repr(classified["L1H8"]).startswith("<HeadResult L1H8: primary=positional")
    assert "\n" not in repr(classified["L1H8"])
    assert len(repr(classified["L1H8"])) < 200
    with pytest.raises(KeyError, match="has no 'L9H9'"):
        classified["L9H9"]
    with pytest.raises(TypeError):
        iter(classified)
    frame = classified.to_frame()
    assert list(frame.index) == [head.name for head in classified.heads]
    assert frame.loc["L1H8", "entropy"] == classified["L1H8"].entropy


def test_results_are_compared_in_memory_and_from_files(classified, tmp_path):
    path = tmp_path / "classify.json"
    path.write_text(to_json(classified), encoding="utf-8")
    result = headscope.compare([classified, path])
    frame = result.to_frame()
    assert set(frame["report"]) == {"A", "B"}
    same = frame.pivot(index=["section", "what"], columns="report", values="text")
    assert (same["A"] == same["B"]).all()
    for wrong in ([classified], str(path)):
        with pytest.raises(InputError, match="two reports or more"):
            headscope.compare(wrong)


def test_a_result_in_a_notebook_is_small(classified):
    assert len(repr(classified)) < 100
    html = classified._repr_html_()
    assert len(html) < 20_000
    assert "of 72 heads have a role" in html
    assert html.count("<td") == 72
    assert all(f"<th scope=col>H{head}</th>" in html for head in range(12))


def test_figures_are_drawn_in_the_formats_of_the_run(classified):
    with showing(["pdf", "svg"]):
        files = figure_files({"one": classified.plot()})
    assert sorted(files) == ["one.pdf", "one.svg"]
    assert files["one.pdf"].startswith(b"%PDF")
