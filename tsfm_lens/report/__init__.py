"""One self-contained HTML report of labelled results."""

from tsfm_lens.report.build import build_report

__all__ = ["build_report"]
