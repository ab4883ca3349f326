"""Self-contained HTML reports of labelled results.

Read :func:`build_report` first (any results), then :mod:`tsfm_lens.report.pipeline` (a
model and series) and :mod:`tsfm_lens.report.explanation` (one forecast).
"""

from tsfm_lens.report.build import build_report

__all__ = ["build_report"]


def __dir__() -> list[str]:
    return __all__
