"""Singular values of softmax matrices."""

from headscope.analyses.spectrum.options import SpectrumOptions
from headscope.analyses.spectrum.result import SpectrumResult
from headscope.session.entry import entry

__all__ = ["SpectrumResult", "spectrum"]

spectrum = entry(SpectrumOptions, SpectrumResult, "headscope.analyses.spectrum.run")
