"""Counts of induction heads, and a test of how the scores of heads go together.

Read :class:`HeadScores` first, which holds the scores of heads by part of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tsfm_lens.core.stats import ratio
from tsfm_lens.probes.attention import SHARP_BELOW
from tsfm_lens.probes.induction import COPY_FROM, PREFIX_FROM
from tsfm_lens.studies.papers.verdicts import (
    Tested,
    Verdict,
    judged_together,
    resampled,
)

DRAWS = 1000


def joint_verdict(scores: HeadScores) -> Verdict:
    """Test that both scores of heads rise together and fall with entropy (S3-F23)."""
    fall = "correlation over heads, its sign turned"
    parts = [
        scores.part(
            "prefix-matching and copy scores rise together",
            "correlation over heads",
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
    return judged_together(parts)


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
    """Mark the induction heads among scores (…, head)."""
    return (prefix >= PREFIX_FROM) & (copy >= COPY_FROM)


def correlations(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Compute Pearson's correlation (draw,), over heads, of two (draw, head) scores.

    It is NaN where a score is constant.
    """
    a, b = (values - values.mean(1, keepdims=True) for values in (one, other))
    size = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return np.divide((a * b).sum(1), size, out=np.full(len(a), np.nan), where=size > 0)


def proportions(
    prefix: np.ndarray, copy: np.ndarray, entropy: np.ndarray
) -> dict[str, Any]:
    """Compute each number of table 5 from (head,) scores."""
    induction = inducing(prefix, copy)
    sharp = entropy < SHARP_BELOW
    both = induction & sharp
    return {
        "proportion induction, sharp": both.mean(),
        "proportion induction, not sharp": (induction & ~sharp).mean(),
        "proportion induction": induction.mean(),
        "proportion not induction, sharp": (~induction & sharp).mean(),
        "proportion not induction, not sharp": (~induction & ~sharp).mean(),
        "proportion not induction": 1 - induction.mean(),
        "proportion sharp": sharp.mean(),
        "proportion not sharp": 1 - sharp.mean(),
        "P(sharp | induction)": ratio(both.sum(), induction.sum()),
        "P(induction | sharp)": ratio(both.sum(), sharp.sum()),
    }
