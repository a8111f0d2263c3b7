"""``headscope.report`` and ``headscope.insights``: options, result, and what runs."""

from headscope.reports.options import InsightsOptions, ReportOptions
from headscope.reports.result import InsightsResult, ReportResult
from headscope.session.entry import entry

__all__ = ["InsightsResult", "ReportResult", "insights", "report"]

insights = entry(InsightsOptions, InsightsResult, "headscope.reports.claims.run")
report = entry(ReportOptions, ReportResult, "headscope.reports.run")
