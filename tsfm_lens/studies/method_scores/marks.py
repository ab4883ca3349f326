"""Agreement of scores, and of yes or no claims, with the truth.

:func:`marks` and :func:`claim_marks` compute all of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from tsfm_lens.core.stats import auroc

Scores = NDArray[np.float64]
Labels = NDArray[np.bool_]


def precision_at_size(scores: Scores, labels: Labels) -> float:
    """Compute the share of true candidates among the top ones.

    As many candidates are taken as are true; of ties the expected share counts.
    """
    size = int(labels.sum())
    if not size:
        return float("nan")
    values = _without_nan(scores)
    threshold = np.sort(values)[::-1][size - 1]
    above = values > threshold
    ties = values == threshold
    tie_share = (size - above.sum()) / ties.sum()
    return float((labels[above].sum() + tie_share * labels[ties].sum()) / size)


def ranks(scores: Scores) -> Scores:
    """Rank (candidate,) from 1 for the highest score; of ties the worst rank."""
    return np.asarray(rankdata(-_without_nan(scores), method="max"), dtype=float)


def marks(scores: Scores, labels: Labels) -> dict[str, float]:
    """Compute all measures of agreement of scores with the truth.

    NaN, where a method says nothing of a candidate, ranks below every number.
    """
    true_ranks = ranks(scores)[labels]
    return {
        "candidates": float(len(labels)),
        "true": float(labels.sum()),
        "auroc": auroc(scores, labels),
        "precision": precision_at_size(scores, labels),
        "worst_rank": float(true_ranks.max()) if len(true_ranks) else float("nan"),
        "mean_rank": float(true_ranks.mean()) if len(true_ranks) else float("nan"),
    }


def claim_marks(claims: Labels, labels: Labels) -> dict[str, float]:
    """Compute all measures of agreement of yes or no claims with the truth."""
    right = float((claims & labels).sum())
    return {
        "claimed": float(claims.mean()) if len(claims) else float("nan"),
        "claim_precision": right / claims.sum() if claims.any() else float("nan"),
        "claim_recall": right / labels.sum() if labels.any() else float("nan"),
    }


def _without_nan(scores: Scores) -> Scores:
    return np.where(np.isnan(scores), -np.inf, scores)
