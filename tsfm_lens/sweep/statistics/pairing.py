"""Variants beside the plain model on the very same windows, as arrays to resample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from tsfm_lens.data.gift_eval import source_of
from tsfm_lens.errors import unknown_name
from tsfm_lens.stats import Sums
from tsfm_lens.sweep.statistics.pooling import KEYS, METRICS, formula

# the count of steps without which a series has no part in a metric; n for the others
_COUNT_COLUMNS = {"MASE": "n_scaled", "MSIS": "n_interval"}


@dataclass(frozen=True, eq=False)
class Group:
    """Variants that are compared with the plain model on the same series of the same datasets.

    Attributes:
        variants: their ids.
        variant_sums, plain: sums of the variants and of the plain model.
        datasets: names.
        absent: names of datasets on which there is no comparison: a metric of either side is undefined, infinite
            or not positive, or there is no series that both sides have.
        n_unpaired: number of series of the plain model that a variant lacks, or has in part.
    """

    variants: list[str]
    variant_sums: Sums
    plain: Sums
    datasets: list[str]
    absent: list[str]
    n_unpaired: int

    @property
    def n_series(self) -> int:
        return self.variant_sums.n_series

    @cached_property
    def sources(self) -> list[int]:
        """Number of the source of each dataset: terms and frequencies of one GIFT-Eval set are of one source."""
        names = [source_of(name) for name in self.datasets]
        order = list(dict.fromkeys(names))
        return [order.index(name) for name in names]

    @property
    def independent_series(self) -> int:
        """Series that are not those of another dataset of the same source: of each source the most of a dataset."""
        most: dict[int, int] = {}
        for source, part in zip(self.sources, self.variant_sums.datasets(), strict=True):
            most[source] = max(most.get(source, 0), part.stop - part.start)
        return sum(most.values())

    def by_dataset(self, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Compute the logarithm of a metric, or a distance, (variant, dataset), and that of the plain model."""
        if not self.datasets:
            return np.empty((len(self.variants), 0)), np.empty((1, 0))
        value, baseline = (on_log_scale(metric)(*side.by_dataset()) for side in (self.variant_sums, self.plain))
        return value, baseline


@dataclass(frozen=True, eq=False)
class PairedSums:
    """All variants of one model beside the plain model; series sorted by dataset.

    Attributes:
        columns, plain: (variant, series) sums that the measure is made of, (1, series) of the plain model.
        valid: (variant, series) the same windows on both sides, with something to measure.
        whole: (variant, series) the same windows on both sides.
        invalid: (variant, series) a forecast of either side is not finite.
        dataset: (series,) number of the dataset.
    """

    model: str
    measure: str
    variants: list[str]
    datasets: list[str]
    dataset: np.ndarray
    columns: tuple[np.ndarray, ...]
    plain: tuple[np.ndarray, ...]
    valid: np.ndarray
    whole: np.ndarray
    invalid: np.ndarray

    def groups(self, together: bool = False) -> Iterator[Group]:
        """Group variants by the series on which they can be compared; together: one group, on what all can."""
        usable, lacking = self._usable(), (~self.whole).sum(axis=1)
        if together:
            usable, lacking = np.repeat(usable.all(axis=0, keepdims=True), len(usable), axis=0), lacking * 0
        patterns, which = np.unique(usable, axis=0, return_inverse=True)
        for number, count in sorted(set(zip(which.reshape(-1).tolist(), lacking.tolist(), strict=True))):
            rows = np.flatnonzero((which.reshape(-1) == number) & (lacking == count))
            series = np.flatnonzero(patterns[number])
            present, starts = np.unique(self.dataset[series], return_index=True)
            absent = {*range(len(self.datasets))} - {*present.tolist()}
            yield Group(
                [self.variants[row] for row in rows],
                Sums(tuple(column[np.ix_(rows, series)] for column in self.columns), starts),
                Sums(tuple(column[:, series] for column in self.plain), starts),
                [self.datasets[d] for d in present],
                [self.datasets[d] for d in sorted(absent)],
                int((~self.whole[rows]).sum(axis=1).max()),
            )

    def _usable(self) -> np.ndarray:
        """Mark (variant, series) valid series of the datasets with a usable metric on both sides."""
        n = len(self.datasets)
        member = np.zeros((len(self.dataset), n))
        member[np.arange(len(self.dataset)), self.dataset] = 1.0
        counts = self.valid.astype(float)
        positive = self.measure in METRICS
        usable = (counts @ member > 0) & ((self.invalid & self.valid).astype(float) @ member == 0)
        for columns in (self.columns, self.plain):
            with np.errstate(all="ignore"):
                value = formula(self.measure)[1](*(np.where(self.valid, c, 0.0) @ member for c in columns))
            usable &= np.isfinite(value) & ((value > 0) | (not positive))
        return self.valid & usable[:, self.dataset]


def pair(sums: pd.DataFrame, measure: str, plain: str) -> Iterator[PairedSums]:
    """Pair the variants of each model with its plain one.

    Args:
        sums: of `per_series`.
        measure: a metric or distance.
        plain: id of the plain variant.

    Raises:
        UnknownNameError: a model has no plain variant.
    """
    names = formula(measure)[0]
    count = _COUNT_COLUMNS.get(measure, f"n_{measure}" if measure not in METRICS else "n")
    same = ["n_rows", "windows", "n"]
    # the rest of the columns would be copied for nothing
    sums = sums[list(dict.fromkeys([*KEYS, *same, "n_invalid", *names, count]))]
    for model, rows in sums.groupby("model", sort=True, observed=True):
        ids = sorted(map(str, rows["variant"].unique()))
        if plain not in ids:
            raise unknown_name("variant", plain, ids, hint=f"It is the baseline of {model}.")
        ids.remove(plain)
        if not ids:
            continue
        rows = rows.set_index(["dataset", "item"])
        base = rows[rows["variant"] == plain].sort_index()
        others = rows[rows["variant"] != plain]
        place = base.index.get_indexer(others.index)
        others, place = others[place >= 0], place[place >= 0]
        cell = pd.Index(ids).get_indexer(pd.Index(others["variant"])), place

        def matrix(values: np.ndarray) -> np.ndarray:
            """Return (variant, series) of the rows' values, 0 where there is no row."""
            out = np.zeros((len(ids), len(base)), dtype=values.dtype)  # noqa: B023
            out[cell] = values  # noqa: B023
            return out

        whole = matrix(np.all([others[c].to_numpy() == base[c].to_numpy()[place] for c in same], axis=0))
        datasets, dataset = np.unique(base.index.get_level_values("dataset").astype(str), return_inverse=True)
        yield PairedSums(
            str(model),
            measure,
            ids,
            [str(name) for name in datasets],
            dataset,
            tuple(matrix(others[name].to_numpy()) for name in names),
            tuple(base[name].to_numpy(dtype=float)[None] for name in names),
            whole & (matrix(others[count].to_numpy()) > 0) & (base[count].to_numpy() > 0),
            whole,
            (matrix(others["n_invalid"].to_numpy()) > 0) | (base["n_invalid"].to_numpy() > 0),
        )


def on_log_scale(measure: str) -> Callable[..., np.ndarray]:
    """Return the measure that is averaged over datasets: the logarithm of a metric, a distance as it is."""
    function = formula(measure)[1]
    return (lambda *sums: np.log(function(*sums))) if measure in METRICS else function
