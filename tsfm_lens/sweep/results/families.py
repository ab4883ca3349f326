"""Rows of a sweep, and the tests of its report, corrected as one family.

Read :class:`SweepResults` first: :meth:`Results.tested` has all tests of one model and
metric, :meth:`Results.measured` adds them to entries of the plan. The tests themselves
are in :mod:`tsfm_lens.sweep.statistics.changes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.core.stats import holm
from tsfm_lens.sweep.data.evaluation import SEASONAL_NAIVE
from tsfm_lens.sweep.planner.config import Statistics
from tsfm_lens.sweep.planner.search import is_random
from tsfm_lens.sweep.statistics.changes import SIZES, changes, difference, leaders
from tsfm_lens.sweep.statistics.scores import PLAIN, dataset_metrics, normalised

LEADS = ("leads", "lead_share")
"""Columns of ``leaders``."""
CHANGE = (*SIZES, "p_value", "p_holm", "significant", "tests", "unit", "units", *LEADS)
"""Columns on the change of a metric by an entry, and on its test."""
EFFECTS = ("layers", "groups", "ranges", "heads_per_layer", "components")
"""Families whose effects are tabulated beside each other."""
HEAVY = ("recipes", "random", "components")
"""Families that ablate much at once, and are judged by all metrics."""


@dataclass(frozen=True, eq=False)
class SweepResults:
    """Sums and plan of a sweep, finished or not, with its tests.

    Attributes:
        sums: a row per model, variant, dataset and series, with the sums of its errors.
        plan: entries of the sweep.
        layers: number of layers of each model.
        statistics: confidence of intervals and tests.
        limits: the number of heads to keep, a row per model, layer and order, if it was
            searched; see :func:`better_orders`.
        judged_by: the metric of that search.
        attrs: of all tables.
    """

    sums: pd.DataFrame
    plan: pd.DataFrame
    layers: Mapping[str, int]
    statistics: Statistics
    limits: pd.DataFrame | None = None
    judged_by: str = "MASE"
    attrs: Mapping[str, Any] = field(default_factory=dict)
    # by model and metric its tests, by model alone its mean ratios of MASE
    _cache: dict[Any, Any] = field(default_factory=dict)

    def of(self, model: str, *families: str) -> pd.DataFrame:
        """Return the entries of a model in some families."""
        return self.plan[
            (self.plan["model"] == model) & self.plan["family"].isin(families)
        ]

    def by_model(self, *families: str) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield each model with its entries in some families.

        A model is left out if these families have no variant of it but the plain one.
        """
        for model in self.plan["model"].unique():
            entries = self.of(model, *families)
            if set(entries["variant"]) - {PLAIN}:
                yield model, entries

    def rows(self, model: str, variants: Iterable[str]) -> pd.DataFrame:
        """Return the sums of some variants of a model and of the plain one."""
        indices = [
            self._row_indices[model, name]
            for name in {PLAIN, *variants}
            if (model, name) in self._row_indices
        ]
        # in the order of the table: that of a set of texts differs from process to
        # process
        return self.sums.iloc[np.sort(np.concatenate(indices))]

    @cached_property
    def _row_indices(self) -> dict[Any, Any]:
        return dict(self.sums.groupby(["model", "variant"]).indices)

    def tested(self, model: str, metric: str = "MASE") -> pd.DataFrame:
        """Measure all :func:`changes` of a model's metric that a report shows.

        Their tests are corrected as one family.

        Returns:
            A row per variant, with "" in the column ``of``; below them a row per test
            between choices, whose name is in ``of``.
        """
        if (model, metric) not in self._cache:
            # only what a report shows of this metric is tested, since every test in the
            # correction weakens the others: tables of heavy ablations show all metrics,
            # the others MASE, the distance, or the metric of the search
            families: tuple[str, ...] = HEAVY
            if metric == "MASE":
                families = tuple(self.plan["family"].unique())
            elif metric == "spearman_distance":
                families = (*EFFECTS, "heads")
            elif metric == self.judged_by:
                families = (*HEAVY, "head_counts")
            confidence = self.statistics.confidence
            contrasts = list(self._contrasts(model, metric))
            rows = self.rows(model, self.of(model, *families)["variant"])
            table = changes(rows, metric=metric, confidence=confidence)
            # "" for tests against the plain model
            table = table.set_index("variant").assign(of="")
            if contrasts:
                tests = [
                    difference(table, chosen, rest, confidence)
                    for _, chosen, rest in contrasts
                ]
                choices = [choice for choice, *_ in contrasts]
                table = pd.concat([table, pd.DataFrame(tests).assign(of=choices)])
            p_holm = holm(table["p_value"].to_numpy(float))
            # 1 - 0.95 is a little above 0.05 in floating point
            significant = p_holm <= round(1 - confidence, 12)
            count = int(np.isfinite(p_holm).sum())
            self._cache[model, metric] = table.assign(
                p_holm=p_holm, significant=significant, tests=count
            )
        result: pd.DataFrame = self._cache[model, metric]
        return result

    def _contrasts(
        self, model: str, metric: str
    ) -> Iterator[tuple[str, str, list[str]]]:
        """Yield the name of each choice, its variant, and those to compare it with.

        An order of heads is compared with each of the other orders, one by one, and a
        recipe with all random choices of heads at once.
        """
        if self.limits is not None and metric == self.judged_by:
            counts = self.of(model, "head_counts")
            best = self.limits[self.limits["better"]]
            for row in best[best["model"] == model].to_dict("records"):
                # at the number of heads that the better order allows
                same_count = counts[
                    (counts["layer"] == row["layer"])
                    & (counts["ablated"] == row["ablated"])
                ]
                is_best = same_count["order"] == row["order"]
                is_drawn = same_count["order"].map(is_random)
                in_order = same_count.loc[is_best, "variant"]
                rest = same_count.loc[~is_best & ~is_drawn, "variant"]
                # with all heads of a layer ablated, every order is the same variant, so
                # that there is nothing to compare
                if len(in_order) and not set(in_order) & set(rest):
                    yield from (
                        (f"order in {row['layer']}", in_order.iloc[0], [other])
                        for other in rest
                    )
        if metric == "MASE":
            for recipe, lines in self.of(model, "recipes", "random").groupby(
                "recipe", sort=False
            ):
                chosen, draws = chosen_and_drawn(lines)
                if len(chosen) and len(draws):
                    yield (
                        f"choice of {recipe}",
                        chosen["variant"].iloc[0],
                        draws["variant"].tolist(),
                    )

    def leads(self, entries: pd.DataFrame, metric: str = "MASE") -> pd.DataFrame:
        """Find the :func:`leaders` among the entries of one model, by variant."""
        table = self.tested(entries["model"].iloc[0], metric)
        variants = sorted(set(entries["variant"]) & set(table.index))
        return leaders(table.loc[variants], self.statistics.confidence)

    def measured(self, entries: pd.DataFrame, metric: str = "MASE") -> pd.DataFrame:
        """Return entries of one model with the columns of their change.

        They also say which of the entries leads.
        """
        table = self.tested(entries["model"].iloc[0], metric).join(
            self.leads(entries, metric)
        )
        plain = entries["variant"] == PLAIN
        columns = {name: entries["variant"].map(table[name]) for name in CHANGE}
        result = entries.assign(metric=metric, **columns)
        # the plain model changes nothing, for certain
        result.loc[plain, list(SIZES)] = 0.0
        result.loc[plain, ["p_value", "p_holm"]] = 1.0
        # the plain model is in no test, and takes these from an entry that is in one
        test_columns = ["tests", "unit", "units"]
        result[test_columns] = result[test_columns].bfill().ffill()
        return result.assign(significant=result["significant"].eq(True))

    def with_relative_mase(self, entries: pd.DataFrame) -> pd.DataFrame:
        """Add MASE over that of the seasonal naive forecast to one model's entries.

        ``baseline_relative_mase`` is that of the plain model.

        Returns:
            The entries with two more columns.
        """
        model = entries["model"].iloc[0]
        if model not in self._cache:
            ratios = self.mase_ratios(model)
            # where the plain model's ratio is 0 or undefined, no variant has one that
            # could be compared
            usable = ratios[ratios[PLAIN].gt(0)]
            logs: Any = np.log(usable.where(usable.gt(0) & np.isfinite(usable)))
            # a variant that lacks a ratio on any of these datasets has no mean
            self._cache[model] = np.exp(logs.mean(skipna=False))
        mase = self._cache[model]
        return entries.assign(
            relative_mase=entries["variant"].map(mase),
            baseline_relative_mase=float(mase[PLAIN]),
        )

    def mase_ratios(self, model: str) -> pd.DataFrame:
        """Compute MASE of a model's variants over that of the seasonal naive forecast.

        Returns:
            Ratios, a row for each dataset and a column for each variant.
        """
        is_naive = self.sums["variant"] == SEASONAL_NAIVE
        rows = self.sums[(self.sums["model"] == model) | is_naive]
        ratios = normalised(dataset_metrics(rows, ["MASE"]))["MASE"]
        return ratios.droplevel("model").unstack("variant")


def chosen_and_drawn(lines: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split the entries of a recipe into its own, and random draws of other heads."""
    chosen = lines[lines["family"] == "recipes"]
    draws = lines[lines["family"] == "random"]
    # A draw of the very heads that were chosen is no other choice, and two draws of the
    # same heads are one. New plans have neither.
    others = draws[~draws["variant"].isin(chosen["variant"])]
    return chosen, others.drop_duplicates("variant")
