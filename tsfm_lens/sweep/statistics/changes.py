"""Significance of changes: paired bootstrap intervals, clustered by dataset, and Holm's correction.

An ablated model is compared with the plain one on the same windows. Metrics are pooled by dataset, and averaged over
datasets by the geometric mean, so that any fixed normaliser of a dataset cancels in a change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.stats import expanded_interval, expanded_p, holm, replicates_for, two_stage_bootstrap
from tsfm_lens.sweep.statistics.pairing import Group, on_log_scale, pair
from tsfm_lens.sweep.statistics.pooling import LARGEST, METRICS, PLAIN, as_series_sums

__all__ = ["changes", "dataset_changes", "difference", "resilience"]

DatasetTreatment = Literal["sampled", "fixed"]


def changes(
    frame: pd.DataFrame,
    *,
    plain: str = PLAIN,
    metric: str = "MASE",
    confidence: float = 0.95,
    replicates: int = 2000,
    seed: int = 0,
    family: str | Mapping[str, str] | None = None,
    datasets: DatasetTreatment = "sampled",
) -> pd.DataFrame:
    """Test how much each variant changes a metric, with an interval and a correction for the number of tests.

    Both sides are pooled over the same windows of the same series. A replicate draws datasets with replacement, and
    from each the series with replacement, the same for both sides and all variants; with one dataset the series only.
    Terms and frequencies of one GIFT-Eval source hold the same observations, so they are drawn together and count once.
    Interval and p-value are percentiles of the replicates' log change, widened for few sources
    (:func:`.expanded_interval`, :func:`.expanded_p`). Windows of a series stay together, so that a single series has
    no interval.

    Args:
        frame: stored rows, or `per_series` of them.
        plain: id of the variant to compare with.
        metric: one of METRICS, or of DISTANCES.
        confidence: of the interval; a change stands if its corrected p-value is below 1 - confidence.
        replicates: of the bootstrap, at least. A family of many tests takes as many as it needs for one of them to
            stand, where that is not out of reach: no p-value is below 2 / (replicates + 1).
        seed: of the bootstrap.
        family: column of the frame, or mapping by variant, that names the family of tests; Holm's correction is
            within a model and family, and without one over all variants of a model.
        datasets: "sampled" speaks about datasets like these, "fixed" about other series of these datasets: no
            dataset is drawn or left out.

    Returns:
        A row for each model and variant: ``value`` and ``baseline``, geometric means over datasets; ``change``,
        value / baseline - 1, with ``lower`` and ``upper``; ``p_value``, ``p_holm``, ``stands``; ``leads``, "highest"
        or "lowest" for the variant whose value is above or below that of every other one of its family (paired, after
        Holm over the others), else ""; ``tests`` of the family and ``replicates``; ``n_datasets``, ``n_series``;
        ``n_unpaired``, series that the variant lacks or has in part, which are in neither side; ``left_out``, datasets
        without a usable metric on both sides; ``method``, the test in words. For a distance value is the mean over
        datasets of the mean over windows, lower and upper are the interval of it, and baseline, change and p-values
        are NaN: a distance to the plain forecast is never negative, so that nothing is tested. With fewer than 2
        series there is no interval.

    Source:
        S3-AGG of the measurements index; Davison & Hinkley 1997, sections 2.4 and 3.8; Holm 1979.

    Raises:
        InputError: an argument is out of range, or columns are missing.
        UnknownNameError: no such metric, family column or plain variant.
    """
    families = _families(frame, family)
    bootstrap = _Bootstrap(metric, confidence, replicates, seed, datasets)
    rows: list[dict[str, Any]] = []
    for pairs in pair(as_series_sums(frame, [metric]), metric, plain):
        of = {variant: families.get(variant, "") for variant in pairs.variants}
        sizes = Counter(of.values())
        for group in pairs.groups():
            rows += [{"model": pairs.model, **row} for row in _compare(group, bootstrap, of, sizes)]
    if not rows:
        raise InputError(f"there is no variant beside {plain!r}, so there is no change to report")
    out = pd.DataFrame(rows).sort_values(["model", "variant"], ignore_index=True)
    out["p_holm"] = holm(out["p_value"].to_numpy(), list(zip(out["model"], out["family"], strict=True)))
    out["stands"] = out["p_holm"] < 1 - confidence
    return out[_COLUMNS]


_COLUMNS = [
    *("model", "variant", "family", "metric", "value", "baseline", "change", "lower", "upper", "p_value", "p_holm"),
    *("stands", "leads", "tests", "replicates", "n_datasets", "n_series", "n_unpaired", "left_out", "method"),
]
_MOST_WORK = 1e11  # products of a family's replicates with all series and variants; more take longer than a minute


@dataclass(frozen=True)
class _Bootstrap:
    """Resampling of groups; see :func:`changes`."""

    metric: str
    confidence: float
    replicates: int
    seed: int
    datasets: str

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence must be between 0 and 1, got {self.confidence}")
        if self.replicates < 100:
            raise InputError(f"an interval needs at least 100 replicates, got {self.replicates}")
        if self.datasets not in ("sampled", "fixed"):
            raise unknown_name("treatment of datasets", self.datasets, ("sampled", "fixed"))

    def units(self, group: Group) -> int:
        """Count the units that are resampled: sources, or series; fewer than 2 allow no interval."""
        n = len(set(group.sources))
        if n > 1 and self.datasets == "sampled":
            return n
        # each fixed source has a mean of its own, which costs a degree of freedom
        return group.independent_series - n + 1 if n else 0

    def enough(self, group: Group, tests: int) -> _Bootstrap:
        """Return the bootstrap with replicates for one of so many tests to stand, or as many as can be drawn."""
        possible = int(_MOST_WORK / max(group.n_series * len(group.variants), 1))
        return replace(self, replicates=max(self.replicates, min(replicates_for(tests, self.confidence), possible)))

    def draws(self, group: Group) -> np.ndarray:
        """Resample the log change of a metric, or a distance, (replicate, variant)."""
        return two_stage_bootstrap(
            group.variant_sums,
            group.plain if self.metric in METRICS else None,
            on_log_scale(self.metric),
            replicates=self.replicates,
            seed=self.seed,
            sampled=self.datasets == "sampled",
            sources=group.sources,
        )

    def words(self, group: Group, units: int) -> str:
        """Describe the test."""
        n, sources = len(group.datasets), len(set(group.sources))
        if units < 2:
            return (
                f"no interval: {group.n_series} series in {n} datasets leave nothing to resample, and windows of one "
                "series are not independent"
            )
        what = "two-sided paired bootstrap test" if self.metric in METRICS else "bootstrap"
        of = "" if sources == n else f" of {sources} {'source' if sources == 1 else 'sources'}"
        if sources == 1:
            how = f"over {group.independent_series} series of {f'{n} datasets' if of else 'one dataset'}{of}"
        elif self.datasets == "fixed":
            how = f"over {group.independent_series} series within {n} fixed datasets{of}"
        else:
            how = f"over {n} datasets{of} and within them over {group.n_series} series"
        return f"{what} {how}; {100 * self.confidence:g} % percentile interval, widened for {units} units"


def _families(frame: pd.DataFrame, family: str | Mapping[str, str] | None) -> dict[str, str]:
    if family is None:
        return {}
    if not isinstance(family, str):
        return {str(variant): str(name) for variant, name in family.items()}
    if family not in frame:
        raise unknown_name("column of families", family, frame.columns)
    table = frame[["variant", family]].drop_duplicates()
    if table["variant"].duplicated().any():
        twice = table.loc[table["variant"].duplicated(), "variant"].iloc[0]
        raise InputError(f"variant {twice!r} is in more than one {family}; call `changes` once per family, or `holm`")
    return {str(v): str(name) for v, name in zip(table["variant"], table[family], strict=True)}


def _compare(
    group: Group, bootstrap: _Bootstrap, families: Mapping[str, str], sizes: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return a row for each variant of a group."""
    metric, units = bootstrap.metric, bootstrap.units(group)
    names = [families[variant] for variant in group.variants]
    bootstrap = bootstrap.enough(group, max(sizes[name] for name in names))
    value, baseline = _figures(group, metric)
    ends, p = np.full((2, len(value)), np.nan), np.full(len(value), np.nan)
    leads = [""] * len(value)
    if units >= 2:
        draws = bootstrap.draws(group)
        ends, p = expanded_interval(draws, bootstrap.confidence, units), expanded_p(draws, units)
        for name in dict.fromkeys(names):
            members = [v for v, family in enumerate(names) if family == name]
            # one that is measured on other series cannot be compared
            if len(members) == sizes[name]:
                for place, side in _leading(draws[:, members], value[members], units, bootstrap.confidence).items():
                    leads[members[place]] = side
    log = metric in METRICS
    ends = np.exp(ends) - 1 if log else np.clip(ends, 0.0, LARGEST[metric])
    table = pd.DataFrame(
        {
            "variant": group.variants,
            "family": names,
            "tests": [sizes[name] for name in names],
            "leads": leads,
            "value": value,
            "baseline": baseline if log else np.nan,
            "change": value / baseline - 1 if log else np.nan,
            "lower": ends[0],
            "upper": ends[1],
            "p_value": p if log else np.nan,
        }
    ).assign(
        metric=metric,
        replicates=bootstrap.replicates,
        n_datasets=len(group.datasets),
        n_series=group.n_series,
        n_unpaired=group.n_unpaired,
        method=bootstrap.words(group, units),
    )
    return [{str(k): v for k, v in row.items()} | {"left_out": tuple(group.absent)} for row in table.to_dict("records")]


def _leading(distribution: np.ndarray, value: np.ndarray, units: int, confidence: float) -> dict[int, str]:
    """Map the place of each variant that differs from every other one to "highest" or "lowest"."""
    leaders: dict[int, str] = {}
    finite = np.flatnonzero(np.isfinite(value) & np.isfinite(distribution).all(axis=0))
    if len(finite) < 2:
        return leaders
    for side, best in (("highest", np.argmax), ("lowest", np.argmin)):
        first = finite[best(value[finite])]
        others = finite[finite != first]
        p = expanded_p(distribution[:, others] - distribution[:, [first]], units)
        if holm(p).max() < 1 - confidence:
            leaders[int(first)] = side
    return leaders


def _figures(group: Group, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Compute (variant,) value and baseline over all datasets of a group, NaN if it has none."""
    n = len(group.variants)
    if not group.datasets:
        return np.full(n, np.nan), np.full(n, np.nan)
    value, baseline = (each.mean(axis=1) for each in group.by_dataset(metric))
    if metric in METRICS:
        value, baseline = np.exp(value), np.exp(baseline)
    return value, np.broadcast_to(baseline, n)


def difference(
    frame: pd.DataFrame,
    informed: str,
    random_variants: Sequence[str],
    *,
    model: str | None = None,
    plain: str = PLAIN,
    metric: str = "MASE",
    confidence: float = 0.95,
    replicates: int = 2000,
    seed: int = 0,
    datasets: DatasetTreatment = "sampled",
) -> pd.Series:
    """Test the change of an informed choice minus the mean change of random choices.

    Both are measured on the same draws of datasets and series. In each replicate the random variants are drawn with
    replacement too, so that the interval speaks about random choices in general. All variants are compared where all
    have results.

    Args:
        frame, plain, metric, confidence, replicates, seed, datasets: as for `changes`; a metric, not a distance.
        informed: id of the variant whose components were chosen.
        random_variants: ids of the variants with components chosen at random, each with a seed of its own.
        model: name of the model, if the frame has several.

    Returns:
        ``model``, ``change_informed``, ``change_random`` (mean), ``difference``, ``lower``, ``upper``, ``p_value``,
        ``n_random``, ``n_datasets``, ``n_series``, ``left_out``, ``method``. Intervals are widened for the smaller
        of the numbers of datasets and random variants; one random variant is taken as it is, and the words say so.

    Raises:
        InputError: several models and none named, no random variants, or an argument out of range.
        UnknownNameError: no such model, variant or metric.
    """
    bootstrap = _Bootstrap(metric, confidence, replicates, seed, datasets)
    _only_metrics(metric)
    random_ids = list(dict.fromkeys(random_variants))
    if not random_ids or informed in random_ids:
        raise InputError(f"random variants other than {informed!r} are needed to compare it with, got {random_ids}")
    sums = as_series_sums(frame, [metric])
    models = sorted(str(name) for name in sums["model"].unique() if name)
    if model is None and len(models) > 1:
        raise InputError(f"results of several models, {models}: name one as model=")
    sums = sums[sums["model"] == (models[0] if model is None else model)]
    variants = set(sums["variant"].astype(str))
    for name in (informed, *random_ids):
        if name not in variants:
            raise unknown_name("variant", name, sorted(variants), hint="It has no results of this model.")
    rows = sums[sums["variant"].isin([plain, informed, *random_ids])]
    group = next(next(pair(rows, metric, plain)).groups(together=True))
    order = [group.variants.index(name) for name in (informed, *random_ids)]
    value, baseline = _figures(group, metric)
    change = (value / baseline - 1)[order]
    units = bootstrap.units(group)
    ends, p = np.full((2, 1), np.nan), np.full(1, np.nan)
    words = bootstrap.words(group, units)
    if units >= 2:
        n = len(random_ids)
        samples = (np.exp(bootstrap.draws(group)) - 1)[:, order]
        picks = np.random.default_rng([seed, n]).integers(n, size=(replicates, n))
        differences = (samples[:, 0] - np.take_along_axis(samples[:, 1:], picks, axis=1).mean(axis=1))[:, None]
        units = min(units, n) if n > 1 else units
        ends, p = expanded_interval(differences, confidence, units), expanded_p(differences, units)
        words = bootstrap.words(group, units)
        words += f"; {n} random variants drawn too" if n > 1 else "; one random variant, taken as it is"
    return pd.Series(
        {
            "model": str(sums["model"].iloc[0]),
            "change_informed": change[0],
            "change_random": change[1:].mean(),
            "difference": change[0] - change[1:].mean(),
            "lower": ends[0, 0],
            "upper": ends[1, 0],
            "p_value": p[0],
            "n_random": len(random_ids),
            "n_datasets": len(group.datasets),
            "n_series": group.n_series,
            "left_out": tuple(group.absent),
            "method": words,
        }
    )


def dataset_changes(frame: pd.DataFrame, *, plain: str = PLAIN, metric: str = "MASE") -> pd.DataFrame:
    """Compute the change of a metric on each dataset by itself, over the windows that both sides have.

    Args:
        frame, plain, metric: as for :func:`changes`; a metric, not a distance.

    Returns:
        A row for each model, variant and dataset: ``value``, ``baseline``, ``change``; NaN where left out.
    """
    _only_metrics(metric)
    rows: list[dict[str, Any]] = []
    for pairs in pair(as_series_sums(frame, [metric]), metric, plain):
        for group in pairs.groups():
            value, baseline = map(np.exp, group.by_dataset(metric))
            for v, variant in enumerate(group.variants):
                key = {"model": pairs.model, "variant": variant}
                for d, name in enumerate(group.datasets):
                    rows.append({**key, "dataset": name, "value": value[v, d], "baseline": baseline[0, d]})
                rows += [{**key, "dataset": name} for name in group.absent]
    columns = ["model", "variant", "dataset", "value", "baseline"]
    table = pd.DataFrame(rows, columns=columns).sort_values(columns[:3], ignore_index=True)
    return table.assign(change=table["value"] / table["baseline"] - 1)


def _only_metrics(metric: str) -> None:
    """Refuse distances, which have no baseline."""
    if metric not in METRICS:
        raise unknown_name("metric", metric, METRICS, hint="A distance has no baseline to change from.")


def resilience(
    frame: pd.DataFrame, *, plain: str = PLAIN, metric: str = "MASE", tolerance: float = 0.05
) -> pd.DataFrame:
    """Count the datasets on which a variant does little harm, and those on which it does good.

    Args:
        frame, plain, metric: as for `dataset_changes`.
        tolerance: the rise below which a dataset counts as resilient; an improved one does too.

    Returns:
        A row for each model and variant: ``n_resilient``, ``n_improved``, ``n_datasets`` with a change,
        ``n_left_out`` without.

    Source:
        S3-AGG of the measurements index (N_resilient, N_improved).
    """
    table = dataset_changes(frame, plain=plain, metric=metric)
    change = table["change"]
    flags = table.assign(
        n_resilient=change < tolerance, n_improved=change < 0, n_datasets=change.notna(), n_left_out=change.isna()
    )
    names = ["n_resilient", "n_improved", "n_datasets", "n_left_out"]
    return flags.groupby(["model", "variant"], sort=True)[names].sum().astype(int).reset_index()
