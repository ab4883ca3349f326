"""Variants beside the plain model on the very same windows, as arrays to resample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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

    @property
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


@dataclass(frozen=True, eq=False)
class Pairs:
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
        usable = self._usable()
        if together:
            usable = np.repeat(usable.all(axis=0, keepdims=True), len(usable), axis=0)
        patterns, which = np.unique(usable, axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            rows = np.flatnonzero(which.reshape(-1) == number)
            series = np.flatnonzero(pattern)
            present, starts = np.unique(self.dataset[series], return_index=True)
            absent = {*range(len(self.datasets))} - {*present.tolist()}
            for variants in [rows] if together else self._split_by_gaps(rows):
                yield Group(
                    [self.variants[row] for row in variants],
                    Sums(tuple(column[np.ix_(variants, series)] for column in self.columns), starts),
                    Sums(tuple(column[:, series] for column in self.plain), starts),
                    [self.datasets[d] for d in present],
                    [self.datasets[d] for d in sorted(absent)],
                    int((~self.whole[variants]).sum(axis=1).max()),
                )

    def _split_by_gaps(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        lacking = (~self.whole[rows]).sum(axis=1)
        for number in np.unique(lacking):
            yield rows[lacking == number]

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


def pair(sums: pd.DataFrame, measure: str, plain: str) -> Iterator[Pairs]:
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
    # the rest of the columns would be copied for nothing
    sums = sums[list(dict.fromkeys([*KEYS, "n_rows", "windows", "n", "n_invalid", *names, count]))]
    models, model_names = pd.factorize(sums["model"], sort=True)
    for number, model in enumerate(model_names):
        rows = sums[models == number] if len(model_names) > 1 else sums
        codes, variants = pd.factorize(rows["variant"], sort=True)
        ids = [str(name) for name in variants]
        if plain not in ids:
            raise unknown_name("variant", plain, ids, hint=f"It is the baseline of {model}.")
        is_plain = codes == ids.index(plain)
        base, others = rows[is_plain].sort_values(["dataset", "item"]), rows[~is_plain]
        ids.remove(plain)
        if not ids:
            continue
        row = codes[~is_plain] - (codes[~is_plain] > codes[is_plain][0])
        places = pd.MultiIndex.from_frame(base[["dataset", "item"]])
        column = places.get_indexer(pd.MultiIndex.from_frame(others[["dataset", "item"]]))
        in_base = column >= 0
        table = _Table((len(ids), len(base)), row[in_base], column[in_base], others[in_base], base)
        whole = table.same("n_rows") & table.same("windows") & table.same("n")
        datasets, dataset = np.unique(base["dataset"].to_numpy().astype(str), return_inverse=True)
        yield Pairs(
            str(model),
            measure,
            ids,
            [str(name) for name in datasets],
            dataset,
            tuple(table.matrix(name) for name in names),
            tuple(base[name].to_numpy(dtype=float)[None] for name in names),
            whole & (table.matrix(count) > 0) & (base[count].to_numpy() > 0),
            whole,
            (table.matrix("n_invalid") > 0) | (base["n_invalid"].to_numpy() > 0),
        )


@dataclass(frozen=True, eq=False)
class _Table:
    """Columns of a long frame as (variant, series), 0 where there is no row."""

    shape: tuple[int, int]
    row: np.ndarray
    column: np.ndarray
    rows: pd.DataFrame
    base: pd.DataFrame

    def matrix(self, name: str) -> np.ndarray:
        values = self.rows[name].to_numpy()
        out = np.zeros(self.shape, dtype=values.dtype)
        out[self.row, self.column] = values
        return out

    def same(self, name: str) -> np.ndarray:
        return self.matrix(name) == self.base[name].to_numpy()


Measure = Callable[..., np.ndarray]


def on_log_scale(measure: str) -> Measure:
    """Return the measure that is averaged over datasets: the logarithm of a metric, a distance as it is."""
    function = formula(measure)[1]
    return (lambda *sums: np.log(function(*sums))) if measure in METRICS else function
