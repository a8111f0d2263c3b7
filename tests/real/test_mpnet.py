"""The real all-mpnet-base-v2: 12 x 12 heads, d_model 768, relative positions, no task head.

A small set runs with all tests. What takes minutes runs where it is asked for: ``-m large``.
"""

import pytest

import headscope
from headscope.data.corpus import open_text
from headscope.data.examples import read_texts
from headscope.models.certificate.certificate import validate_model
from headscope.tasks.making import make_task, read_examples

pytestmark = pytest.mark.large
FEW = 40  # Sentences of EWT; all of it gives 0.997 and 0.964.


@pytest.fixture(scope="module")
def loaded(mpnet):
    return headscope.load(str(mpnet))


def spearman(loaded, shared, rows):
    data = read_examples("similarity", shared / "data/stsb-en-test.csv").pick(rows)
    task = make_task("similarity", data, loaded)
    return task.value(task.outputs(loaded))


def test_it_is_proven_equal_to_its_own_attention(loaded):
    certificate = validate_model(loaded)
    assert certificate.passed, certificate.reasons
    assert (len(certificate.layers), loaded.n_heads) == (12, 12)


def test_sts_b_first_rows(loaded, shared):
    """By sentence-transformers on these rows: 94.34."""
    assert spearman(loaded, shared, range(80)) == pytest.approx(94.34, abs=0.05)


def test_sts_b(loaded, shared, all_of_it):
    """By sentence-transformers on all 1,379 pairs: 83.42."""
    assert spearman(loaded, shared, range(1379)) == pytest.approx(83.42, abs=0.05)
    assert spearman(loaded, shared, range(800, 1379)) == pytest.approx(73.88, abs=0.05)


@pytest.mark.parametrize("limit", [FEW, None], ids=["few", "all"])
def test_its_positional_heads(loaded, ewt, limit, request):
    """An independent script on all of EWT's test part: 0.997 and 0.964."""
    if limit is None:
        request.getfixturevalue("all_of_it")
    classified = headscope.classify(loaded, ewt, limit=limit, language="en", validate=False)
    heads = {head.name: head.positional for head in classified.heads}
    near = 0.01 if limit else 0.0006
    for name, offset, score in (("L0H11", 1, 0.997), ("L0H6", -1, 0.964)):
        assert heads[name].offset == offset
        assert heads[name].score.value == pytest.approx(score, abs=near)


def test_a_document_as_long_as_it_reads(loaded, shared, tmp_path):
    """A long one is read to its end."""
    words = " ".join(read_texts(shared / "data/wikitext-2-test.txt").texts[:60]).split()
    document = " ".join(words[:300])
    path = tmp_path / "document.txt"
    path.write_text(f"{document}\n")
    classified = headscope.classify(loaded, open_text(path), language="en", validate=False)
    assert (classified.corpus.sentences, classified.corpus.skipped) == (1, 0)
    ids = loaded.tokenizer(document)["input_ids"]
    assert len(ids) > 300
    # Wikitext's mark for a word that was taken out is a special token of this model.
    added = loaded.tokenizer.added_tokens_decoder
    assert classified.corpus.queries == sum(
        id_ not in added or not added[id_].special for id_ in ids
    )
    assert all(head.positional.score.value is not None for head in classified.heads)
