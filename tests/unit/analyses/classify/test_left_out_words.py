"""Words that have no piece, that nobody knows, or that are special tokens: what results say."""

from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny_bert

import headscope
from headscope.data.sentences import NO_HEAD, Sentence
from headscope.data.token_rows import encode_rows, sentences_of
from headscope.models.run.loaded import LoadedModel
from headscope.tasks.making import make_task, read_examples

EMPTY = "\u200b"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return headscope.load(str(tiny_bert(tmp_path_factory.mktemp("model") / "bert")))


def classified(loaded: LoadedModel, corpus: Any, **options: Any) -> Any:
    return headscope.classify(loaded, corpus, validate=False, **options)


def bank(words: list[str], heads: list[int]) -> str:
    """One sentence, its words parted by spaces."""
    relations = ["root" if head == 0 else "dep" for head in heads]
    rows = zip(range(1, 99), words, heads, relations, strict=False)
    return "\n".join(f"{i}\t{w}\t_\t_\t_\t_\t{h}\t{r}\t_\t_" for i, w, h, r in rows) + "\n\n"


def test_a_word_without_a_piece_takes_its_edges_along(loaded, tmp_path):
    """Every trial is the one of the same treebank without that word."""
    words = ["the", "cat", "saw", EMPTY, "dog"]
    heads = [2, 3, 0, 3, 4]
    path = tmp_path / "bank.conllu"
    plain = tmp_path / "plain.conllu"
    path.write_text(bank(words, heads) * 8, encoding="utf-8")
    # The dog hung from the word that is not there: as a second root it has no edge.
    without_the_word = [
        Sentence(("the", "cat", "saw", "dog"), (1, 2, -1, NO_HEAD), ("dep", "dep", "root", "x"))
    ]
    plain.write_text(bank(words[:3] + words[4:], [2, 3, 0, 3]) * 8)
    result = classified(loaded, path)
    expected = classified(loaded, without_the_word * 8)
    assert (result.corpus.sentences, result.corpus.skipped) == (8, 0)
    assert (result.corpus.words_left_out, expected.corpus.words_left_out) == (8, 0)
    assert result.heads == expected.heads
    assert result.control.swapped == expected.control.swapped
    trials = {s.direction: s.trials for s in result.heads[0].syntactic if s.relation == "dep"}
    assert trials == {"dep->head": 16, "head->dep": 16}
    more = {s.trials for s in classified(loaded, plain).heads[0].syntactic if s.relation == "dep"}
    assert 24 in more, "with all its edges"


@pytest.mark.parametrize(
    "line", ["ฉันรักกรุงเทพ มาก", "我爱北京天安门", "カタカナ です", "ខ្ញុំ ស្រឡាញ់", "བོད་ ཡིག"]
)
def test_rare_words_of_scripts_without_spaces_are_not_testable(line, loaded, tmp_path):
    counts = tmp_path / "counts.tsv"
    counts.write_text("the\t10\n")
    options = {"frequencies": counts}
    lines = [f"the {line} zoo cat{'s' * i}" for i in range(9)]
    text = classified(loaded, [*lines, "the zoo and a cat"], **options)
    assert "9 of 10 sentences are in a script that puts no space" in text.untestable["rare"]
    assert {head.rare.sentences for head in text.heads} == {1}
    latin = [*lines[:2], *(f"the zoo and a cat{'s' * i}" for i in range(9))]
    few = classified(loaded, latin, **options)
    assert "rare" not in few.untestable
    assert {head.rare.sentences for head in few.heads} == {9}
    known = classified(loaded, [Sentence(tuple(each.split())) for each in lines], **options)
    assert "rare" not in known.untestable, "who wrote the words down knows them"


def test_special_tokens_that_are_written_out_are_counted(loaded, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("the cat [SEP] a dog\nthe [MASK] sat on it\na big cat\n" * 3)
    result = classified(loaded, path)
    said = [w for w in result.provenance["warnings"] if "special" in w]
    assert len(said) == 1
    assert "3 of 9 texts" in said[0]
    assert "([SEP])" in said[0]
    assert result.corpus.queries == 3 * (4 + 5 + 3)
    assert not [
        w for w in classified(loaded, ["a cat", "a dog"]).provenance["warnings"] if "special" in w
    ]


def test_texts_of_a_pair_are_parted_where_they_end(loaded):
    """A special token inside a text parts nothing, and the sides are those that were given."""
    firsts = ["the cat [SEP] a dog", "the cat"]
    seconds = ["it ran", "a [SEP] dog [SEP]"]
    rows = [row for row in encode_rows(loaded, firsts, seconds) if row is not None]
    spelled = [
        [tuple(loaded.tokenizer.convert_ids_to_tokens(list(text))) for text in sentences_of(row)]
        for row in rows
    ]
    assert spelled == [
        [("the", "cat", "[SEP]", "a", "dog"), ("it", "ran")],
        [("the", "cat"), ("a", "[SEP]", "dog")],
    ]
    alone = next(encode_rows(loaded, ["the [SEP] cat"], None))
    assert alone is not None
    assert len(list(sentences_of(alone))) == 1
    assert alone.content == (1, 3)


def test_tags_of_words_without_a_piece_are_left_out(tmp_path: Path) -> None:
    """Their sentences are kept, and what is said of the others is true."""
    names = dict(enumerate(("O", "B-PER", "I-PER")))
    options: dict[str, Any] = {"id2label": names, "label2id": {n: i for i, n in names.items()}}
    folder = tiny_bert(tmp_path / "tagger", task_head="token-classification", **options)
    loaded = headscope.load(str(folder), task_head="auto")
    path = tmp_path / "tags.txt"
    rows = ["the O", f"{EMPTY} I-PER", "cat B-PER", "", "a O", "dog B-PER", "", f"{EMPTY} O", ""]
    path.write_text("\n".join(rows * 3) + "\n", encoding="utf-8")
    task = make_task("token-classification", read_examples("token-classification", path), loaded)
    assert (task.n_examples, task.skipped) == (6, 0)
    assert [row.gold for row in task.rows] == [(0, 1)] * 6
    assert any("no piece of 3 words" in note for note in task.notes)
    assert any("any word of 3 sentences" in note for note in task.notes)
