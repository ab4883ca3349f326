"""How well scores, and yes or no claims, agree with what is known to be true."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu, rankdata

Scores = NDArray[np.float64]
Labels = NDArray[np.bool_]


def auroc(scores: Scores, labels: Labels) -> float:
    """The chance that a true candidate scores above another one, ties counting half; NaN without both kinds.

    Args:
        scores: (candidate,); NaN, where a method says nothing of a candidate, is below every number.
        labels: (candidate,), whether it is true.
    """
    true, false = _known(scores)[labels], _known(scores)[~labels]
    if not (len(true) and len(false)):
        return float("nan")
    return float(mannwhitneyu(true, false).statistic / (len(true) * len(false)))


def precision_at_size(scores: Scores, labels: Labels) -> float:
    """The share of true ones among as many candidates of the highest scores as are true; of ties the expected share."""
    size = int(labels.sum())
    if not size:
        return float("nan")
    known = _known(scores)
    last = np.sort(known)[::-1][size - 1]
    above, tied = known > last, known == last
    room = (size - above.sum()) / tied.sum()
    return float((labels[above].sum() + room * labels[tied].sum()) / size)


def ranks(scores: Scores) -> Scores:
    """(candidate,) 1 for the highest score; of ties the worst rank."""
    return np.asarray(rankdata(-_known(scores), method="max"), dtype=float)


def marks(scores: Scores, labels: Labels) -> dict[str, float]:
    """All of the above: "candidates", "true", "auroc", "precision", "worst_rank" and "mean_rank" of the true ones."""
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
    """Of yes or no claims: "claimed" (share of all candidates), "claim_precision" (NaN without any), "claim_recall"."""
    right = float((claims & labels).sum())
    return {
        "claimed": float(claims.mean()) if len(claims) else float("nan"),
        "claim_precision": right / claims.sum() if claims.any() else float("nan"),
        "claim_recall": right / labels.sum() if labels.any() else float("nan"),
    }


def _known(scores: Scores) -> Scores:
    return np.where(np.isnan(scores), -np.inf, scores)
