"""Measures of induction heads, and of their overlap with the sharp ones.

The repeated-random-tokens test is run on parts of the sequences, so that every number
has a bootstrap interval over parts. Read :func:`table_5` first, then
:class:`HeadScores`, which holds the scores by part. The test itself is
:func:`tsfm_lens.probes.induction_scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.probes import head_entropy, induction_overlap, induction_scores
from tsfm_lens.probes.attention import SHARP_BELOW
from tsfm_lens.probes.induction import (
    COPY_FROM,
    GRIDS,
    PREFIX_FROM,
    frequent_tokens,
)
from tsfm_lens.studies.papers.context import Context, MeasuredValues, measure
from tsfm_lens.studies.papers.verdicts import (
    Resampled,
    Verdict,
    judged_together,
    percentiles,
)

MOTIF = 32
REPEATS = 4
BLOCKS = (
    16  # parts of the sequences, each with a draw of its own, that intervals are over
)
DRAWS = 1000


@measure("S3-PREF")
def induction_share(context: Context) -> MeasuredValues:
    """Count induction heads."""
    blocks = _blocks(context)
    full = _joined(blocks)
    settings = {
        **_repeated_settings(full),
        "intervals over": _parts_of_sequences(blocks),
    }
    result = MeasuredValues(settings=settings)
    result.add(
        "prefix-matching score from which a head matches", full.attrs["prefix_from"]
    )
    result.add("copy score from which a head copies", full.attrs["copy_from"])
    scores = HeadScores.of(blocks, [], context.seed)
    bounds = scores.span(
        lambda prefix, copy, _: 100 * inducing(prefix, copy).mean(1),
        (0.0, 100.0),
        sequences_only=True,
    )
    result.add("induction heads of all", 100 * float(full["induction"].mean()), *bounds)
    result.add("induction heads", full["induction"].sum())
    result.add("tokens copied rightly", 100 * float(full["copy_accuracy"]), unit="%")
    return result


@measure("S3-RRT")
def motif_tokens(context: Context) -> MeasuredValues:
    """List the tokens of the repeated-random-tokens test."""
    if not hasattr(context.model.adapter, "encode_tokens"):
        raise InputError(
            f"{context.model.model_id} has no value tokens; the repeated-random-tokens"
            " test is of Chronos"
        )
    ids = frequent_tokens(context.model)
    values = {
        "lowest token id": float(ids.min()),
        "highest token id": float(ids.max()),
        "tokens in a motif": float(MOTIF),
        "times it is shown": float(REPEATS),
    }
    vocabulary = context.model.adapter.settings.n_tokens  # type: ignore[attr-defined]
    return MeasuredValues(values, {"tokens of the vocabulary": str(vocabulary)})


@measure("S3-T5")
def table_5(context: Context) -> MeasuredValues:
    """Measure the overlap of induction and sharp heads."""
    overlap, scores, settings = _overlap(context)
    names = {
        "sharp below": "sharp_below",
        "prefix from": "prefix_from",
        "copy from": "copy_from",
    }
    limits = {word: f"{overlap.attrs[key]:g}" for word, key in names.items()}

    result = MeasuredValues(
        settings={**settings, **limits},
        claims={"better_than_random": overlap_verdict(scores)},
    )
    for name, value in overlap_values(overlap).items():
        result.add(
            name,
            value,
            *scores.span(
                lambda *arrays, name=name: proportions(*arrays)[name], (0.0, 1.0)
            ),
        )
    return result


def overlap_verdict(scores: HeadScores) -> Verdict:
    """Test that more of the induction heads are sharp than of all heads."""

    def beyond_chance(
        prefix: np.ndarray, copy: np.ndarray, entropy: np.ndarray
    ) -> np.ndarray:
        conditional, share = sharp_of_induction(prefix, copy, entropy)
        return conditional - share

    return judged_together(
        [scores.part("", "P(sharp | induction) less P(sharp)", beyond_chance)]
    )


@measure("S3-F23")
def thresholds(context: Context) -> MeasuredValues:
    """Measure the same overlap over thresholds, and correlations of the scores."""
    overlap, scores, settings = _overlap(context)
    result = MeasuredValues(settings=settings, claims=threshold_verdicts(scores))
    reverse = overlap["sweep_induction_given_sharp"].values
    finite = reverse[np.isfinite(reverse)]
    result.add(
        "P(induction | sharp), median over thresholds",
        np.median(finite) if len(finite) else np.nan,
    )
    for text, one, other in (
        ("prefix-matching and copy scores", "prefix_matching", "copy_score"),
        ("prefix-matching score and entropy", "prefix_matching", "normalised"),
        ("copy score and entropy", "copy_score", "normalised"),
    ):
        result.add(
            f"correlation of {text}",
            overlap["correlation"].sel(score=one, other_score=other),
        )
    return result


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


# --- the repeated-random-tokens test --------------------------------------------------


def _parts_of_sequences(blocks: Sequence[xr.Dataset]) -> str:
    return f"{len(blocks)} parts of the sequences, drawn with replacement {DRAWS} times"


def _repeated_settings(scores: xr.Dataset) -> dict[str, str]:
    names = {
        "motif": "motif",
        "repeats": "repeats",
        "decoding": "decoding",
        "sequences": "n_sequences",
    }
    positions = {
        "last": "the last decoder position",
        "first": "the position after the prompt",
        "all": "all positions",
    }
    return {
        **{word: str(scores.attrs[key]) for word, key in names.items()},
        "prefix matching looks at": (
            "the token after it" if scores.attrs["offset"] else "the instance itself"
        ),
        "scores are read at": positions[scores.attrs["positions"]],
    }


def _blocks(context: Context) -> list[xr.Dataset]:
    """Run the test on parts of the sequences."""
    count = min(BLOCKS, context.n_sequences)
    blocks = list[xr.Dataset]()
    failure = None
    for number, part in enumerate(
        np.array_split(np.arange(context.n_sequences), count)
    ):
        # a sum of both would give neighbouring seeds the same parts
        seed = int(np.random.SeedSequence((context.seed, number)).generate_state(1)[0])
        try:
            blocks.append(
                induction_scores(
                    context.model,
                    motif=MOTIF,
                    repeats=REPEATS,
                    n_sequences=len(part),
                    seed=seed,
                )
            )
        except InputError as error:
            # no sequence of this part rolled out to a token of its context; raised
            # below if that is so of all parts
            failure = error
        context.report("parts of the repeated tokens", number + 1, count)
    if failure is not None and not blocks:
        raise failure
    return blocks


def _joined(blocks: Sequence[xr.Dataset]) -> xr.Dataset:
    """Join parts of the sequences into one result."""
    sizes = xr.DataArray([block.attrs["n_sequences"] for block in blocks], dims="block")
    mean = (
        xr.concat([block.drop_vars("induction") for block in blocks], dim="block")
        .weighted(sizes)
        .mean("block")
    )
    mean["induction"] = (mean["prefix_matching"] >= PREFIX_FROM) & (
        mean["copy_score"] >= COPY_FROM
    )
    return mean.assign_attrs({**blocks[0].attrs, "n_sequences": int(sizes.sum())})


def _overlap(context: Context) -> tuple[xr.Dataset, HeadScores, dict[str, str]]:
    """Compute the overlap of induction and sharp heads.

    The scores behind it and the settings are returned too.
    """
    blocks = _blocks(context)
    full = _joined(blocks)
    labels = context.select_series(len(context.run.batch))
    parts = []
    windows = []
    # series by series, so that intervals can be over series; the weighted mean is that
    # of all windows
    for number, name in enumerate(names := list(dict.fromkeys(labels))):
        rows = [row for row, label in enumerate(labels) if label == name]
        parts.append(head_entropy(context.run.select(rows)))
        windows.append(len(rows))
        context.report("attention of every series", number + 1, len(names))
    weights = xr.DataArray(windows, dims="part")
    entropy = (
        xr.concat([part["entropy"] for part in parts], dim="part")
        .weighted(weights)
        .mean("part")
    )
    low = float(entropy.min())
    high = float(entropy.max())
    normalised = (entropy - low) / ((high - low) or 1.0)
    sharp = normalised < parts[0].attrs["sharp_below"]
    overlap = induction_overlap(
        full, parts[0].assign(entropy=entropy, normalised=normalised, sharp=sharp)
    )
    settings = {**_repeated_settings(full), **context.settings()}
    settings["intervals over"] += f" and {_parts_of_sequences(blocks)}"
    return overlap, HeadScores.of(blocks, parts, context.seed), settings


# --- scores of heads, over bootstrap samples ------------------------------------------


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Scores of heads, for each part of the data that they were measured on."""

    prefix: np.ndarray
    copy: np.ndarray
    entropy: np.ndarray
    seed: int

    @classmethod
    def of(
        cls, blocks: Sequence[xr.Dataset], entropies: Sequence[xr.Dataset], seed: int
    ) -> HeadScores:
        """Collect the scores of repeated-token results, and of head entropies.

        ``entropies`` may be empty.
        """

        def stack(results: Sequence[xr.Dataset], name: str) -> np.ndarray:
            return np.stack([result[name].values.ravel() for result in results])

        prefix, copy = (
            stack(blocks, name) for name in ("prefix_matching", "copy_score")
        )
        return cls(
            prefix,
            copy,
            (
                stack(entropies, "entropy")
                if entropies
                else np.zeros((1, prefix.shape[1]))
            ),
            seed,
        )

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
    ) -> Resampled:
        """Build a part of a claim from a function of three (draw, head) arrays.

        The arrays are the prefix-matching score, the copy score and the normalised
        entropy.
        """
        margins = quantity(*self.bootstrap_means)
        if sequences_only:
            units = len(self.prefix)
        else:
            units = min(len(self.prefix), len(self.entropy))
        return Resampled(words, of, float(margins[0]), margins[1:], units)

    def span(
        self,
        quantity: Callable[..., np.ndarray],
        bounds: tuple[float, float],
        *,
        sequences_only: bool = False,
    ) -> tuple[float, float]:
        """Return the 95 % interval of a quantity within its bounds.

        It is NaN where the quantity has too few parts.
        """
        part = self.part("", "", quantity, sequences_only=sequences_only)
        interval, _ = percentiles(part, bounds)
        return interval.low, interval.high


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
    numbers = [
        mask.mean(1) for mask in (induction & sharp, induction & ~sharp, induction)
    ]
    numbers += [
        (~induction & sharp).mean(1),
        (~induction & ~sharp).mean(1),
        1 - induction.mean(1),
    ]
    numbers += [sharp.mean(1), 1 - sharp.mean(1)]
    numbers += [
        _shares(induction & sharp, induction),
        _shares(induction & sharp, sharp),
    ]
    return dict(zip(_TABLE_5, numbers, strict=True))


def overlap_values(overlap: xr.Dataset) -> dict[str, float]:
    """Extract table 5 from a result of :func:`tsfm_lens.probes.induction_overlap`."""
    cells = overlap["proportion"]
    numbers = []
    for state in ("induction", "other"):
        numbers += [
            cells.sel(induction_state=state, sharp_state=sharp)
            for sharp in ("sharp", "other")
        ]
        numbers.append(overlap["proportion_induction"].sel(induction_state=state))
    numbers += [
        overlap["proportion_sharp"].sel(sharp_state=state)
        for state in ("sharp", "other")
    ]
    numbers += [overlap["p_sharp_given_induction"], overlap["p_induction_given_sharp"]]
    return dict(zip(_TABLE_5, map(float, numbers), strict=True))


_TABLE_5 = (
    "proportion induction, sharp",
    "proportion induction, not sharp",
    "proportion induction",
    "proportion not induction, sharp",
    "proportion not induction, not sharp",
    "proportion not induction",
    "proportion sharp",
    "proportion not sharp",
    "P(sharp | induction)",
    "P(induction | sharp)",
)
