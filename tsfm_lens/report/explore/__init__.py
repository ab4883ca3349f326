"""Interactive views in a notebook: the heads of a model, and a forecast without a
stretch of its past.
"""

from tsfm_lens.report.explore.opening import brush, explore

__all__ = ["brush", "explore"]
