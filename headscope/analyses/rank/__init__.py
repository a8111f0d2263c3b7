"""Ranks of the weights of heads."""

from headscope.analyses.rank.options import RankOptions
from headscope.analyses.rank.result import RankResult
from headscope.session.entry import entry

__all__ = ["RankResult", "rank"]

rank = entry(RankOptions, RankResult, "headscope.analyses.rank.run")
