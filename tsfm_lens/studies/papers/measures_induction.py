"""Measures of induction: heads that copy what came before, and their overlap with the sharp ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.probes import head_entropy, induction_overlap, repeated_tokens
from tsfm_lens.probes.attention import SHARP_BELOW
from tsfm_lens.probes.induction import COPY_FROM, PREFIX_FROM, frequent_tokens
from tsfm_lens.probes.induction_overlap import ENTROPY_GRID
from tsfm_lens.studies.papers.measuring import Asked, Found
from tsfm_lens.studies.papers.values import BETTER_THAN_RANDOM, RELAXED, SCORES_GO_TOGETHER
from tsfm_lens.studies.papers.verdicts import Resampled, judged_together, percentiles

MOTIF, REPEATS = 32, 4
BLOCKS = 16  # parts of the sequences, each with a draw of its own, that intervals are over
DRAWS = 1000


def induction_share(request: Asked) -> Found:
    """Count induction heads (S3-PREF)."""
    blocks = _blocks(request)
    scores_of_heads = _together(blocks)
    scores = Scores.of(blocks, [], request.seed)
    low, high = scores.span(lambda prefix, copy, _: 100 * inducing(prefix, copy).mean(1), sequences_only=True)
    values = {
        "prefix-matching score from which a head matches": float(scores_of_heads.attrs["prefix_from"]),
        "copy score from which a head copies": float(scores_of_heads.attrs["copy_from"]),
        "induction heads of all": 100 * float(scores_of_heads["induction"].mean()),
        "induction heads": float(scores_of_heads["induction"].sum()),
        "tokens copied rightly": 100 * float(scores_of_heads["copy_accuracy"]),
    }
    settings = {**_repeated_settings(scores_of_heads), "intervals over": _parts_of_sequences(blocks)}
    intervals = {"induction heads of all": (low, high)} if np.isfinite(low) else {}
    return Found(values, settings, {"tokens copied rightly": "%"}, intervals)


def _parts_of_sequences(blocks: Sequence[xr.Dataset]) -> str:
    return f"{len(blocks)} parts of the sequences, drawn with replacement {DRAWS} times"


def _repeated_settings(scores: xr.Dataset) -> dict[str, str]:
    words = {"motif": "motif", "repeats": "repeats", "decoding": "decoding", "n_sequences": "sequences"}
    target = "the token after it" if scores.attrs["offset"] else "the instance itself"
    places = {"last": "the last decoder position", "first": "the position after the prompt", "all": "all positions"}
    scoring = {"prefix matching looks at": target, "scores are read at": places[scores.attrs["positions"]]}
    return {**{word: str(scores.attrs[key]) for key, word in words.items()}, **scoring}


def _blocks(request: Asked) -> list[xr.Dataset]:
    """Run the repeated-random-tokens test on parts of the sequences.

    Raises:
        InputError: the model cannot take it, or no sequence rolls out to a token of its context.
    """
    count = min(BLOCKS, request.n_sequences)
    sizes = [len(part) for part in np.array_split(np.arange(request.n_sequences), count)]
    blocks, failure = [], None
    for number, size in enumerate(sizes):
        seed = int(np.random.SeedSequence((request.seed, number)).generate_state(1)[0])
        try:
            blocks.append(repeated_tokens(request.model, motif=MOTIF, repeats=REPEATS, n_sequences=size, seed=seed))
        except InputError as error:
            # no sequence of this part rolled out to a token of its context; raised below if that is so of all parts
            failure = error
        request.tell("parts of the repeated tokens", number + 1, count)
    if failure is not None and not blocks:
        raise failure
    return blocks


def _together(blocks: Sequence[xr.Dataset]) -> xr.Dataset:
    """Join parts of the sequences into one result."""
    sizes = xr.DataArray([block.attrs["n_sequences"] for block in blocks], dims="block")
    scores = [block.drop_vars("induction") for block in blocks]
    mean = xr.concat(scores, dim="block").weighted(sizes).mean("block")
    mean["induction"] = (mean["prefix_matching"] >= PREFIX_FROM) & (mean["copy_score"] >= COPY_FROM)
    return mean.assign_attrs({**blocks[0].attrs, "n_sequences": int(sizes.sum())})


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of heads, for each part of the data that they were measured on.

    Attributes:
        prefix, copy: (block of sequences, head).
        entropy: (series, head).
        seed: of the draws.
    """

    prefix: np.ndarray
    copy: np.ndarray
    entropy: np.ndarray
    seed: int

    @classmethod
    def of(cls, blocks: Sequence[xr.Dataset], entropies: Sequence[xr.Dataset], seed: int) -> Scores:
        """Collect the scores of repeated-token results, and of head entropies, if there are any."""

        def stack(results: Sequence[xr.Dataset], name: str) -> np.ndarray:
            return np.stack([result[name].values.ravel() for result in results])

        prefix, copy = (stack(blocks, name) for name in ("prefix_matching", "copy_score"))
        return cls(prefix, copy, stack(entropies, "entropy") if entropies else np.zeros((1, prefix.shape[1])), seed)

    @cached_property
    def bootstrap_means(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means (draw, head) over blocks and over series, both drawn with replacement; first over all."""
        rng = np.random.default_rng(self.seed)

        def weights(units: int) -> np.ndarray:
            often = rng.multinomial(units, np.full(units, 1 / units), size=DRAWS) / units
            return np.concatenate([np.full((1, units), 1 / units), often])

        of_blocks = weights(len(self.prefix))
        entropy = weights(len(self.entropy)) @ self.entropy
        low, high = entropy.min(1, keepdims=True), entropy.max(1, keepdims=True)
        return of_blocks @ self.prefix, of_blocks @ self.copy, (entropy - low) / np.where(high > low, high - low, 1.0)

    def part(
        self, words: str, of: str, measure: Callable[..., np.ndarray], *, sequences_only: bool = False
    ) -> Resampled:
        """Build a part of a claim from a function of three (draw, head) arrays: prefix, copy, normalised entropy."""
        margins = measure(*self.bootstrap_means)
        units = len(self.prefix) if sequences_only else min(len(self.prefix), len(self.entropy))
        return Resampled(words, of, float(margins[0]), margins[1:], units)

    def span(self, measure: Callable[..., np.ndarray], *, sequences_only: bool = False) -> tuple[float, float]:
        """Return the 95 % interval of a quantity; NaN where there are too few parts for one."""
        interval, _ = percentiles(self.part("", "", measure, sequences_only=sequences_only))
        return interval.low, interval.high


def inducing(prefix: np.ndarray, copy: np.ndarray) -> np.ndarray:
    """Mark the induction heads among (draw, head) scores."""
    return (prefix >= PREFIX_FROM) & (copy >= COPY_FROM)


def correlations(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Compute Pearson's correlation (draw,), over heads, of two (draw, head) scores; NaN of a constant."""
    a, b = (values - values.mean(1, keepdims=True) for values in (one, other))
    size = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return np.divide((a * b).sum(1), size, out=np.full(len(a), np.nan), where=size > 0)


def sharp_of_induction(
    prefix: np.ndarray, copy: np.ndarray, entropy: np.ndarray, below: float = SHARP_BELOW
) -> tuple[np.ndarray, np.ndarray]:
    """Compute (draw,) P(sharp | induction), NaN without induction heads, and P(sharp), of (draw, head) scores."""
    induction, sharp = inducing(prefix, copy), entropy < below
    return _shares(induction & sharp, induction), sharp.mean(1)


def _shares(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Compute (draw,) the share of some heads (draw, head) that are others too, NaN where there are none."""
    count = whole.sum(1)
    return np.divide(part.sum(1), count, out=np.full(len(count), np.nan), where=count > 0)


def proportions(prefix: np.ndarray, copy: np.ndarray, entropy: np.ndarray) -> dict[str, np.ndarray]:
    """Compute (draw,) each number of table 5, of (draw, head) scores."""
    induction, sharp = inducing(prefix, copy), entropy < SHARP_BELOW
    return {
        "proportion induction, sharp": (induction & sharp).mean(1),
        "proportion induction, not sharp": (induction & ~sharp).mean(1),
        "proportion induction": induction.mean(1),
        "proportion not induction, sharp": (~induction & sharp).mean(1),
        "proportion not induction, not sharp": (~induction & ~sharp).mean(1),
        "proportion not induction": 1 - induction.mean(1),
        "proportion sharp": sharp.mean(1),
        "proportion not sharp": 1 - sharp.mean(1),
        "P(sharp | induction)": _shares(induction & sharp, induction),
        "P(induction | sharp)": _shares(induction & sharp, sharp),
    }


def most_sharp(prefix: np.ndarray, copy: np.ndarray, entropy: np.ndarray) -> np.ndarray:
    """Return (draw,) the largest P(sharp | induction) at thresholds that call fewer than half of all heads sharp."""
    largest = np.full(len(prefix), -np.inf)
    for below in ENTROPY_GRID:
        conditional, share = sharp_of_induction(prefix, copy, entropy, below)
        largest = np.where(share < 0.5, np.maximum(largest, conditional), largest)
    return np.where(np.isfinite(largest), largest, np.nan)


def _overlap(request: Asked) -> tuple[xr.Dataset, Scores, dict[str, str]]:
    """Compute the overlap of induction and sharp heads; return the scores behind it and the settings, too."""
    blocks = _blocks(request)
    scores = _together(blocks)
    labels = request.series_of(len(request.run.batch))
    parts, windows = [], []
    for number, name in enumerate(names := list(dict.fromkeys(labels))):
        rows = [row for row, label in enumerate(labels) if label == name]
        parts.append(head_entropy(request.run.select(rows)))
        windows.append(len(rows))
        request.tell("attention of every series", number + 1, len(names))
    overlap = induction_overlap(scores, _mean_entropy(parts, windows))
    settings = {**_repeated_settings(scores), **request.settings()}
    settings["intervals over"] += f" and {_parts_of_sequences(blocks)}"
    return overlap, Scores.of(blocks, parts, request.seed), settings


def _mean_entropy(parts: list[xr.Dataset], windows: list[int]) -> xr.Dataset:
    """Average entropies of parts of the windows to those of all windows."""
    weights = xr.DataArray(windows, dims="part")
    entropy = xr.concat([part["entropy"] for part in parts], dim="part").weighted(weights).mean("part")
    low, high = float(entropy.min()), float(entropy.max())
    normalised = (entropy - low) / ((high - low) or 1.0)
    return parts[0].assign(entropy=entropy, normalised=normalised, sharp=normalised < parts[0].attrs["sharp_below"])


def motif_tokens(request: Asked) -> Found:
    """List the tokens of the repeated-random-tokens test (S3-RRT)."""
    if not hasattr(request.model.adapter, "encode_tokens"):
        raise InputError(f"{request.model.model_id} has no value tokens; the repeated-random-tokens test is of Chronos")
    ids = frequent_tokens(request.model)
    values = {
        "lowest token id": float(ids.min()),
        "highest token id": float(ids.max()),
        "tokens in a motif": float(MOTIF),
        "times it is shown": float(REPEATS),
    }
    return Found(values, {"tokens of the vocabulary": str(request.model.adapter.settings.n_tokens)})  # type: ignore[attr-defined]


def overlap_values(overlap: xr.Dataset) -> dict[str, float]:
    """Extract table 5 from a result of :func:`tsfm_lens.probes.induction_overlap`."""
    table = overlap["proportion"]

    def cell(induction: str, sharp: str) -> float:
        return float(table.sel(induction_state=induction, sharp_state=sharp))

    return {
        "proportion induction, sharp": cell("induction", "sharp"),
        "proportion induction, not sharp": cell("induction", "other"),
        "proportion induction": float(overlap["proportion_induction"].sel(induction_state="induction")),
        "proportion not induction, sharp": cell("other", "sharp"),
        "proportion not induction, not sharp": cell("other", "other"),
        "proportion not induction": float(overlap["proportion_induction"].sel(induction_state="other")),
        "proportion sharp": float(overlap["proportion_sharp"].sel(sharp_state="sharp")),
        "proportion not sharp": float(overlap["proportion_sharp"].sel(sharp_state="other")),
        "P(sharp | induction)": float(overlap["p_sharp_given_induction"]),
        "P(induction | sharp)": float(overlap["p_induction_given_sharp"]),
    }


def table_5(request: Asked) -> Found:
    """Measure the overlap of induction and sharp heads (S3-T5)."""
    overlap, scores, settings = _overlap(request)
    names = {"sharp below": "sharp_below", "prefix from": "prefix_from", "copy from": "copy_from"}
    limits = {word: f"{overlap.attrs[key]:g}" for word, key in names.items()}

    def beyond_chance(prefix: np.ndarray, copy: np.ndarray, entropy: np.ndarray) -> np.ndarray:
        conditional, share = sharp_of_induction(prefix, copy, entropy)
        return conditional - share

    verdict = judged_together([scores.part("", "P(sharp | induction) less P(sharp)", beyond_chance)])
    values = overlap_values(overlap)
    spans = {name: scores.span(lambda *arrays, name=name: proportions(*arrays)[name]) for name in values}
    intervals = {name: ends for name, ends in spans.items() if np.isfinite(ends[0])}
    return Found(values, {**settings, **limits}, intervals=intervals, claims={BETTER_THAN_RANDOM: verdict})


def _correlation(overlap: xr.Dataset, one: str, other: str) -> float:
    return float(overlap["correlation"].sel(score=one, other_score=other))


def thresholds(request: Asked) -> Found:
    """Measure the same overlap over thresholds, and correlations of the scores (S3-F23)."""
    overlap, scores, settings = _overlap(request)
    rise, fall = "correlation over heads", "correlation over heads, its sign turned"
    together = judged_together(
        [
            scores.part(
                "prefix-matching and copy scores rise together",
                rise,
                lambda prefix, copy, _: correlations(prefix, copy),
                sequences_only=True,
            ),
            scores.part("the prefix-matching score falls with entropy", fall, lambda p, _, e: -correlations(p, e)),
            scores.part("the copy score falls with entropy", fall, lambda _, copy, e: -correlations(copy, e)),
        ]
    )
    relaxation = scores.part(
        "with fewer than half of all heads called sharp, half of the induction heads are",
        "largest P(sharp | induction) less 0.5",
        lambda *arrays: most_sharp(*arrays) - 0.5,
    )
    reverse = overlap["sweep_induction_given_sharp"].values
    finite = reverse[np.isfinite(reverse)]
    prefix, copy, entropy = "prefix_matching", "copy_score", "normalised"
    values = {
        "P(induction | sharp), median over thresholds": float(np.median(finite)) if len(finite) else np.nan,
        "correlation of prefix-matching and copy scores": _correlation(overlap, prefix, copy),
        "correlation of prefix-matching score and entropy": _correlation(overlap, prefix, entropy),
        "correlation of copy score and entropy": _correlation(overlap, copy, entropy),
    }
    return Found(values, settings, claims={SCORES_GO_TOGETHER: together, RELAXED: judged_together([relaxation])})
