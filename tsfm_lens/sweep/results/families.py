"""Rows of a sweep, and all tests of its report on one model and metric, corrected as
one family.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.core.stats import holm
from tsfm_lens.sweep.planner.config import Statistics
from tsfm_lens.sweep.planner.search import is_random
from tsfm_lens.sweep.statistics.changes import SIZES, changes, difference, leaders
from tsfm_lens.sweep.statistics.scores import (
    PLAIN,
    SEASONAL_NAIVE,
    dataset_metrics,
    normalised,
)

LEADS = ("leads", "lead_share")
CHANGE = (*SIZES, "p_value", "p_holm", "significant", "tests", "unit", "units", *LEADS)
EFFECTS = ("layers", "groups", "ranges", "heads_per_layer", "components")
HEAVY = ("recipes", "random", "components")


@dataclass(frozen=True, eq=False)
class Results:
    """A finished or unfinished sweep.

    Attributes:
        sums: of each series, by model, variant and dataset.
        plan: entries of the sweep.
        layers: number of layers of each model.
        statistics: confidence of intervals and tests.
        limits: the number of heads to keep by layer and order, if it was searched; see
            :func:`better_orders`.
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
    _cache: dict[Any, Any] = field(default_factory=dict)

    def of(self, model: str, *families: str) -> pd.DataFrame:
        """Return the entries of a model in some families."""
        return self.plan[
            (self.plan["model"] == model) & self.plan["family"].isin(families)
        ]

    def by_model(self, *families: str) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield each model with its entries in some families, if it has any but the
        plain model.
        """
        for model in self.plan["model"].unique():
            entries = self.of(model, *families)
            if set(entries["variant"]) - {PLAIN}:
                yield model, entries

    def rows(self, model: str, variants: Iterable[str]) -> pd.DataFrame:
        """Return the sums of some variants of a model and of the plain one."""
        found = [
            self._places[model, name]
            for name in {PLAIN, *variants}
            if (model, name) in self._places
        ]
        return self.sums.iloc[np.sort(np.concatenate(found))]

    @cached_property
    def _places(self) -> dict[Any, Any]:
        return dict(self.sums.groupby(["model", "variant"]).indices)

    def tested(self, model: str, metric: str = "MASE") -> pd.DataFrame:
        """Measure all :func:`changes` of a model's metric that a report shows, its
        tests corrected as one family.

        Returns:
            A row per variant; below them the tests between choices, with the choice
            ``of`` which they are.
        """
        if (model, metric) not in self._cache:
            visible = {
                "MASE": tuple(self.plan["family"].unique()),
                "spearman_distance": (*EFFECTS, "heads"),
            }
            families = visible.get(
                metric, (*HEAVY, "head_counts") if metric == self.judged_by else HEAVY
            )
            confidence = self.statistics.confidence
            pairs = list(self._contrasts(model, metric))
            rows = self.rows(model, self.of(model, *families)["variant"])
            table = (
                changes(rows, metric=metric, confidence=confidence)
                .set_index("variant")
                .assign(of="")
            )
            tests = [
                difference(table, chosen, rest, confidence) for _, chosen, rest in pairs
            ]
            table = pd.concat(
                [
                    table,
                    *(
                        [pd.DataFrame(tests).assign(of=[of for of, *_ in pairs])]
                        if pairs
                        else []
                    ),
                ]
            )
            p_holm = holm(table["p_value"].to_numpy(float))
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
        """Yield each choice with what it is held against: an order with the others, a
        recipe with random heads.
        """
        if self.limits is not None and metric == self.judged_by:
            counts = self.of(model, "head_counts")
            best = self.limits[self.limits["better"]]
            for row in best[best["model"] == model].to_dict("records"):
                here = counts[
                    (counts["layer"] == row["layer"])
                    & (counts["ablated"] == row["ablated"])
                ]
                in_order = here.loc[here["order"] == row["order"], "variant"]
                rest = here.loc[
                    (here["order"] != row["order"]) & ~here["order"].map(is_random),
                    "variant",
                ]
                # all heads of a layer are the same in any order
                if len(in_order) and not set(in_order) & set(rest):
                    yield from (
                        (f"order in {row['layer']}", in_order.iloc[0], [other])
                        for other in rest
                    )
        if metric == "MASE":
            for recipe, lines in self.of(model, "recipes", "random").groupby(
                "recipe", sort=False
            ):
                own, draws = chosen_and_drawn(lines)
                if len(own) and len(draws):
                    yield (
                        f"choice of {recipe}",
                        own["variant"].iloc[0],
                        draws["variant"].tolist(),
                    )

    def leads(self, entries: pd.DataFrame, metric: str = "MASE") -> pd.DataFrame:
        """Find the :func:`leaders` among the entries of one model, by variant."""
        table = self.tested(entries["model"].iloc[0], metric)
        return leaders(
            table.loc[sorted(set(entries["variant"]) & set(table.index))],
            self.statistics.confidence,
        )

    def measured(self, entries: pd.DataFrame, metric: str = "MASE") -> pd.DataFrame:
        """Return entries of one model with the columns of their change, and which of
        them leads.
        """
        table = self.tested(entries["model"].iloc[0], metric).join(
            self.leads(entries, metric)
        )
        plain = entries["variant"] == PLAIN
        found = entries.assign(
            metric=metric,
            **{name: entries["variant"].map(table[name]) for name in CHANGE},
        )
        # the plain model changes nothing, for certain
        found.loc[plain, list(SIZES)] = 0.0
        found.loc[plain, ["p_value", "p_holm"]] = 1.0
        # one family is as good as another for the plain model, which is in no test
        test = ["tests", "unit", "units"]
        found[test] = found[test].bfill().ffill()
        return found.assign(significant=found["significant"].eq(True))

    def with_mase(self, entries: pd.DataFrame) -> pd.DataFrame:
        """Add MASE over that of the seasonal naive forecast to one model's entries, and
        the plain model's.
        """
        model = entries["model"].iloc[0]
        if model not in self._cache:
            usable = self.mase_ratios(model)[lambda ratios: ratios[PLAIN].gt(0)]
            # a variant without a metric on one of them has no mean over all of them
            self._cache[model] = np.exp(
                np.log(usable.where(usable.gt(0) & np.isfinite(usable))).mean(
                    skipna=False
                )
            )
        mase = self._cache[model]
        return entries.assign(
            mase=entries["variant"].map(mase), baseline_mase=float(mase[PLAIN])
        )

    def mase_ratios(self, model: str) -> pd.DataFrame:
        """Compute (dataset, variant): MASE of a model's variants over that of the
        seasonal naive forecast.
        """
        rows = self.sums[
            (self.sums["model"] == model) | (self.sums["variant"] == SEASONAL_NAIVE)
        ]
        return (
            normalised(dataset_metrics(rows, ["MASE"]))["MASE"]
            .droplevel("model")
            .unstack("variant")
        )


def chosen_and_drawn(lines: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split the entries of a recipe into its own, and random draws of other heads."""
    own = lines[lines["family"] == "recipes"]
    draws = lines[lines["family"] == "random"]
    # a draw of the very heads that were chosen is no other choice
    return own, draws[~draws["variant"].isin(own["variant"])]
