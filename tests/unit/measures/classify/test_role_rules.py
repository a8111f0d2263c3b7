"""Every role of the list has a rule here, and a reason why a corpus may not show it."""

from __future__ import annotations

from headscope.measures.classify.cross import CrossHeads
from headscope.measures.classify.labels import MEAN_RULES
from headscope.measures.classify.profile import QUANTITIES
from headscope.measures.classify.sums import HeadMeasures
from headscope.measures.classify.testable import untestable, untestable_cross
from headscope.measures.classify.thresholds import Thresholds
from headscope.results.roles import roles_of

#: Roles of self-attention that are no mean over queries.
OTHERS = ["positional", "syntactic", "rare"]


def test_every_role_has_a_rule() -> None:
    assert [*OTHERS, *MEAN_RULES] == [role.key for role in roles_of("encoder", "decoder")]
    for rule in MEAN_RULES.values():
        assert rule.quantity in QUANTITIES
        assert hasattr(Thresholds(), rule.threshold)


def test_without_sentences_no_role_but_self_can_be_shown() -> None:
    reasons = untestable(HeadMeasures(1, 1), Thresholds(), trees=False)
    assert list(reasons) == [role.key for role in roles_of("encoder") if role.key != "self"]


def test_what_cannot_apply_to_a_stack_is_not_called_untestable() -> None:
    reasons = untestable(HeadMeasures(1, 1), Thresholds(), trees=False, stack="decoder")
    applying = [role.key for role in roles_of("decoder")]
    assert "syntactic" not in applying
    assert "rare" not in applying
    assert list(reasons) == [key for key in applying if key != "self"]
    assert list(untestable_cross(CrossHeads(1, 1))) == [role.key for role in roles_of("cross")]
