"""Outputs on pages belong to a command of the page; on a large run they are printed again."""

import re

import pytest
from page_outputs import DOCS, EXAMPLE, desk, printed

EXAMPLES = [
    (page, *example)
    for page in sorted(DOCS.rglob("*.md"))
    for example in EXAMPLE.findall(page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(
    ("page", "lines", "command", "output"), EXAMPLES, ids=[example[2] for example in EXAMPLES]
)
def test_an_output_stands_below_its_command(page, lines, command, output):
    shown = "\n".join(re.findall(r"^```sh\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S))
    assert re.search(rf"^{re.escape(command)}(\s+#.*)?$", shown, re.MULTILINE)
    assert 1 <= len(output.splitlines()) <= int(lines) + 1


def words(output):
    """An output without numbers, which a machine may change, and without its line breaks."""
    return re.sub(r"[\d.,e+-]*\d", "0", output).split()


@pytest.mark.large
@pytest.mark.usefixtures("all_of_it", "mpnet", "smollm2")
@pytest.mark.parametrize(
    ("page", "lines", "command", "output"), EXAMPLES, ids=[example[2] for example in EXAMPLES]
)
def test_an_output_is_what_the_command_prints(page, lines, command, output, tmp_path):
    assert words(printed(command, int(lines), desk(tmp_path))) == words(output), page
