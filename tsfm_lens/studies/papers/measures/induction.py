"""Tests of claims on induction heads, and on their overlap with the sharp ones.

Read :class:`HeadScores` first, which holds the scores of heads by part of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tsfm_lens.probes.attention import SHARP_BELOW
from tsfm_lens.probes.induction import COPY_FROM, GRIDS, PREFIX_FROM
from tsfm_lens.studies.papers.verdicts import (
    Tested,
    Verdict,
    judged_together,
    resampled,
)

DRAWS = 1000


def overlap_verdict(scores: HeadScores) -> Verdict:
    """Test that more of the induction heads are sharp than of all heads."""
    part = scores.part(
        "",
        "P(sharp | induction) less P(sharp)",
        lambda *arrays: np.subtract(*sharp_of_induction(*arrays)),
    )
    return judged_together([part])


def threshold_verdicts(scores: HeadScores) -> dict[str, Verdict]:
    """Test the claims of figure 23 on scores of heads."""
    rise = "correlation over heads"
    fall = "correlation over heads, its sign turned"
    together = [
        scores.part(
            "prefix-matching and copy scores rise together",
            rise,
            lambda prefix, copy, _: correlations(prefix, copy),
            sequences_only=True,
        ),
        scores.part(
            "the prefix-matching score falls with entropy",
            fall,
            lambda p, _, e: -correlations(p, e),
        ),
        scores.part(
            "the copy score falls with entropy",
            fall,
            lambda _, copy, e: -correlations(copy, e),
        ),
    ]
    relaxed = scores.part(
        "with fewer than half of all heads called sharp, half of the induction"
        " heads are",
        "largest P(sharp | induction) less 0.5",
        lambda *arrays: most_sharp(*arrays) - 0.5,
    )
    return {
        "scores_go_together": judged_together(together),
        "relaxed": judged_together([relaxed]),
    }


# --- scores of heads, over bootstrap samples ------------------------------------------


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Scores of heads, for each part of the data that they were measured on."""

    prefix: np.ndarray
    copy: np.ndarray
    entropy: np.ndarray
    seed: int

    @cached_property
    def bootstrap_means(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means (draw, head) over blocks and over series, both drawn with replacement.

        The first row is the mean over all, without drawing.
        """
        rng = np.random.default_rng(self.seed)

        def weights(units: int) -> np.ndarray:
            often = (
                rng.multinomial(units, np.full(units, 1 / units), size=DRAWS) / units
            )
            return np.concatenate([np.full((1, units), 1 / units), often])

        of_blocks = weights(len(self.prefix))
        entropy = weights(len(self.entropy)) @ self.entropy
        low = entropy.min(1, keepdims=True)
        high = entropy.max(1, keepdims=True)
        return (
            of_blocks @ self.prefix,
            of_blocks @ self.copy,
            (entropy - low) / np.where(high > low, high - low, 1.0),
        )

    def part(
        self,
        words: str,
        of: str,
        quantity: Callable[..., np.ndarray],
        *,
        sequences_only: bool = False,
    ) -> Tested:
        """Build a part of a claim from a function of three (draw, head) arrays.

        The arrays are the prefix-matching score, the copy score and the normalised
        entropy.
        """
        margins = quantity(*self.bootstrap_means)
        if sequences_only:
            units = len(self.prefix)
        else:
            units = min(len(self.prefix), len(self.entropy))
        return resampled(words, of, float(margins[0]), margins[1:], units)


def inducing(prefix: np.ndarray, copy: np.ndarray) -> np.ndarray:
    """Mark the induction heads among (draw, head) scores."""
    return (prefix >= PREFIX_FROM) & (copy >= COPY_FROM)


def correlations(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Compute Pearson's correlation (draw,), over heads, of two (draw, head) scores.

    It is NaN where a score is constant.
    """
    a, b = (values - values.mean(1, keepdims=True) for values in (one, other))
    size = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return np.divide((a * b).sum(1), size, out=np.full(len(a), np.nan), where=size > 0)


def _shares(subset: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Compute (draw,) the share of the heads in ``group`` that are also in ``subset``.

    Both are (draw, head) masks; the share is NaN where no head is in ``group``.
    """
    count = group.sum(1)
    return np.divide(
        subset.sum(1), count, out=np.full(len(count), np.nan), where=count > 0
    )


def sharp_of_induction(
    prefix: np.ndarray,
    copy: np.ndarray,
    entropy: np.ndarray,
    below: float = SHARP_BELOW,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute (draw,) P(sharp | induction) and P(sharp) from (draw, head) scores.

    The first is NaN without induction heads.
    """
    induction = inducing(prefix, copy)
    sharp = entropy < below
    return _shares(induction & sharp, induction), sharp.mean(1)


def most_sharp(prefix: np.ndarray, copy: np.ndarray, entropy: np.ndarray) -> np.ndarray:
    """Return (draw,) the largest P(sharp | induction) over thresholds of the entropy.

    Only thresholds that call fewer than half of all heads sharp count.
    """
    largest = np.full(len(prefix), -np.inf)
    for below in GRIDS["entropy_threshold"]:
        conditional, share = sharp_of_induction(prefix, copy, entropy, below)
        largest = np.where(share < 0.5, np.maximum(largest, conditional), largest)
    return np.where(np.isfinite(largest), largest, np.nan)


def proportions(
    prefix: np.ndarray, copy: np.ndarray, entropy: np.ndarray
) -> dict[str, np.ndarray]:
    """Compute (draw,) each number of table 5 from (draw, head) scores."""
    induction = inducing(prefix, copy)
    sharp = entropy < SHARP_BELOW
    both = induction & sharp
    return {
        "proportion induction, sharp": both.mean(1),
        "proportion induction, not sharp": (induction & ~sharp).mean(1),
        "proportion induction": induction.mean(1),
        "proportion not induction, sharp": (~induction & sharp).mean(1),
        "proportion not induction, not sharp": (~induction & ~sharp).mean(1),
        "proportion not induction": 1 - induction.mean(1),
        "proportion sharp": sharp.mean(1),
        "proportion not sharp": 1 - sharp.mean(1),
        "P(sharp | induction)": _shares(both, induction),
        "P(induction | sharp)": _shares(both, sharp),
    }
