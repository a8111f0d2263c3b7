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
from headscope.results.depth import (
    Decomposition,
    DepthControl,
    DepthCurves,
    DepthResult,
    Protection,
)
from headscope.results.rank import (
    ControlRank,
    ControlStatistics,
    DataControl,
    HeadRank,
    LayerControl,
    LayerRank,
    MatrixRank,
    MeanSem,
    NumericalRank,
    Overlap,
    RankResult,
    SharedProjections,
    SharedWidth,
)
from headscope.results.serialise import SCHEMA, from_dict, to_dict, to_json
from headscope.results.spectrum import (
    CheapHead,
    CheapPoint,
    EfficientResult,
    Roles,
    Sampling,
    SpectrumControl,
    SpectrumHead,
    SpectrumResult,
    Verdict,
)
from headscope.results.speed import SpeedResult, SpeedRow
from headscope.results.validation import LayerCheck, ValidationResult, ValidationSummary

__all__ = [
    "SCHEMA",
    "CheapHead",
    "CheapPoint",
    "ClassifyResult",
    "ControlRank",
    "ControlResult",
    "ControlStatistics",
    "CorpusInfo",
    "DataControl",
    "Decomposition",
    "DepthControl",
    "DepthCurves",
    "DepthResult",
    "EfficientResult",
    "HeadRank",
    "HeadResult",
    "Label",
    "LayerCheck",
    "LayerControl",
    "LayerRank",
    "MatrixRank",
    "MeanSem",
    "NumericalRank",
    "Overlap",
    "PositionalScore",
    "Protection",
    "RankResult",
    "RareScore",
    "Roles",
    "Sampling",
    "SharedProjections",
    "SharedWidth",
    "SpectrumControl",
    "SpectrumHead",
    "SpectrumResult",
    "SpeedResult",
    "SpeedRow",
    "SyntacticScore",
    "ValidationResult",
    "ValidationSummary",
    "Verdict",
    "from_dict",
    "to_dict",
    "to_json",
]
