"""docs/measurements.md is the only place of a measurement; what other pages say of it stands there.

A page writes a measured figure as a link, ``[4.27 times as fast](measurements.md#sst2-shrink)``.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BOOK = DOCS / "measurements.md"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

#: No page for users; the book itself.
NO_MANUAL = {"docs/design", "docs/measurements"}

#: Decimals and percentages that are no measurements, wherever they stand, and why.
CONSTANTS = {
    "95%": "every interval's level",
    "2.5%": "one end of such an interval",
    "97.5%": "its other end",
    "100%": "all",
    "0%": "none",
    "50%": "half, and the middle point of a curve",
}

#: Pages that wait to be written anew.
WAITING = {"docs/families"}

#: The same of single pages: thresholds, published values and constants of formulas.
CONSTANTS_OF_PAGES = {
    "docs/classify": dict.fromkeys(("0.10", "0.15", "0.60", "0.80", "90%"), "bounds of roles"),
    "docs/definitions/analyses": {
        "0.05": "flow: random weights may lie this far below 0",
        "0.5": "linear: half of a squared distance",
        "1%": "depth: collapsed",
        "3.5": "an exponent of flow's penalties",
        "75%": "the last point of attribute's curves",
    },
    "docs/definitions/roles": dict.fromkeys(
        ("0.05", "0.10", "0.15", "0.5", "0.50", "0.60", "0.80", "0.90"), "bounds of roles and tests"
    ),
    "docs/definitions/statistics": {
        "0.05": "the level of tests",
        "3.84": "the normal quantile's square, in Tango's interval",
        "6.4": "a section of Cochran 1977",
    },
    "docs/glossary": {"0.69": "ln 2", "90%": "of dims90"},
    "docs/insights": dict.fromkeys(
        ("0.05", "0.1", "0.5", "0.8", "0.9", "1%", "10%", "5%", "90%"), "bounds of claims"
    ),
    "docs/shrink": {"10%": "torch's own time may move by as much"},
    "docs/schema": {"3%": "a bound of warnings", "75%": "a bound of warnings"},
    "docs/treebanks": {"3.8": "spaCy's version", "4.0": "a licence's version"},
    "docs/definitions/shrinking": {
        "2%": "what is spared beside a target",
        "10%": "share of the minutes for a set of layers; how far two simulated paces lie apart",
        "4%": "how far two other paces lie apart",
    },
    "docs/definitions/tasks": {"0.01": "the level of a warning"},
    "docs/validate": {"1%": "a scale that is off by as much fails"},
}

NUMBER = r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?![\w]*\d|\.\d)"
DECIMAL = r"(?<![\w.])(?:\d[\d,]*\.\d+(?:\s?%)?|\d+\s?%)(?![\d.]\d)"
#: Day, machine, and the commit; commits of single rows of the table after "of".
DATED = (
    r"(?:\d{1,2} and )?\d{1,2} \w+ 20\d\d · [^·]+ · "
    r"commit `[0-9a-f]{8}`(?:, of [^`]+ `[0-9a-f]{8}`)*"
)
LINK = re.compile(r"\[([^\]\[]*(?:\[[^\]\[]*\][^\]\[]*)*)\]\(([\w./-]*measurements\.md)#([\w-]+)\)")


def name_of(page):
    return str(page.relative_to(ROOT)).removesuffix(".md")


def without_fences(text):
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)


def sections():
    """Each section of the book by its slug."""
    parts = re.split(r"^## (.+)$", BOOK.read_text(encoding="utf-8"), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def stands(number, section):
    """Tell whether a section has the number, or one that is it when rounded to as many decimals."""
    value = float(number.replace(",", ""))
    decimals = len(number.partition(".")[2])
    return any(
        f"{float(measured.replace(',', '')):.{decimals}f}" == f"{value:.{decimals}f}"
        for measured in re.findall(NUMBER, section)
        if len(measured.partition(".")[2]) >= decimals
    )


def prose(page):
    """What a page says outside its examples, formulas, code, links to the book and addresses."""
    text = LINK.sub(" ", without_fences(page.read_text(encoding="utf-8")))
    text = re.sub(r"`[^`]*`|\$\$.*?\$\$|\$[^$\n]+\$|<!--.*?-->", " ", text, flags=re.S)
    text = re.sub(r"\]\([^)\s]*\)|https?://\S+|arXiv:[\d.]+|src=\"[^\"]*\"", " ", text)
    text = re.sub(r"[Ss]ections? \d(?:[\d., ]|to|and)*", " ", text)
    programs = r"Python|torch|transformers|sentence-transformers|CUDA|headscope|[Vv]ersion"
    return re.sub(rf"(?:{programs})\W{{0,2}} ?\d+(?:\.\d+)*", " ", text)


def unlinked(page):
    """Decimals and percentages of a page's prose that no example of the page shows."""
    text = page.read_text(encoding="utf-8")
    examples = " ".join(re.findall(r"^ *```.*?^ *```$", text, re.M | re.S))
    shown = {*re.findall(r"\d[\d,]*(?:\.\d+)?", examples)}
    return [found for found in re.findall(DECIMAL, prose(page)) if found.strip(" %") not in shown]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_numbers_of_a_link_stand_in_its_section(page):
    known = sections()
    text = without_fences(page.read_text(encoding="utf-8"))
    for words, path, slug in LINK.findall(text):
        assert (page.parent / path).resolve() == BOOK, path
        assert slug in known, slug
        for number in re.findall(NUMBER, words):
            assert f"{number}%" in CONSTANTS or stands(number, known[slug]), (slug, number, words)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if name_of(page) not in NO_MANUAL | WAITING],
    ids=name_of,
)
def test_measured_numbers_of_a_page_stand_in_links(page):
    """Or in an example of the page, in code, or are constants of a definition."""
    constants = CONSTANTS | CONSTANTS_OF_PAGES.get(name_of(page), {})
    assert [number for number in unlinked(page) if number.replace(" ", "") not in constants] == []


def test_a_number_outside_links_examples_and_code_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "It is [4.27 times](measurements.md#a) as fast, 0.5 points less, and 4.3 times as slow.\n"
        "Of `0.8` and $x = 0.9$ nothing is said; 12% is (Python 3.11, arXiv:1905.10650).\n"
        "```text\n0.5 points\n```\n",
        encoding="utf-8",
    )
    assert unlinked(page) == ["4.3", "12%"]


def test_a_section_says_when_where_and_how_it_was_measured():
    known = sections()
    assert list(known) == sorted(known)
    for slug, text in known.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug), slug
        assert re.fullmatch(DATED, text.strip().splitlines()[0]), slug
        assert re.search(r"^```sh\n.+?^```$", text, re.M | re.S), slug
        assert re.search(r"^\|(?: ?:?-+:? ?\|)+$", text, re.M), slug


def test_the_comparison_finds_a_number_that_is_not_there():
    section = "| 6.56 (6.15 to 6.82) | -0.11 | 1,500 | L0H2 |"
    assert all(stands(number, section) for number in ("6.56", "6.6", "7", "0.1", "1,500"))
    assert not any(stands(number, section) for number in ("6.5", "6.561", "2", "8"))
