"""Fine-tuning parts of a model."""

from headscope.analyses.transfer.options import TransferOptions
from headscope.analyses.transfer.result import TransferResult
from headscope.session.entry import entry

__all__ = ["TransferResult", "transfer"]

transfer = entry(TransferOptions, TransferResult, "headscope.analyses.transfer.run")
