"""The tables behind a sweep's Datasets: plan, sums a series, and changes by entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.sweep.plan.config import Statistics
from tsfm_lens.sweep.statistics.changes import changes, dataset_changes
from tsfm_lens.sweep.statistics.pooling import PLAIN, SEASONAL_NAIVE, dataset_metrics, geometric_mean, normalised

SOURCE = "tsfm-lens paper, sections 3 and 5"
TABLE_METRICS = ("MASE", "NRMSE", "sMAPE", "CRPS", "MSIS")
CHANGE = ("mase_change", "mase_change_lower", "mase_change_upper", "p_value", "p_holm", "stands")
_FROM = dict(zip(CHANGE, ("change", "lower", "upper", "p_value", "p_holm", "stands"), strict=True))


@dataclass(frozen=True, eq=False)
class Results:
    """A finished or unfinished sweep as tables.

    Attributes:
        sums: of `per_series`, models by their names in the configuration.
        plan: of `plan_frame`, without entries of which cells are missing.
        layers: model -> layers of the stack that is read out.
        statistics: how intervals are made.
        seed: of the replicates.
        attrs: provenance that every Dataset carries.
    """

    sums: pd.DataFrame
    plan: pd.DataFrame
    layers: Mapping[str, int]
    statistics: Statistics
    seed: int
    attrs: Mapping[str, Any] = field(default_factory=dict)
    _mase: dict[str, pd.Series] = field(default_factory=dict)

    def of(self, model: str, *families: str) -> pd.DataFrame:
        """Entries of a model in some families."""
        return self.plan[(self.plan["model"] == model) & self.plan["family"].isin(families)]

    @property
    def models(self) -> list[str]:
        """Models with any entry, in the order of the plan."""
        return list(dict.fromkeys(self.plan["model"]))

    def changes(self, entries: pd.DataFrame, metric: str = "MASE") -> pd.DataFrame:
        """:func:`changes` of the entries of one model, one family of tests; by variant."""
        model = entries["model"].iloc[0]
        wanted = {PLAIN, *entries["variant"]}
        own = self.sums[(self.sums["model"] == model) & self.sums["variant"].isin(wanted)]
        if wanted == {PLAIN}:
            return pd.DataFrame()
        found = changes(
            own,
            metric=metric,
            confidence=self.statistics.confidence,
            replicates=self.statistics.replicates,
            seed=self.seed,
        )
        return found.set_index("variant")

    def normalised_mase(self, model: str) -> pd.Series:
        """MASE over that of the seasonal naive forecast, geometric mean over datasets, by variant.

        All variants are averaged over the same datasets: those where plain and naive forecasts have one above 0.
        """
        if model not in self._mase:
            ratios = mase_ratios(self.sums, model)
            usable = ratios[ratios[PLAIN].gt(0)]
            # a variant without a metric on one of them has no mean over all of them
            defined = usable.gt(0) & np.isfinite(usable)
            means = usable.apply(lambda column: geometric_mean(column)[0])
            self._mase[model] = means.where(defined.all())
        return self._mase[model]

    def dataset(
        self, kind: str, title: str, variables: dict[str, Any], coords: dict[str, Any], **attrs: Any
    ) -> xr.Dataset:
        """A Dataset with the sweep's provenance."""
        made = xr.Dataset(variables, coords=coords)
        stats = self.statistics
        made.attrs = {
            "kind": kind,
            "title": title,
            "source": SOURCE,
            "confidence": stats.confidence,
            "replicates": stats.replicates,
            "correction": "Holm",
            **self.attrs,
            **attrs,
        }
        return made


def change_columns(entries: pd.DataFrame, moved: pd.DataFrame) -> dict[str, pd.Series]:
    """The columns of a change, by entry; the plain model changes nothing, for certain."""
    plain = entries["variant"] == PLAIN
    found = {name: entries["variant"].map(moved[column]) for name, column in _FROM.items()}
    for name in ("mase_change", "mase_change_lower", "mase_change_upper"):
        found[name] = found[name].mask(plain, 0.0)
    for name in ("p_value", "p_holm"):
        found[name] = found[name].mask(plain, 1.0)
    found["stands"] = found["stands"].eq(True)
    return found


def mase_ratios(sums: pd.DataFrame, model: str) -> pd.DataFrame:
    """(dataset, variant): MASE of a model's variants over that of the seasonal naive forecast."""
    rows = sums[(sums["model"] == model) | (sums["variant"] == SEASONAL_NAIVE)]
    ratios = normalised(dataset_metrics(rows, ["MASE"]))["MASE"]
    return ratios.droplevel("model").unstack("variant")


def per_dataset(results: Results, model: str, line: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(dataset, heads ablated): MASE over the seasonal naive's, and its change."""
    wanted = {PLAIN, *line["variant"]}
    ratios = mase_ratios(results.sums, model)
    moved = dataset_changes(results.sums[results.sums["variant"].isin(wanted) & (results.sums["model"] == model)])
    change = moved.pivot(index="dataset", columns="variant", values="change").reindex(ratios.index)
    change[PLAIN] = 0.0
    mase, change = ratios[list(line["variant"])], change[list(line["variant"])]
    return mase.set_axis(line["ablated"].astype(int), axis=1), change.set_axis(line["ablated"].astype(int), axis=1)


def baselines(results: Results) -> dict[str, Any]:
    return {"baseline_mase": ("model_name", [float(results.normalised_mase(each)[PLAIN]) for each in results.models])}


def columns(table: pd.DataFrame, names: Sequence[str]) -> dict[str, Any]:
    return {name: ("entry", table[name].to_numpy(dtype=bool if name == "stands" else float)) for name in names}


def coords(table: pd.DataFrame, names: Sequence[str]) -> dict[str, Any]:
    """Coordinates of the entries; whole numbers where a tag is one, -1 where it has none."""
    found: dict[str, Any] = {}
    for name in names:
        column = table[name]
        words = column.map(lambda value: isinstance(value, str)).any()
        if words:
            found[name] = ("entry", [str(value) if isinstance(value, str) else "" for value in column])
        elif name == "share":
            found[name] = ("entry", column.to_numpy(dtype=float))
        else:
            found[name] = ("entry", pd.to_numeric(column).fillna(-1).to_numpy(dtype=int))
    return found
