"""Every row of the table of planted faults still finds the code that it changes."""

import importlib.util
from pathlib import Path

TABLE = Path(__file__).parents[1] / "bench" / "mutants.py"


def test_every_row_finds_its_code_once_and_leaves_it_readable():
    spec = importlib.util.spec_from_file_location("mutants", TABLE)
    assert spec is not None
    assert spec.loader is not None
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    faults = list(table.rows())  # ends the program where a row finds nothing, or several places
    assert len({fault.name for fault in faults}) == len(faults) >= 50
