"""``headscope spectrum`` and its parts."""

from headscope.pipeline.spectrum.run import report_defaults, spectrum

__all__ = ["spectrum", "report_defaults"]
