"""Documents in windows of whole sentences, against a slow reading sentence by sentence."""

import random

import pytest
from tiny_models import tiny_bert

import headscope
from headscope.core.errors import CorpusError, InputError
from headscope.data.corpus import as_corpus, sample_corpus
from headscope.data.long_texts import in_windows, left_out_notes, windows_of

SENTENCES = ("the cat sat.", "a big dog ran to the house!", "it was red?", "she saw he and it.")


def documents(n, longest):
    draw = random.Random(0)
    return [" ".join(draw.choices(SENTENCES, k=draw.randint(1, longest))) for _ in range(n)]


def tokens(model, text):
    return len(model.tokenizer(text)["input_ids"])


def slowly(model, line):
    """Add one sentence after the other, as long as the model can read them."""
    windows = [""]
    for end in line.replace("! ", "!|").replace(". ", ".|").replace("? ", "?|").split("|"):
        longer = f"{windows[-1]} {end}".strip()
        if windows[-1] and tokens(model, longer) > model.max_length:
            windows.append(end)
        else:
            windows[-1] = longer
    return windows


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return headscope.load(str(tiny_bert(tmp_path_factory.mktemp("windows") / "bert")))


def test_windows_are_as_many_whole_sentences_as_fit(model):
    lengths = set()
    for line in documents(40, 60):
        windows = [*windows_of(model, line)]
        assert windows == slowly(model, line)
        assert " ".join(windows) == line  # nothing is cut, and nothing is lost
        assert all(tokens(model, window) <= model.max_length for window in windows)
        lengths.add(len(windows))
    assert {1, 2, 3} <= lengths
    sentence = "the cat " * model.max_length  # too long by itself: classify leaves it out
    assert [*windows_of(model, f"it sat. {sentence}. it ran.")] == [
        "it sat.",
        f"{sentence.strip()} .",
        "it ran.",
    ]


def test_a_text_of_documents_can_be_read_in_windows(model):
    lines = documents(30, 60)
    text = as_corpus(lines)
    windows = in_windows(model, text)
    expected = [window for line in lines for window in slowly(model, line)]
    assert [*windows.lines()] == expected
    assert windows.n_sentences == len(expected)
    assert windows.sha256 != text.sha256
    with pytest.raises(CorpusError, match="Windows are for plain text"):
        in_windows(model, sample_corpus())


def test_a_run_says_that_much_was_left_out_and_offers_windows(model):
    lines = documents(30, 60)
    short = sum(tokens(model, line) <= model.max_length for line in lines)
    assert 2 < short < 28
    whole = headscope.classify(model, lines)
    said = (
        f"{30 - short} of 30 texts of in memory were left out, most of them longer than the "
        f"{model.max_length} tokens that are read at once: all numbers are of the other {short}. "
        "With the option windows, long texts are read in windows of whole sentences."
    )
    assert said in whole.provenance["warnings"]
    assert f"of which {short} of 30 texts could be read" in str(whole)
    cut = headscope.classify(model, lines, windows=True)
    assert cut.corpus.skipped == 0
    assert cut.corpus.sentences == sum(len(slowly(model, line)) for line in lines)
    assert not any("left out" in warning for warning in cut.provenance["warnings"])
    for command in (headscope.flow, headscope.symmetric):
        warnings = command(model, lines).provenance["warnings"]
        assert any(f"{30 - short} of 30 texts" in warning for warning in warnings)
    assert headscope.flow(model, lines, windows=True).sentences.skipped == 0

    ranks = headscope.rank(model, text=lines, fresh=False)
    assert said in ranks.provenance["warnings"]
    in_pieces = headscope.rank(model, text=lines, fresh=False, windows=True)
    assert in_pieces.text["lines"] == cut.corpus.sentences
    assert in_pieces.text["skipped"] == 0
    assert not any("left out" in warning for warning in in_pieces.provenance["warnings"])


def test_a_sentence_that_is_too_long_by_itself_is_no_matter_of_windows(model):
    lines = ["it sat.", "the cat " * model.max_length]
    for command in (headscope.classify, headscope.flow):
        (warning,) = (
            warning
            for warning in command(model, lines, windows=True).provenance["warnings"]
            if "left out" in warning
        )
        assert "1 of 2 texts" in warning
        assert "With the option windows" not in warning


def test_attribute_says_that_many_examples_were_left_out(model, tmp_path):
    pairs = tmp_path / "pairs.csv"
    long = "the cat " * model.max_length
    rows = ["the cat sat,a dog ran,1"] * 17 + [f"{long},a dog ran,2"] * 3
    pairs.write_text("".join(f"{row}\n" for row in rows))
    result = headscope.attribute(model, data=str(pairs), removals=2)
    assert (result.examples, result.skipped) == (17, 3)
    assert (
        f"3 of 20 texts of {pairs} were left out, most of them longer than the "
        f"{model.max_length} tokens that are read at once: all numbers are of the other 17."
    ) in result.provenance["warnings"]


def test_texts_without_a_mask_are_left_out_as_such(tmp_path):
    model = headscope.load(str(tiny_bert(tmp_path / "mlm", task_head="mlm")), task_head="mlm")
    lines = tmp_path / "lines.txt"
    lines.write_text("the [MASK] sat\n" * 17 + "a dog ran\n" * 3)
    result = headscope.attribute(model, of="token", data=str(lines), removals=2)
    assert result.skipped == 3
    assert any(
        f"3 of 20 texts of {lines} were left out, without the mask [MASK] or longer" in warning
        for warning in result.provenance["warnings"]
    )


def test_rank_refuses_windows_without_a_text(model):
    with pytest.raises(InputError, match="windows says how text is read"):
        headscope.rank(model, fresh=False, windows=True)


@pytest.mark.parametrize(("left_out", "is_said"), [(0, False), (5, False), (6, True)])
def test_a_twentieth_may_be_left_out_without_a_word(left_out, is_said):
    assert bool(left_out_notes(left_out, 100, "t.txt", 128)) is is_said
