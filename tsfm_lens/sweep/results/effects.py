"""The Datasets that the figures of a sweep are drawn from, with intervals and corrected tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.sweep.results.frames import (
    CHANGE,
    TABLE_METRICS,
    Results,
    baselines,
    change_columns,
    columns,
    coords,
    per_dataset,
)
from tsfm_lens.sweep.statistics.changes import difference, resilience
from tsfm_lens.sweep.statistics.pooling import PLAIN

EFFECTS = ("layers", "groups", "ranges", "heads", "heads_per_layer", "components")
RECIPE = {"change": "change", "lower": "lower", "upper": "upper", "p_value": "p_holm", "stands": "stands"}


def effects(results: Results) -> xr.Dataset | None:
    """What single layers, groups, ranges, heads and sets of components are worth; kind "sweep_effects"."""
    frames = []
    for model in results.models:
        entries = results.of(model, *EFFECTS)
        if entries.empty:
            continue
        mase = results.normalised_mase(model)
        # one family of tests: the entries of one kind and part
        entries = entries.assign(part=entries["part"].fillna("both"))
        for _, own in entries.groupby(["family", "part"], sort=False):
            moved, distance = results.changes(own), results.changes(own, "spearman_distance")
            if moved.empty:
                continue
            frames.append(
                own.assign(
                    n_layers=results.layers[model],
                    tests=len(moved),
                    mase=own["variant"].map(mase),
                    **change_columns(own, moved),
                    **{
                        f"spearman_distance{end}": own["variant"].map(distance[column])
                        for end, column in {"": "value", "_lower": "lower", "_upper": "upper"}.items()
                    },
                )
            )
    if not frames:
        return None
    table = pd.concat(frames, ignore_index=True)
    names = ["spearman_distance", "spearman_distance_lower", "spearman_distance_upper", "mase", *CHANGE]
    places = coords(table, ["model", "family", "label", "part", "first", "last", "n_layers", "tests"])
    return results.dataset(
        "sweep_effects",
        "Ablated parts of the models",
        {**columns(table, names), **baselines(results)},
        {**places, "model_name": results.models},
    )


def curves(results: Results, tolerance: float) -> xr.Dataset | None:
    """Error over the number of heads ablated, for each layer and order; kind "sweep_curves"."""
    frames = []
    for model in results.models:
        own = results.of(model, "head_counts")
        if own.empty:
            continue
        mase, moved = results.normalised_mase(model), results.changes(own)
        if moved.empty:
            continue
        frames.append(own.assign(mase=own["variant"].map(mase), tests=len(moved), **change_columns(own, moved)))
    if not frames:
        return None
    table = pd.concat(frames, ignore_index=True)
    table["share"] = table["ablated"].astype(float) / table["of"].astype(float)
    return results.dataset(
        "sweep_curves",
        "Heads ablated in one layer",
        {**columns(table, ["mase", *CHANGE]), **baselines(results)},
        {
            **coords(table, ["model", "layer", "order", "ablated", "of", "share", "label", "tests"]),
            "model_name": results.models,
        },
        tolerance=tolerance,
    )


def heads_at(
    results: Results, found: Sequence[Mapping[str, Any]], tolerance: float, metric: str, search: str
) -> xr.Dataset | None:
    """How many heads each layer must keep; kind "sweep_heads_at".

    Args:
        results: of the sweep.
        found: the planner's searches: model, layer, order, of, kept, change, evaluations, total.
        tolerance, metric, search: of the searches.
    """
    if not found:
        return None
    table = pd.DataFrame(found)
    orders = list(dict.fromkeys(table["order"]))
    kept = table.pivot(index=["model", "layer"], columns="order", values="kept").reindex(columns=orders)
    # the better order counts, of equals the first; the best of many random ones would win by luck
    chance = table["order"].str.startswith("random:")
    named = table[~chance] if not chance.all() else table
    best = named.sort_values(["kept", "change"], kind="stable").drop_duplicates(["model", "layer"])
    best = best.set_index(["model", "layer"]).sort_index().reset_index()
    spent = table.groupby(["model", "layer"])[["evaluations", "total"]].sum()
    places = pd.MultiIndex.from_frame(best[["model", "layer"]])
    best["ablated"] = best["of"] - best["kept"]
    best["evaluations"], best["total"] = (spent.loc[places, name].to_numpy() for name in ("evaluations", "total"))
    return results.dataset(
        "sweep_heads_at",
        "Heads that each layer must keep",
        {
            **columns(best, ["kept", "ablated", "change", "evaluations", "total"]),
            "kept_by_order": (("entry", "order_name"), kept.loc[places].to_numpy(dtype=float)),
        },
        {**coords(best, ["model", "layer", "of", "order"]), "order_name": orders},
        tolerance=tolerance,
        metric=metric,
        search=search,
    )


def by_dataset(results: Results, kept: xr.Dataset, tolerance: float, cap: float = 0.25) -> xr.Dataset | None:
    """Error on every dataset over heads ablated, in each model's most important and most ablatable layer.

    Kind "sweep_datasets". The most ablatable layer keeps the fewest heads within the tolerance, the most important
    the most; of equals, all heads ablated change the error least, or most.
    """
    panels = []
    for model in results.models:
        own = results.of(model, "head_counts")
        mine = kept.where(kept["model"] == model, drop=True) if model in kept["model"].values else None
        if own.empty or mine is None:
            continue
        complete = results.changes(own)["change"]
        whole = own[own["ablated"] == own["of"]].drop_duplicates("layer").set_index("layer")["variant"].map(complete)
        ranks = sorted(
            range(mine.sizes["entry"]),
            key=lambda i: (int(mine["kept"][i]), float(whole.get(int(mine["layer"][i]), np.nan))),
        )
        roles = {ranks[-1]: "most important", ranks[0]: "most ablatable"}
        for place, role in roles.items():
            layer, order = int(mine["layer"][place]), str(mine["order"].values[place])
            line = own[(own["layer"] == layer) & (own["order"] == order)].sort_values("ablated")
            if len(line):
                panels.append((model, layer, order, role, line))
    if not panels:
        return None
    tables = [per_dataset(results, model, line) for model, _, _, _, line in panels]
    datasets = sorted(set().union(*(table.index for table, _ in tables)))
    most = max(int(line["of"].iloc[0]) for *_, line in panels)
    shape = (len(panels), len(datasets), most + 1)
    value, change = np.full(shape, np.nan), np.full(shape, np.nan)
    for panel, (mase, moved) in enumerate(tables):
        rows = [datasets.index(name) for name in mase.index]
        value[panel][np.ix_(rows, [int(c) for c in mase.columns])] = mase.to_numpy()
        change[panel][np.ix_(rows, [int(c) for c in moved.columns])] = moved.to_numpy()
    counts = np.arange(most + 1)
    within = np.where(change < tolerance, counts, -1).max(axis=2)
    return results.dataset(
        "sweep_datasets",
        "Error on each dataset over heads ablated",
        {
            "mase": (("panel", "dataset", "ablated"), value),
            "mase_change": (("panel", "dataset", "ablated"), change),
            "largest_within": (("panel", "dataset"), within),
        },
        {
            "panel": [f"{model}, layer {layer}" for model, layer, *_ in panels],
            "dataset": datasets,
            "ablated": counts,
            "model": ("panel", [model for model, *_ in panels]),
            "layer": ("panel", [layer for _, layer, *_ in panels]),
            "order": ("panel", [order for _, _, order, *_ in panels]),
            "role": ("panel", [role for *_, role, _ in panels]),
            "of": ("panel", [int(line["of"].iloc[0]) for *_, line in panels]),
        },
        tolerance=tolerance,
        cap=cap,
    )


def recipes(results: Results) -> xr.Dataset | None:
    """What heavy ablations cost on every metric; kind "sweep_recipes"."""
    frames, blocks = [], []
    for model in results.models:
        own = results.of(model, "recipes", "random", "components")
        if own.empty:
            continue
        by_metric = {metric: results.changes(own, metric) for metric in TABLE_METRICS}
        wanted = {PLAIN, *own["variant"]}
        rows = results.sums[(results.sums["model"] == model) & results.sums["variant"].isin(wanted)]
        counts = resilience(rows).set_index("variant")
        frames.append(
            own.assign(
                recipe=own["recipe"].fillna(own["label"]),
                selection=own["selection"].fillna("listed"),
                tests=len(wanted) - 1,
                **{name: own["variant"].map(counts[name]) for name in ("n_resilient", "n_improved", "n_datasets")},
            )
        )
        blocks.append(
            {
                name: np.stack([own["variant"].map(by_metric[m][column]).to_numpy() for m in TABLE_METRICS], axis=1)
                for name, column in RECIPE.items()
            }
        )
    if not frames:
        return None
    table = pd.concat(frames, ignore_index=True)
    table = table.rename(columns={"ablated": "heads_ablated", "of": "heads_total", "mlps": "n_mlps"})
    together = {name: np.concatenate([block[name] for block in blocks]) for name in RECIPE}
    together["stands"] = together["stands"] == 1
    return results.dataset(
        "sweep_recipes",
        "Heavy ablations",
        {
            **{name: (("entry", "metric"), values) for name, values in together.items()},
            **columns(table, ["n_resilient", "n_improved", "n_datasets"]),
        },
        {
            **coords(
                table,
                ["model", "recipe", "selection", "seed", "heads_ablated", "heads_total", "n_mlps", "label", "tests"],
            ),
            "metric": list(TABLE_METRICS),
        },
    )


def selection(results: Results) -> xr.Dataset | None:
    """Heads chosen by a rule against as many at random; kind "sweep_selection"."""
    frames, pairs = [], []
    for model in results.models:
        own = results.of(model, "recipes", "random")
        for name, lines in own.groupby("recipe", sort=False):
            drawn, chosen = lines[lines["family"] == "random"], lines[lines["family"] == "recipes"]
            # a draw of the very heads that were chosen is no other choice
            drawn = drawn[~drawn["variant"].isin(chosen["variant"])]
            if drawn.empty or chosen.empty:
                continue
            lines = pd.concat([chosen, drawn])
            moved = results.changes(lines)
            frames.append(lines.assign(tests=len(moved), **change_columns(lines, moved)))
            wanted = {PLAIN, *lines["variant"]}
            rows = results.sums[(results.sums["model"] == model) & results.sums["variant"].isin(wanted)]
            stats = results.statistics
            found = difference(
                rows,
                chosen["variant"].iloc[0],
                list(dict.fromkeys(drawn["variant"])),
                confidence=stats.confidence,
                replicates=stats.replicates,
                seed=results.seed,
            )
            pairs.append({"model": model, "recipe": name, **found})
    if not frames:
        return None
    table = pd.concat(frames, ignore_index=True)
    sides = pd.DataFrame(pairs)
    names = {"mase_change": "change", "mase_change_lower": "lower", "mase_change_upper": "upper"}
    table = table.rename(columns=names)
    return results.dataset(
        "sweep_selection",
        "Informed and random choices of heads",
        {
            **columns(table, ["change", "lower", "upper", "p_value", "stands"]),
            **{
                name: ("pair", sides[column].to_numpy(dtype=float))
                for name, column in {
                    "diff": "difference",
                    "diff_lower": "lower",
                    "diff_upper": "upper",
                    "diff_p": "p_value",
                }.items()
            },
        },
        {
            **coords(table, ["model", "recipe", "selection", "seed", "label", "tests"]),
            "pair_model": ("pair", list(sides["model"])),
            "pair_recipe": ("pair", list(sides["recipe"])),
        },
    )
