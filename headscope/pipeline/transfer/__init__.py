"""``headscope transfer``: fine-tuning of some parameters, against others, from two starts."""

from headscope.pipeline.transfer.run import report_defaults, transfer

__all__ = ["report_defaults", "transfer"]
