"""Result files and folders: what they hold, and a sentence for each way of being none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from result_files import changed, write

from headscope.errors import InputError
from headscope.results import SECTIONS, to_dict
from headscope.verdicts.reading import read_results, results_of


def test_a_folder_of_single_results(folder: Path, documents: Any) -> None:
    found = read_results(folder)
    assert tuple(found.sections) == SECTIONS
    for name in SECTIONS:
        assert json.loads(json.dumps(to_dict(found.sections[name]))) == documents[name]
        assert getattr(found, name) is found.sections[name]


def test_a_file_says_itself_what_it_is(folder: Path, tmp_path: Path) -> None:
    for name in SECTIONS:
        path = shutil.copy(folder / f"{name}.json", tmp_path / "some-file.txt")
        assert tuple(read_results(Path(path)).sections) == (name,)


def test_a_report_comes_before_the_files_beside_it(documents: Any, tmp_path: Path) -> None:
    mine = changed(documents["rank"], "settings", "share", to="sigma")
    write(tmp_path / "rank.json", documents["rank"])
    write(tmp_path / "depth.json", documents["depth"])
    report = {"schema": 2, "provenance": {}, "settings": {}, "rank": mine, "classify": None}
    write(tmp_path / "report.json", {**report, "insights": None})
    found = read_results(tmp_path)
    assert tuple(found.sections) == ("rank", "depth")
    assert found.rank.settings["share"] == "sigma"


def test_the_certificate_may_be_called_validation(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "validate.json", tmp_path / "validation.json")
    assert tuple(read_results(tmp_path).sections) == ("validate",)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not whole JSON"),
        (b'{"heads": [', "not whole JSON"),
        (b'{"heads": NaN}', "NaN is no JSON number"),
        (b"\xff\xfe{\x00", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "no result of headscope"),
        (b"3", "no result of headscope"),
        (b"null", "no result of headscope"),
        (b'{"a": 1}', "no result of headscope"),
        (b'{"rank": 5, "insights": {}}', "damaged"),
        (b'{"heads": 1, "corpus": {}, "thresholds": {}}', "classify.* damaged: .*no field"),
        (b'{"insights": [[]], "schema": 1}', "damaged"),
        (b"1" * 5000, "not whole JSON"),
    ],
)
def test_files_that_are_no_results(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=words) as caught:
        read_results(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("heads",), {}, "heads is not a list"),
        (("heads", 2), "x", r"heads\[2\] is not an object"),
        (("heads", 2, "layer"), "0", r"heads\[2\].layer is no int"),
        (("heads", 2, "layer"), True, r"heads\[2\].layer is no int"),
        (("heads", 2, "layer"), 10**30, r"heads\[2\].layer is no int"),
        (("heads", 0, "entropy"), "low", "entropy is not a number"),
        (("heads", 0, "entropy"), 10**400, "entropy is not a number"),
        (("heads", 0, "primary"), None, "primary is no str"),
        (("heads", 0, "positional", "rates"), [], "rates is not an object"),
        (("schema",), "1", "schema is no int"),
        (("provenance",), [], "provenance is not an object"),
    ],
)
def test_damaged_fields_are_named(
    place: tuple[Any, ...], value: Any, words: str, documents: Any
) -> None:
    with pytest.raises(InputError, match=words):
        results_of(changed(documents["classify"], *place, to=value), "x.json")


def test_infinity_in_a_file(documents: Any, tmp_path: Path) -> None:
    text = json.dumps(changed(documents["classify"], "heads", 0, "entropy", to="@"))
    (tmp_path / "x.json").write_text(text.replace('"@"', "1e999"))
    with pytest.raises(InputError, match="entropy is not a number"):
        read_results(tmp_path / "x.json")


def test_a_damaged_result_of_a_later_schema_says_so(documents: Any) -> None:
    later = changed(documents["classify"], "schema", to=3)
    del later["corpus"]
    with pytest.raises(InputError, match="has schema 3; this headscope reads 2"):
        results_of(later, "x.json")


def test_missing_files_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file or folder"):
        read_results(tmp_path / "none.json")
    with pytest.raises(InputError, match=r"holds no results; looked for report\.json"):
        read_results(tmp_path)
    (tmp_path / "rank.json").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        read_results(tmp_path)


def test_a_file_under_another_commands_name(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "rank.json", tmp_path / "depth.json")
    with pytest.raises(InputError, match="holds rank, not depth"):
        read_results(tmp_path)


def test_halves_of_surrogate_pairs_are_replaced(documents: Any, tmp_path: Path) -> None:
    data = changed(documents["rank"], "provenance", "model", "id", to="a\ud800b")
    (tmp_path / "x.json").write_text(json.dumps(data))
    found = read_results(tmp_path / "x.json")
    assert found.rank.provenance["model"]["id"].encode() == b"a?b"
