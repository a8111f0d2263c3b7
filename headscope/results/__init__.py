"""Raw values of every command, frozen, with a JSON round trip; display lives in report/ and cli/.

A rate that has no trial behind it is None (JSON null), never NaN.
"""

from headscope.results.classification import (
    ClassifyResult,
    ControlResult,
    CorpusInfo,
    HeadResult,
    Label,
    PositionalScore,
    RareScore,
    SyntacticScore,
)
from headscope.results.serialise import SCHEMA, from_dict, to_dict, to_json
from headscope.results.speed import SpeedResult, SpeedRow
from headscope.results.validation import LayerCheck, ValidationResult, ValidationSummary

__all__ = [
    "SCHEMA",
    "ClassifyResult",
    "ControlResult",
    "CorpusInfo",
    "HeadResult",
    "Label",
    "LayerCheck",
    "PositionalScore",
    "RareScore",
    "SpeedResult",
    "SpeedRow",
    "SyntacticScore",
    "ValidationResult",
    "ValidationSummary",
    "from_dict",
    "to_dict",
    "to_json",
]
