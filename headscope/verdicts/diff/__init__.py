"""Two sets of results compared, and the rules that a comparison can break."""

from headscope.verdicts.diff.compare import TOLERANCE, compare
from headscope.verdicts.diff.rules import RULES, parse_rules, undecided, with_fired

__all__ = ["RULES", "TOLERANCE", "compare", "parse_rules", "undecided", "with_fired"]
