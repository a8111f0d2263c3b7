"""Results as JSON: nothing is lost on the way, and a sentence for each way of being damaged."""

import json
import shutil
from pathlib import Path

import pytest
from result_files import changed, write
from tiny_models import tiny_bert

import headscope
from headscope.commands import COMMANDS, SECTIONS
from headscope.core.errors import InputError, WrongOptionError
from headscope.core.heads import Head, address_name, head_name, parse_head
from headscope.core.options import parse_pairs
from headscope.core.serialise import from_dict, to_dict, to_json
from headscope.reports.reading import read_results, results_of


@pytest.mark.parametrize("name", SECTIONS)
def test_a_result_comes_back_from_json_as_it_was(name, documents):
    """To the byte: 8 and 8.0 are equal, but a report that is run again must not change."""
    document = documents[name]
    kind = COMMANDS[name].result
    result = from_dict(kind, document)
    again = json.loads(to_json(result))
    assert json.dumps(again, sort_keys=True) == json.dumps(document, sort_keys=True)
    assert from_dict(kind, again) == result
    assert from_dict(kind, {**document, "of_a_later_version": 1}) == result
    for damaged in ({"schema": "1"}, {"provenance": []}, {"schema": True}):
        (field,) = damaged
        with pytest.raises(InputError, match=rf"{field} is (no int|not an object)"):
            results_of({**document, **damaged}, "x.json")


def test_what_is_not_known_is_null_and_never_nan(tmp_path):
    single = headscope.classify(str(tiny_bert(tmp_path)), ["cat"])
    head = single.heads[0]
    assert (head.positional.score.value, head.rare.rate.value, head.labels) == (None, None, ())
    assert "NaN" not in to_json(single)
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"rate": float("nan")})


def test_names_of_heads_and_places_and_pairs_of_name_and_value():
    assert head_name(3, 15) == Head(3, 15).name == "L3H15"
    assert parse_head("L3H15") == (3, 15)
    for text in ("", "L3", "3H1", "L3H*", "L-1H2", "L1H2 "):
        with pytest.raises(ValueError, match="not the name of a head"):
            parse_head(text)
    places = ((3, 5), ("cross", 3, 5), [], [1], ["a", 1, 2, 3])
    names = ["L3H5", "cross:L3H5", "[]", "[1]", "['a', 1, 2, 3]"]
    assert [address_name(path) for path in places] == names
    pairs = parse_pairs([" most = 0.6", "low_rank=1=2"])
    assert pairs == {"most": "0.6", "low_rank": "1=2"}
    with pytest.raises(WrongOptionError, match="The threshold most is given twice"):
        parse_pairs([" most = 0.6", "most=0.7"])
    with pytest.raises(InputError) as error:
        parse_pairs(["most"], example="most=0.6")
    assert str(error.value) == "threshold 'most': write NAME=VALUE, such as most=0.6."


def test_a_folder_of_single_results(folder, documents, tmp_path):
    results = read_results(folder)
    assert tuple(results.sections) == SECTIONS
    for name in SECTIONS:
        assert json.loads(json.dumps(to_dict(results.sections[name]))) == documents[name]
        assert getattr(results, name) is results.sections[name]
        path = shutil.copy(folder / f"{name}.json", tmp_path / "some-file.txt")
        assert tuple(read_results(Path(path)).sections) == (name,), "a file says what it is"
    (tmp_path / "some-file.txt").unlink()
    shutil.copy(folder / "rank.json", tmp_path / "depth.json")
    with pytest.raises(InputError, match="holds rank, not depth"):
        read_results(tmp_path)


def test_a_report_comes_before_the_files_beside_it(documents, tmp_path):
    changed_rank = changed(documents["rank"], "settings", "share", to="sigma")
    write(tmp_path / "rank.json", documents["rank"])
    write(tmp_path / "depth.json", documents["depth"])
    report = {"schema": 2, "provenance": {}, "settings": {}, "rank": changed_rank, "classify": None}
    write(tmp_path / "report.json", {**report, "insights": None})
    found = read_results(tmp_path)
    assert tuple(found.sections) == ("rank", "depth")
    assert found.rank.settings["share"] == "sigma"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not whole JSON"),
        (b'{"heads": [', "not whole JSON"),
        (b'{"heads": NaN}', "NaN is no JSON number"),
        (b"\xff\xfe{\x00", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "no result of headscope"),
        (b'{"a": 1}', "no result of headscope"),
        (b'{"rank": 5, "insights": {}}', "damaged"),
        (b'{"heads": 1, "corpus": {}, "thresholds": {}}', "classify.* damaged: .*no field"),
        (b"1" * 5000, "not whole JSON"),
    ],
)
def test_files_that_are_no_results(data, words, tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=words) as caught:
        read_results(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("heads",), {}, "heads is not a list"),
        (("heads", 2, "layer"), "0", r"heads\[2\].layer is no int"),
        (("heads", 2, "layer"), True, r"heads\[2\].layer is no int"),
        (("heads", 2, "layer"), 10**30, r"heads\[2\].layer is no int"),
        (("heads", 0, "entropy"), "low", "entropy is not a number"),
        (("heads", 0, "positional", "rates"), [], "rates is not an object"),
        (("schema",), 3, "has schema 3; this headscope reads 2"),  # and lacks a field besides
    ],
)
def test_damaged_fields_are_named(path, value, words, documents):
    data = changed(documents["classify"], *path, to=value)
    if path == ("schema",):
        del data["corpus"]
    with pytest.raises(InputError, match=words):
        results_of(data, "x.json")


def test_a_report_of_no_section_is_a_result_all_the_same():
    assert results_of({"schema": 2}, "report.json", {}).sections == {}


def test_infinity_and_halves_of_surrogate_pairs_in_a_file(documents, tmp_path):
    text = json.dumps(changed(documents["classify"], "heads", 0, "entropy", to="@"))
    path = tmp_path / "x.json"
    path.write_text(text.replace('"@"', "1e999"))
    with pytest.raises(InputError, match="entropy is not a number"):
        read_results(path)
    write(path, changed(documents["rank"], "provenance", "model", "id", to="a\ud800b"))
    assert read_results(path).rank.provenance["model"]["id"].encode() == b"a?b"
