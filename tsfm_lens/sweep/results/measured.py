"""Finished part of a sweep, as a plan and sums per series, and the change that each entry of the plan makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.sweep.plan.config import Statistics
from tsfm_lens.sweep.statistics.changes import changes, difference
from tsfm_lens.sweep.statistics.pooling import PLAIN, SEASONAL_NAIVE, dataset_metrics, geometric_mean, normalised

SOURCE = "tsfm-lens paper, sections 3 and 5"
TABLE_METRICS = ("MASE", "NRMSE", "sMAPE", "CRPS", "MSIS")
CHANGE = ("change", "lower", "upper", "p_value", "p_holm", "stands", "leads", "tests", "replicates")
_OF_PLAIN = {"change": 0.0, "lower": 0.0, "upper": 0.0, "p_value": 1.0, "p_holm": 1.0}


@dataclass(frozen=True, eq=False)
class Results:
    """A finished or unfinished sweep.

    Attributes:
        sums: of `per_series`, models by their names in the configuration.
        plan: of `plan_frame`, without entries of which cells are missing.
        layers: model -> layers of the stack that is read out.
        statistics: how intervals are made.
        seed: of the replicates.
        attrs: provenance that every table carries.
    """

    sums: pd.DataFrame
    plan: pd.DataFrame
    layers: Mapping[str, int]
    statistics: Statistics
    seed: int
    attrs: Mapping[str, Any] = field(default_factory=dict)
    _cache: dict[Any, Any] = field(default_factory=dict)

    @property
    def models(self) -> list[str]:
        """Models with any entry, in the order of the plan."""
        return list(dict.fromkeys(self.plan["model"]))

    def of(self, model: str, *families: str) -> pd.DataFrame:
        """Return the entries of a model in some families."""
        return self.plan[(self.plan["model"] == model) & self.plan["family"].isin(families)]

    def by_model(self, *families: str) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield each model with its entries in some families, if it has any beside the plain model."""
        for model in self.models:
            entries = self.of(model, *families)
            if set(entries["variant"]) - {PLAIN}:
                yield model, entries

    def rows(self, model: str, variants: Sequence[str]) -> pd.DataFrame:
        """Return the sums of some variants of a model and of the plain one."""
        return self.sums[(self.sums["model"] == model) & self.sums["variant"].isin({PLAIN, *variants})]

    def changes(self, entries: pd.DataFrame, metric: str = "MASE") -> pd.DataFrame:
        """Test the :func:`changes` of the entries of one model, one family of tests; by variant."""
        model, variants = entries["model"].iloc[0], frozenset(entries["variant"])
        key = (model, metric, variants)
        if key not in self._cache:
            table = changes(self.rows(model, sorted(variants)), metric=metric, seed=self.seed, **self._resampling())
            self._cache[key] = table.set_index("variant")
        result: pd.DataFrame = self._cache[key]
        return result

    def measured(self, entries: pd.DataFrame, metric: str = "MASE") -> pd.DataFrame:
        """Return the entries of one family of tests with the columns of their change, and the test in words."""
        change, plain = self.changes(entries, metric), entries["variant"] == PLAIN
        table = entries.assign(
            metric=metric, **{name: entries["variant"].map(change[name]) for name in (*CHANGE, "method")}
        )
        for name, value in _OF_PLAIN.items():
            # the plain model changes nothing, for certain
            table[name] = table[name].mask(plain, value)
        # one of them is as good as another for the plain model, which is in no test
        table[["tests", "replicates", "method"]] = table[["tests", "replicates", "method"]].bfill().ffill()
        return table.assign(stands=table["stands"].eq(True))

    def beside(self, model: str, variant: str, others: Sequence[str], metric: str = "MASE") -> pd.Series:
        """Test the :func:`difference` of one variant and the mean of others."""
        rows = self.rows(model, [variant, *others])
        return difference(rows, variant, others, metric=metric, seed=self.seed, **self._resampling())

    def with_mase(self, entries: pd.DataFrame) -> pd.DataFrame:
        """Add to one model's entries their MASE over that of the seasonal naive forecast, and that of the plain model.

        It is the geometric mean over datasets, for all variants over the same: those where plain and naive forecasts
        have one above 0.
        """
        model = entries["model"].iloc[0]
        if model not in self._cache:
            ratios = self.mase_ratios(model)
            usable = ratios[ratios[PLAIN].gt(0)]
            # a variant without a metric on one of them has no mean over all of them
            finite = usable.gt(0) & np.isfinite(usable)
            means = usable.apply(lambda column: geometric_mean(column)[0])
            self._cache[model] = means.where(finite.all())
        mase = self._cache[model]
        return entries.assign(mase=entries["variant"].map(mase), baseline_mase=float(mase[PLAIN]))

    def mase_ratios(self, model: str) -> pd.DataFrame:
        """Compute (dataset, variant): MASE of a model's variants over that of the seasonal naive forecast."""
        rows = self.sums[(self.sums["model"] == model) | (self.sums["variant"] == SEASONAL_NAIVE)]
        ratios = normalised(dataset_metrics(rows, ["MASE"]))["MASE"]
        return ratios.droplevel("model").unstack("variant")

    def _resampling(self) -> dict[str, Any]:
        return {"confidence": self.statistics.confidence, "replicates": self.statistics.replicates}
