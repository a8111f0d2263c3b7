"""Figures for papers: what is drawn is what was measured, on the axes that were given."""

import base64

import numpy as np
import pytest
from matplotlib.figure import Figure

import headscope
from headscope.core.errors import InputError
from headscope.show.figures import figure_files
from headscope.show.style import FigureStyle, styled


@pytest.fixture(scope="module")
def classified(demo):
    return headscope.classify(demo, limit=12, validate=False)


def test_the_mean_attention_is_the_mean_of_the_patterns(demo, classified):
    """Against a plain loop over the sentences, one at a time, through the model's own outputs."""
    import torch

    from headscope.data.corpus import sample_corpus

    sums, counts = np.zeros((16, 16)), np.zeros((16, 16))
    model = demo.model
    model.config._attn_implementation, before = "eager", model.config._attn_implementation
    try:
        for sentence, _ in zip(sample_corpus(), range(12), strict=False):
            words = list(sentence.words)
            ids = demo.tokenizer(words, is_split_into_words=True)["input_ids"]
            with torch.no_grad():
                out = model(torch.tensor([ids]), output_attentions=True)
            pattern, n = out.attentions[1][0, 8].numpy(), len(ids)
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
        (lambda: headscope.plot.mean_attention(classified, "L9H9"), "no mean attention of L9H9"),
        (lambda: headscope.plot.mean_attention(classified, "x"), "'x' is no name of a head"),
        (lambda: classified.plot("nothing"), "There is no figure 'nothing'"),
    ):
        with pytest.raises(InputError, match=words):
            call()


def test_a_result_in_a_notebook_is_small(classified):
    assert len(repr(classified)) < 100
    html = classified._repr_html_()
    assert len(html) < 20_000
    assert "of 72 heads have a role" in html
    assert html.count("<td") == 72


def test_paper_width_leaves_no_small_type():
    from headscope.show import figures as drawing

    for width, inches in (("column", 3.3), ("page", 6.9)):
        figure = drawing.new_figure(6.6, 4.2)
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1])
        drawing.plain_axes(axes, "x", "y", "a title")
        with styled(FigureStyle(("pdf", "svg"), width, titles=False)):
            files = figure_files({"one": figure})
        assert sorted(files) == ["one.pdf", "one.svg"]
        assert figure.get_size_inches()[0] == pytest.approx(inches)
        assert axes.get_title() == ""
        assert min(label.get_fontsize() for label in axes.get_xticklabels()) >= 8
        assert files["one.pdf"].startswith(b"%PDF")
