"""The sum of what all parts of a residual stream contribute, held against what it should be."""

from torch import Tensor

from headscope.models.anatomy.residual import Contributions


def error_of(parts: Contributions, expected: Tensor) -> float:
    """The largest error of any row's sum, relative to the sum of absolute parts above 1."""
    heads, networks = parts.heads.sum(3), parts.feed_forward.sum(2)
    each = (parts.embeddings.sum(1), *heads.flatten(1).T, *networks.T, parts.biases)
    total, absolute = sum(each), sum(part.abs() for part in each)
    return float(((total - expected).abs() / absolute.clamp(min=1)).max())
