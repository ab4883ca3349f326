"""Interactive views in a notebook.

:func:`explore` shows the heads of a model, :func:`brush` a forecast without a stretch
of its past.
"""

from tsfm_lens.report.explore.opening import brush, explore

__all__ = ["brush", "explore"]
