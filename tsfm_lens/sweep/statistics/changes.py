"""Significance of changes: paired bootstrap intervals, clustered by dataset, and Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from tsfm_lens.data.gift_eval import source_of
from tsfm_lens.stats import Sums, expanded_interval, expanded_p, holm, replicates_for, two_stage_bootstrap
from tsfm_lens.sweep.statistics.scores import KEYS, LARGEST, METRICS, PLAIN, as_series_sums, formula

_MOST_WORK = 1e11  # products of a family's replicates with all series and variants; more take longer than a minute
# the count of steps without which a series has no part in a metric; n for the others
_COUNT_COLUMNS = {"MASE": "n_scaled", "MSIS": "n_interval"}


def changes(
    frame: pd.DataFrame, *, metric: str = "MASE", confidence: float = 0.95, replicates: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """Test how much each variant changes a metric against the plain model, paired on the same windows."""
    # Davison & Hinkley 1997, sections 2.4 and 3.8; Holm 1979
    parts = []
    for model, groups in _comparisons(frame, metric).items():
        tests = sum(len(group.variants) for group in groups)
        parts += [_compare(group, confidence, replicates, seed, tests).assign(model=model) for group in groups]
    out = pd.concat(parts).sort_values(["model", "variant"], ignore_index=True)
    out["p_holm"] = holm(out["p_value"].to_numpy(), out["model"].tolist())
    out["stands"] = out["p_holm"] < 1 - confidence
    return out


@dataclass(frozen=True, eq=False)
class _Group:
    """Variants, their sums and the plain model's on the same series; datasets without a comparison are absent."""

    metric: str
    variants: list[str]
    variant_sums: Sums
    plain: Sums
    datasets: list[str]
    absent: list[str]

    @cached_property
    def sources(self) -> list[int]:
        """Number of the source of each dataset: terms and frequencies of one GIFT-Eval set are of one source."""
        return pd.factorize(np.array(list(map(source_of, self.datasets)), dtype=object))[0].tolist()

    @property
    def independent_series(self) -> int:
        """Series that are not those of another dataset of the same source: of each source the most of a dataset."""
        sizes = [part.stop - part.start for part in self.variant_sums.datasets()] if self.datasets else []
        return int(pd.Series(sizes, dtype=int).groupby(self.sources).max().sum())

    @property
    def units(self) -> int:
        """Number of units that are resampled: sources, or series; fewer than 2 allow no interval."""
        n = len(set(self.sources))
        return n if n > 1 else self.independent_series

    def measure(self, *sums: np.ndarray) -> np.ndarray:
        """Compute what is averaged over datasets: the logarithm of a metric, a distance as it is."""
        value: np.ndarray = formula(self.metric)[1](*sums)
        return np.log(value) if self.metric in METRICS else value

    def by_dataset(self) -> tuple[np.ndarray, np.ndarray]:
        """Measure each dataset, (variant, dataset), and the plain model on it."""
        if not self.datasets:
            return np.empty((len(self.variants), 0)), np.empty((1, 0))
        value, baseline = (self.measure(*side.by_dataset()) for side in (self.variant_sums, self.plain))
        return value, baseline

    def figures(self) -> tuple[np.ndarray, np.ndarray]:
        """Compute (variant,) value and baseline over all datasets, NaN if there are none."""
        if not self.datasets:
            return np.full(len(self.variants), np.nan), np.full(len(self.variants), np.nan)
        value, baseline = (each.mean(axis=1) for each in self.by_dataset())
        if self.metric in METRICS:
            value, baseline = np.exp(value), np.exp(baseline)
        return value, np.broadcast_to(baseline, len(value))

    def draws(self, replicates: int, seed: int) -> np.ndarray:
        """Resample the log change of a metric, or a distance, (replicate, variant)."""
        plain = self.plain if self.metric in METRICS else None
        return two_stage_bootstrap(
            self.variant_sums, plain, self.measure, replicates=replicates, seed=seed, sources=self.sources
        )

    def words(self, confidence: float) -> str:
        """Describe the test."""
        n, sources, series = len(self.datasets), len(set(self.sources)), self.variant_sums.n_series
        if self.units < 2:
            return (
                f"no interval: {series} series in {n} datasets leave nothing to resample, and windows of one series "
                "are not independent"
            )
        what = "two-sided paired bootstrap test" if self.metric in METRICS else "bootstrap"
        of = "" if sources == n else f" of {sources} source{'s' * (sources > 1)}"
        if sources == 1:
            how = f"over {self.independent_series} series of {f'{n} datasets' if of else 'one dataset'}{of}"
        else:
            how = f"over {n} datasets{of} and within them over {series} series"
        return f"{what} {how}; {100 * confidence:g} % percentile interval, widened for {self.units} units"


def _comparisons(frame: pd.DataFrame, metric: str, *, together: bool = False) -> dict[str, list[_Group]]:
    """Pair the variants of each model with its plain one, grouped by the series on which both (or all) are valid."""
    names = formula(metric)[0]
    count = _COUNT_COLUMNS.get(metric, f"n_{metric}" if metric not in METRICS else "n")
    same = ["n_rows", "windows", "n"]
    # the rest of the columns would be copied for nothing
    sums = as_series_sums(frame, [metric])[list(dict.fromkeys([*KEYS, *same, "n_invalid", *names, count]))]
    by_model: dict[str, list[_Group]] = {}
    for model, rows in sums.groupby("model", sort=True, observed=True):
        ids = sorted(map(str, rows["variant"].unique()))
        ids.remove(PLAIN)
        if not ids:
            continue
        wide = rows.drop(columns="model").set_index(["dataset", "item", "variant"]).unstack("variant", fill_value=0)
        wide = wide[wide["n_rows", PLAIN] > 0]
        base = {name: wide[name, PLAIN].to_numpy() for name in wide.columns.unique(0)}
        # (variant, series), 0 where there is no row
        of = {name: np.ascontiguousarray(wide[name][ids].to_numpy().T) for name in base}
        valid = np.all([of[c] == base[c] for c in same], axis=0) & (of[count] > 0) & (base[count] > 0)
        invalid = (of["n_invalid"] > 0) | (base["n_invalid"] > 0)
        datasets, dataset = np.unique(wide.index.get_level_values("dataset").astype(str), return_inverse=True)
        columns = tuple(of[name] for name in names)
        plain = tuple(base[name].astype(float)[None] for name in names)
        usable = _usable(metric, valid, invalid, dataset, (columns, plain))
        if together:
            usable = np.repeat(usable.all(axis=0, keepdims=True), len(usable), axis=0)
        patterns, which = np.unique(usable, axis=0, return_inverse=True)
        by_model[str(model)] = []
        for number, pattern in enumerate(patterns):
            group, series = np.flatnonzero(which.reshape(-1) == number), np.flatnonzero(pattern)
            present, starts = np.unique(dataset[series], return_index=True)
            by_model[str(model)].append(
                _Group(
                    metric,
                    [ids[row] for row in group],
                    Sums(tuple(column[np.ix_(group, series)] for column in columns), starts),
                    Sums(tuple(column[:, series] for column in plain), starts),
                    [str(datasets[d]) for d in present],
                    [str(datasets[d]) for d in range(len(datasets)) if d not in present],
                )
            )
    return by_model


def _usable(
    metric: str, valid: np.ndarray, invalid: np.ndarray, dataset: np.ndarray, sides: tuple[tuple[np.ndarray, ...], ...]
) -> np.ndarray:
    """Mark (variant, series) valid series of the datasets with a usable metric on both sides."""
    member = np.zeros((len(dataset), int(dataset.max()) + 1))
    member[np.arange(len(dataset)), dataset] = 1.0
    usable = (valid.astype(float) @ member > 0) & ((invalid & valid).astype(float) @ member == 0)
    for columns in sides:
        with np.errstate(all="ignore"):
            value = formula(metric)[1](*(np.where(valid, c, 0.0) @ member for c in columns))
        usable &= np.isfinite(value) & ((value > 0) | (metric not in METRICS))
    return valid & usable[:, dataset]


def _compare(group: _Group, confidence: float, replicates: int, seed: int, tests: int) -> pd.DataFrame:
    """Return a row for each variant of a group, one of so many tests."""
    metric, units, log = group.metric, group.units, group.metric in METRICS
    possible = int(_MOST_WORK / max(group.variant_sums.n_series * len(group.variants), 1))
    replicates = max(replicates, min(replicates_for(tests, confidence), possible))
    value, baseline = group.figures()
    ends, p = np.full((2, len(value)), np.nan), np.full(len(value), np.nan)
    leads = [""] * len(value)
    if units >= 2:
        draws = group.draws(replicates, seed)
        ends, p = expanded_interval(draws, confidence, units), expanded_p(draws, units)
        # one that is measured on other series cannot be compared
        if len(group.variants) == tests:
            leads = _leading(draws, value, units, confidence)
    ends = np.exp(ends) - 1 if log else np.clip(ends, 0.0, LARGEST[metric])
    return pd.DataFrame(
        {
            "variant": group.variants,
            "tests": tests,
            "leads": leads,
            "value": value,
            "baseline": baseline if log else np.nan,
            "change": value / baseline - 1 if log else np.nan,
            "lower": ends[0],
            "upper": ends[1],
            "p_value": p if log else np.nan,
            "metric": metric,
            "replicates": replicates,
            "n_datasets": len(group.datasets),
            "n_series": group.variant_sums.n_series,
            "method": group.words(confidence),
            "left_out": [tuple(group.absent)] * len(value),
        }
    )


def _leading(distribution: np.ndarray, value: np.ndarray, units: int, confidence: float) -> list[str]:
    """Mark a variant that differs from every other one as "highest" or "lowest", the others as ""."""
    leads = [""] * len(value)
    finite = np.flatnonzero(np.isfinite(value) & np.isfinite(distribution).all(axis=0))
    if len(finite) < 2:
        return leads
    for side, best in (("highest", np.argmax), ("lowest", np.argmin)):
        first = finite[best(value[finite])]
        others = finite[finite != first]
        p = expanded_p(distribution[:, others] - distribution[:, [first]], units)
        if holm(p).max() < 1 - confidence:
            leads[int(first)] = side
    return leads


def difference(
    frame: pd.DataFrame,
    informed: str,
    random_variants: Sequence[str],
    *,
    metric: str = "MASE",
    confidence: float = 0.95,
    replicates: int = 2000,
    seed: int = 0,
) -> pd.Series:
    """Test the change of an informed choice minus the mean change of random choices, which are drawn too."""
    random_ids = list(dict.fromkeys(random_variants))
    sums = as_series_sums(frame, [metric])
    rows = sums[sums["variant"].isin([PLAIN, informed, *random_ids])]
    ((group,),) = _comparisons(rows, metric, together=True).values()
    order = [group.variants.index(name) for name in (informed, *random_ids)]
    value, baseline = group.figures()
    change = (value / baseline - 1)[order]
    units = group.units
    ends, p = np.full((2, 1), np.nan), np.full(1, np.nan)
    words = group.words(confidence)
    if units >= 2:
        n = len(random_ids)
        samples = (np.exp(group.draws(replicates, seed)) - 1)[:, order]
        picks = np.random.default_rng([seed, n]).integers(n, size=(replicates, n))
        differences = (samples[:, 0] - np.take_along_axis(samples[:, 1:], picks, axis=1).mean(axis=1))[:, None]
        units = min(units, n) if n > 1 else units
        ends, p = expanded_interval(differences, confidence, units), expanded_p(differences, units)
        words += f"; {n} random variants drawn too" if n > 1 else "; one random variant, taken as it is"
    return pd.Series(
        {
            "change_informed": change[0],
            "change_random": change[1:].mean(),
            "difference": change[0] - change[1:].mean(),
            "lower": ends[0, 0],
            "upper": ends[1, 0],
            "p_value": p[0],
            "n_datasets": len(group.datasets),
            "left_out": tuple(group.absent),
            "method": words,
        }
    )


def dataset_changes(frame: pd.DataFrame, *, metric: str = "MASE") -> pd.DataFrame:
    """Compute the change of a metric on each dataset by itself, NaN where left out, a row per variant and dataset."""
    parts = []
    for model, groups in _comparisons(frame, metric).items():
        for group in groups:
            value, baseline = map(np.exp, group.by_dataset())
            columns = {"value": value.ravel(), "baseline": np.broadcast_to(baseline, value.shape).ravel()}
            present = pd.MultiIndex.from_product([[model], group.variants, group.datasets])
            names = pd.MultiIndex.from_product([[model], group.variants, group.datasets + group.absent])
            parts.append(pd.DataFrame(columns, index=present).reindex(names))
    table = pd.concat(parts).rename_axis(["model", "variant", "dataset"]).sort_index().reset_index()
    return table.assign(change=table["value"] / table["baseline"] - 1)


def resilience(frame: pd.DataFrame, *, tolerance: float = 0.05) -> pd.DataFrame:
    """Count by model and variant the datasets on which it does little harm, and those on which it does good."""
    table = dataset_changes(frame)
    change = table["change"]
    flags = {"n_resilient": change < tolerance, "n_improved": change < 0, "n_datasets": change.notna()}
    by = table[["model", "variant"]].assign(**flags, n_left_out=change.isna()).groupby(["model", "variant"], sort=True)
    return by.sum().astype(int).reset_index()
