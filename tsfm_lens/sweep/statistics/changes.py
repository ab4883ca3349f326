"""Changes of an error against the plain model, with intervals and tests.

Read :func:`changes` first, then :func:`leaders` (which change is the largest) and
:func:`difference` (one choice against others). p-values are not corrected here;
``results/families.py`` does so for all tests of a report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.core.stats import (
    CONFIDENCE,
    half_width,
    lead_shares,
    leader,
    median_interval,
    over_windows,
    sign_test,
)
from tsfm_lens.sweep.data.gift_eval import find_source
from tsfm_lens.sweep.statistics.scores import (
    KEYS,
    LARGEST,
    METRICS,
    PLAIN,
    as_series_sums,
    formula,
)

# metric -> the column that counts its steps, which is "n" for other metrics; a series
# whose count is 0 is left out of the metric
_COUNT_COLUMNS = {"MASE": "n_scaled", "MSIS": "n_interval"}
# equal forecasts may differ by less than this in the logarithm of a metric, as their
# sums are added up in different orders
_ROUNDING = 1e-12
# columns on the size of a change: its estimate and interval, the median over units and
# its interval, and the extremes
_MEDIAN = ("median", "median_lower", "median_upper")
SIZES = ("change", "lower", "upper", *_MEDIAN, "least", "most")


def changes(
    frame: pd.DataFrame, *, metric: str = "MASE", confidence: float = CONFIDENCE
) -> pd.DataFrame:
    """Measure how much each variant changes a metric against the plain model.

    Both are measured on the same windows. A distance, such as "spearman_distance", is
    measured between the forecasts of the two.

    Tests and intervals treat units as independent: they are the sources of datasets if
    there are several, else series. All datasets of a source form one unit, and so do
    all windows of a series.

    Returns:
        A row per model and variant: ``change``, ratio of geometric means over datasets
        less 1, with the ends of its t interval on the log scale; ``median``, ``least``
        and ``most`` over units, the median with the ends of the sign test's interval;
        ``p_value``, exact sign test of the units' log ratios; ``left_out``, datasets
        without a comparison. :func:`leaders` and :func:`difference` read ``by_unit``,
        log ratios, of the units in ``members``, ``influence``, one value per unit,
        whose mean has the standard error of the change, and ``pattern``, a number that
        variants measured on the same series share.

    Source:
        Cochran 1977, section 6.3 (ratios); Efron and Tibshirani 1993, chapter 11
        (jackknife of one source).
    """
    parts = [
        _change_table(pairs, confidence).assign(model=pairs.model)
        for pairs in _paired(frame, metric)
    ]
    return pd.concat(parts).sort_values(["model", "variant"], ignore_index=True)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Sums of a model's variants and of the plain model, side by side.

    Attributes:
        model, metric: what the sums are of.
        variants: names of the variants, without the plain model.
        sides: the sums that make the metric, in its formula's order, first those of
            the variants and then those of the plain model; each array is (variant,
            series), and 0 where the two cannot be compared.
        usable: (variant, series), whether they can be compared.
        dataset: (series,) of indices into ``datasets``, in rising order.
        items: (series,), the item of each.
        datasets: names, sorted.
    """

    model: str
    metric: str
    variants: list[str]
    sides: list[list[np.ndarray]]
    usable: np.ndarray
    dataset: np.ndarray
    items: np.ndarray
    datasets: list[str]

    def measure(
        self, sides: Iterable[list[np.ndarray]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute the metric from sums of both sides.

        The sums may be those of series or of datasets. The results are logarithms of
        metrics, but distances as they are.

        Returns:
            The metric of variants and of the plain model, ready to be averaged.
        """
        with np.errstate(all="ignore"):
            compute = formula(self.metric)[1]
            value, baseline = (np.asarray(compute(*side)) for side in sides)
            if self.metric in METRICS:
                return np.log(value), np.log(baseline)
            # a distance is itself a change, from 0, or from NaN where it has no value
            return value, 0 * value

    def masked(self, usable: np.ndarray) -> _Pairs:
        """Return the same pairs, with zeros for series that are not usable.

        ``usable`` is (variant, series).
        """
        return replace(
            self,
            sides=[
                [np.where(usable, sums, 0.0) for sums in side] for side in self.sides
            ],
            usable=usable,
        )

    def totals(self) -> list[list[np.ndarray]]:
        """Sum both sides over the series of each dataset."""
        # reduceat adds from each start to the next, so the series of a dataset must
        # stand together
        starts = np.searchsorted(self.dataset, range(len(self.datasets)))
        return [
            [np.add.reduceat(sums, starts, axis=1) for sums in side]
            for side in self.sides
        ]

    def effects(self) -> tuple[np.ndarray, np.ndarray, str, list[str]]:
        """Return each unit's effect and influence (variant, unit), and what units are.

        That is "sources", "datasets" or "series", and the name of each. The mean of the
        influences has the standard error of the change.
        """
        totals = self.totals()
        change = np.subtract(*self.measure(totals))
        size = over_windows(change)
        # terms and frequencies of one GIFT-Eval set are of one source
        names = np.array([find_source(name) for name in self.datasets], dtype=object)
        sources, source_names = pd.factorize(names)
        if sources.max() > 0:
            # pandas groups rows: (dataset, variant) becomes (source, variant)
            by_source = pd.DataFrame(change.T).groupby(sources)
            mean = by_source.mean()
            counts = by_source.count()
            # the change is a mean over datasets, so the deviation of a source from it
            # has the weight of its datasets
            influence = counts / counts[counts > 0].mean() * (mean - size) + size
            unit = "sources"
            members = list(map(str, source_names))
            if len(mean) == len(sources):
                unit = "datasets"
                members = self.datasets
            return mean.to_numpy().T, influence.to_numpy().T, unit, members
        # jackknife: the change of each dataset without one of its series
        sums_without = [
            [
                total[:, self.dataset] - series
                for total, series in zip(*side, strict=True)
            ]
            for side in zip(totals, self.sides, strict=True)
        ]
        by_series = np.subtract(*self.measure(self.sides))
        change_without = np.subtract(*self.measure(sums_without))
        shift = np.where(self.usable, change_without - change[:, self.dataset], np.nan)
        effects = _by_item(by_series, self.items).mean()
        shifts = _by_item(shift, self.items).sum(min_count=1)
        # a dataset that shifts changes the mean over datasets by a share of its shift
        shifts = shifts / np.isfinite(change).sum(1).clip(1)
        # pseudo-values of the jackknife, n times the change less n - 1 times that
        # without the series
        influence = size - (shifts.count() - 1) * shifts
        members = list(map(str, effects.index))
        return effects.to_numpy().T, influence.to_numpy().T, "series", members


def _by_item(values: np.ndarray, items: np.ndarray) -> Any:
    """Group the finite values (variant, series) by item, over all datasets."""
    finite = np.where(np.isfinite(values), values, np.nan)
    return pd.DataFrame(finite.T).groupby(items)


def _paired(frame: pd.DataFrame, metric: str) -> Iterator[_Pairs]:
    """Pair the variants of each model with its plain one.

    They are paired on the series on which both are valid.

    Yields:
        The pairs of one model.
    """
    names = formula(metric)[0]
    default_count = "n" if metric in METRICS else f"n_{metric}"
    count = _COUNT_COLUMNS.get(metric, default_count)
    # equal in both rows if they are of the same windows
    window_columns = ["n_rows", "windows", "n"]
    # the rest of the columns would be copied for nothing
    columns = dict.fromkeys([*KEYS, *window_columns, "n_invalid", *names, count])
    sums = as_series_sums(frame, [metric])[list(columns)]
    for model, rows in sums.groupby("model", sort=True, observed=True):
        variants = sorted(map(str, rows["variant"].unique()))
        variants.remove(PLAIN)
        if not variants:
            continue
        wide = (
            rows.drop(columns="model")
            .set_index(["dataset", "item", "variant"])
            # sorted by dataset and item, on which sums over the series of a dataset
            # rely
            .unstack("variant", fill_value=0)
        )
        wide = wide[wide["n_rows", PLAIN] > 0]
        plain = {name: wide[name, PLAIN].to_numpy() for name in wide.columns.unique(0)}
        # (variant, series), 0 where there is no row
        ablated = {
            name: np.ascontiguousarray(wide[name][variants].to_numpy().T)
            for name in plain
        }
        has_same_windows = np.all(
            [ablated[name] == plain[name] for name in window_columns], axis=0
        )
        valid = has_same_windows & (ablated[count] > 0) & (plain[count] > 0)
        invalid = (ablated["n_invalid"] > 0) | (plain["n_invalid"] > 0)
        datasets, dataset = np.unique(
            wide.index.get_level_values("dataset").astype(str), return_inverse=True
        )
        items = wide.index.get_level_values("item").astype(str).to_numpy()
        sides = [[side[name] for name in names] for side in (ablated, plain)]
        pairs = _Pairs(
            str(model),
            metric,
            variants,
            sides,
            valid,
            dataset,
            items,
            list(map(str, datasets)),
        ).masked(valid)
        # no series is compared of a dataset that has an invalid forecast, or whose
        # metric is 0 or infinite for the variant or the plain model
        starts = np.searchsorted(dataset, range(len(datasets)))
        finite = np.isfinite(np.subtract(*pairs.measure(pairs.totals())))
        finite &= ~np.logical_or.reduceat(invalid & valid, starts, axis=1)
        yield pairs.masked(valid & finite[:, dataset])


def _change_table(pairs: _Pairs, confidence: float) -> pd.DataFrame:
    """Return a row for each variant of a model."""
    log = pairs.metric in METRICS
    by_dataset = pairs.measure(pairs.totals())
    by_unit, influence, unit, members = pairs.effects()
    by_unit = np.where(np.abs(by_unit) < _ROUNDING, 0.0, by_unit)
    value, baseline = map(over_windows, by_dataset)
    interval = _interval(value - baseline, influence, confidence)
    medians = [median_interval(row[np.isfinite(row)], confidence) for row in by_unit]
    extremes = pd.DataFrame(by_unit).quantile([0.0, 1.0], axis=1).to_numpy()
    quantiles = (*np.transpose(medians), *extremes)
    sizes = dict(zip(SIZES, (*interval, *quantiles), strict=True))
    if log:
        sizes = {name: np.expm1(size) for name, size in sizes.items()}
    else:
        sizes |= {
            name: np.clip(sizes[name], 0.0, LARGEST[pairs.metric])
            for name in ("lower", "upper")
        }
        # a distance is no change of an error, and has its size in ``value``
        sizes["change"] = np.full(len(value), np.nan)
    absent = ~np.isfinite(by_dataset[0])
    names = np.array(pairs.datasets)
    patterns = np.unique(pairs.usable, axis=0, return_inverse=True)[1]
    return pd.DataFrame(
        {
            "variant": pairs.variants,
            "metric": pairs.metric,
            "value": np.exp(value) if log else value,
            "baseline": np.exp(baseline) if log else np.nan,
            **sizes,
            "p_value": sign_test(by_unit) if log else np.nan,
            "unit": unit,
            "units": np.isfinite(influence).sum(1),
            "n_datasets": (~absent).sum(1),
            "n_series": pairs.usable.sum(1),
            "left_out": [tuple(names[row].tolist()) for row in absent],
            "by_unit": list(by_unit),
            "members": [members] * len(by_unit),
            "influence": list(influence),
            # numpy 2.0 gives the inverse a second axis
            "pattern": patterns.reshape(-1),
        }
    )


def _interval(
    size: Any, influence: np.ndarray, confidence: float
) -> tuple[Any, Any, Any]:
    """Return sizes with the limits of their t intervals; NaN for a single unit."""
    has_several = np.isfinite(influence).sum(-1) > 1
    distance = np.where(has_several, half_width(influence, confidence), np.nan)
    return size, size - distance, size + distance


def leaders(table: pd.DataFrame, confidence: float = CONFIDENCE) -> pd.DataFrame:
    """Find which of some :func:`changes` is larger, or smaller, than each of the rest.

    Returns:
        Like the table, ``leads``: "highest" or "lowest" by sign tests against every
        other one, else "", and ``lead_share``, the share of bootstrap samples in which
        it is highest; NaN if undefined.
    """
    result = pd.DataFrame({"leads": "", "lead_share": np.nan}, index=table.index)
    # one that is measured on other series cannot be compared
    if (
        len(table) > 1
        and table["pattern"].nunique() == 1
        and table["units"].iloc[0] > 1
    ):
        sizes = np.stack(table["by_unit"].tolist())
        # units (variant, unit) on which all of them are measured
        sizes = sizes[:, np.isfinite(sizes).all(axis=0)]
        for side, sign in (("highest", 1), ("lowest", -1)):
            first = leader(sign * sizes, round(1 - confidence, 12), smallest=_ROUNDING)
            if first is not None:
                result.iloc[first, 0] = side
        result["lead_share"] = lead_shares(sizes)
    return result


def difference(
    table: pd.DataFrame,
    chosen: str,
    others: Iterable[str],
    confidence: float = CONFIDENCE,
) -> pd.Series:
    """Test the error of one choice over the geometric mean of others.

    They are rows of :func:`changes`, by variant.

    Returns:
        ``difference``, that ratio less 1, with ``lower``, ``upper`` and ``p_value``
        over units; the others count as fixed. ``n_worse`` of the ``n_others`` that are
        measured on the same series cost more.
    """
    choice = table.loc[chosen]
    rest = table.loc[list(dict.fromkeys(others))]
    # one that is measured on other series cannot be compared
    rest = rest[rest["pattern"] == choice["pattern"]]
    if rest.empty:
        return pd.Series(
            dict.fromkeys(("difference", "lower", "upper", "p_value"), np.nan)
        )
    by_unit, influence = (
        choice[name] - np.mean(rest[name].tolist(), axis=0)
        for name in ("by_unit", "influence")
    )
    log_ratio = np.log(choice["value"]) - np.log(rest["value"]).mean()
    size, lower, upper = _interval(log_ratio, influence, confidence)
    return pd.Series(
        {
            "difference": np.expm1(size),
            "lower": np.expm1(lower),
            "upper": np.expm1(upper),
            "p_value": float(sign_test(by_unit, _ROUNDING)),
            "n_worse": (rest["value"] > choice["value"]).sum(),
            "n_others": len(rest),
        }
    )


def dataset_changes(frame: pd.DataFrame, *, metric: str = "MASE") -> pd.DataFrame:
    """Compute the change of a metric on each dataset by itself.

    Returns:
        A row per variant and dataset, NaN if it is left out.
    """
    parts = []
    for pairs in _paired(frame, metric):
        value, baseline = (
            np.exp(side).ravel() for side in pairs.measure(pairs.totals())
        )
        keys = pd.MultiIndex.from_product(
            [[pairs.model], pairs.variants, pairs.datasets], names=KEYS[:3]
        )
        parts.append(pd.DataFrame({"value": value, "baseline": baseline}, index=keys))
    table = pd.concat(parts).sort_index().reset_index()
    return table.assign(change=table["value"] / table["baseline"] - 1)


def resilience(frame: pd.DataFrame, *, tolerance: float = 0.05) -> pd.DataFrame:
    """Count by model and variant the datasets whose error rises little.

    Datasets whose error falls are counted as well.

    Returns:
        The counts.
    """
    table = dataset_changes(frame)
    change = table["change"]
    flags = {
        "n_resilient": change < tolerance,
        "n_improved": change < 0,
        "n_datasets": change.notna(),
    }
    counted = table[["model", "variant"]].assign(**flags, n_left_out=change.isna())
    counts = counted.groupby(["model", "variant"], sort=True).sum()
    return counts.astype(int).reset_index()
