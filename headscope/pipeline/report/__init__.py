"""``headscope report`` and the patterns that its page shows."""

from headscope.pipeline.report.run import choose_sections, report

__all__ = ["choose_sections", "report"]
