"""Agreement of scores, and of yes or no claims, with the truth."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from tsfm_lens.core.stats import auroc

Scores = NDArray[np.float64]
Labels = NDArray[np.bool_]


def precision_at_size(scores: Scores, labels: Labels) -> float:
    """Compute the share of true ones among as many top candidates as are true; of ties
    the expected share.
    """
    size = int(labels.sum())
    if not size:
        return float("nan")
    values = _without_nan(scores)
    last = np.sort(values)[::-1][size - 1]
    above = values > last
    ties = values == last
    room = (size - above.sum()) / ties.sum()
    return float((labels[above].sum() + room * labels[ties].sum()) / size)


def ranks(scores: Scores) -> Scores:
    """Rank (candidate,) from 1 for the highest score; of ties the worst rank."""
    return np.asarray(rankdata(-_without_nan(scores), method="max"), dtype=float)


def marks(scores: Scores, labels: Labels) -> dict[str, float]:
    """Compute all marks of scores; NaN, where a method says nothing of a candidate, is
    below every number.
    """
    of_true = ranks(scores)[labels]
    return {
        "candidates": float(len(labels)),
        "true": float(labels.sum()),
        "auroc": auroc(scores, labels),
        "precision": precision_at_size(scores, labels),
        "worst_rank": float(of_true.max()) if len(of_true) else float("nan"),
        "mean_rank": float(of_true.mean()) if len(of_true) else float("nan"),
    }


def claim_marks(claims: Labels, labels: Labels) -> dict[str, float]:
    """Compute all marks of yes or no claims."""
    right = float((claims & labels).sum())
    return {
        "claimed": float(claims.mean()) if len(claims) else float("nan"),
        "claim_precision": right / claims.sum() if claims.any() else float("nan"),
        "claim_recall": right / labels.sum() if labels.any() else float("nan"),
    }


def _without_nan(scores: Scores) -> Scores:
    return np.where(np.isnan(scores), -np.inf, scores)
