"""What the figures of sweeps show, in plain sentences computed from their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.catalogue.words import listed, num
from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.sweep_entries import (
    PARTS,
    baseline_of,
    change_text,
    counted,
    effects_of,
    entries,
    models_in,
    order_words,
    span_text,
    told,
    tolerance_of,
)
from tsfm_lens.viz.sweep_heads import better_order, is_random
from tsfm_lens.viz.sweep_layers import most_ablatable
from tsfm_lens.viz.sweep_recipes import recipe_rows
from tsfm_lens.viz.theme import percent

_NAMED = 8  # things that are named one by one
_SMALL = 0.01  # a change of MASE that a reader would call small


def runs(numbers: Sequence[int]) -> str:
    """Whole numbers with neighbours put together: "0, 3 to 5 and 9"."""
    found: list[list[int]] = []
    for each in sorted(set(numbers)):
        if found and each == found[-1][1] + 1:
            found[-1][1] = each
        else:
            found.append([each, each])
    return listed(
        [word for a, b in found for word in ([f"{a} to {b}"] if b > a + 1 else sorted({str(a), str(b)}, key=int))]
    )


def read_distances(ds: xr.Dataset, part: str) -> list[str]:
    """Which single layers matter, which changes stand, and where the forecast keeps its shape."""
    table = effects_of(ds, "spearman_distance", "mase_change", "stands")
    table = table[(table["part"] == part) & table["family"].isin(("layers", "groups"))]
    table = table[np.isfinite(table["spearman_distance"].to_numpy(float))]
    out = []
    for model in models_in(table):
        mine = table[table["model"] == model]
        single, groups = mine[mine["size"] == 1], mine[mine["size"] > 1]
        if len(single):
            out += _single_layers(single, model, part)
        if len(groups):
            standing = int(groups["stands"].sum())
            out.append(
                f"Of {counted(len(groups), 'change')} of MASE without a group of layers, {standing} "
                f"stand{'s' if standing == 1 else ''}."
            )
    return out


def _single_layers(rows: pd.DataFrame, model: str, part: str) -> list[str]:
    small = int((rows["mase_change"].abs() < _SMALL).sum())
    standing = [int(layer) for layer in rows.loc[rows["stands"].astype(bool), "first"]]
    word = "the changes of layers" if len(standing) > 1 else "the change of layer"
    which = f"{word} {runs(standing)} stand{'' if len(standing) > 1 else 's'}" if standing else "no change stands"
    distance = rows["spearman_distance"].to_numpy(float)
    near, far = rows.iloc[int(distance.argmin())], rows.iloc[int(distance.argmax())]
    return [
        f"{model}: without the {PARTS[part]} of one layer, {small} of {counted(len(rows), 'layer')} "
        f"change{'s' if small == 1 else ''} MASE by less than "
        f"{percent(_SMALL)}; {which} after Holm's correction{_family(rows)}.",
        f"The forecast keeps its shape best without layer {near['first']} (Spearman distance "
        f"{num(near['spearman_distance'])}) and loses it most without layer {far['first']} "
        f"({num(far['spearman_distance'])}).",
    ]


def _family(rows: pd.DataFrame) -> str:
    """How many tests a correction was for, where the result says so."""
    if "tests" not in rows:
        return ""
    sizes = sorted({int(count) for count in rows["tests"]})
    tests = "test" if sizes == [1] else "tests"
    return f" (famil{'ies' if len(sizes) > 1 else 'y'} of {listed([str(size) for size in sizes])} {tests})"


def read_components(ds: xr.Dataset) -> list[str]:
    """What the most ablatable layer of every model costs, part by part."""
    table = effects_of(ds, "mase_change", "stands")
    layers = table[(table["family"] == "layers") & (table["size"] == 1) & np.isfinite(table["mase_change"])]
    out = []
    for model, layer in most_ablatable(layers).items():
        rows = layers[(layers["model"] == model) & (layers["first"] == layer)]
        parts = [f"{_change(row, 'mase_change')} without its {PARTS[row['part']]}" for row in told(rows)]
        out.append(
            f"{model} bears the loss of layer {layer} best: its MASE of {num(baseline_of(ds, model))} changes by "
            f"{listed(parts)}."
        )
    return out


def _change(row: dict[str, Any], name: str) -> str:
    """A change with its interval, and whether it stands."""
    lower, upper = ("lower", "upper") if name == "change" else (f"{name}_lower", f"{name}_upper")
    span = span_text(row.get(lower, np.nan), row.get(upper, np.nan))
    return f"{change_text(row[name])}{f' {span}' if span else ''}{', which stands,' if row['stands'] else ''}"


def read_ranges(ds: xr.Dataset) -> list[str]:
    """How long a range may get before the error rises, by part."""
    table = effects_of(ds, "mase", "mase_change", "stands")
    table = table[(table["family"] == "ranges") & np.isfinite(table["mase_change"])]
    out = []
    for model in models_in(table):
        for part in [part for part in PARTS if part in set(table["part"])]:
            rows = table[(table["model"] == model) & (table["part"] == part)].sort_values("size")
            if rows.empty:
                continue
            fine = rows[rows["mase_change"] < _SMALL]
            longest = told(rows)[-1]
            reach = (
                f"stays within {percent(_SMALL)} up to {_layers(fine['size'].max())}"
                if len(fine)
                else (f"rises by {percent(_SMALL)} or more at once")
            )
            out.append(
                f"{model}, without {PARTS[part]}: the MASE {reach}; over all {_layers(longest['size'])} it changes by "
                f"{change_text(longest['mase_change'])}{', which stands' if longest['stands'] else ''}."
            )
    return out


def _layers(count: float) -> str:
    return f"{int(count)} layer{'s' if count > 1 else ''}"


def read_curves(ds: xr.Dataset, model: str) -> list[str]:
    """How many heads the layers of a model can lose, and whether one order is the better one throughout."""
    table = entries(ds, "sweep_curves", "mase_change")
    table = table[(table["model"] == model) & np.isfinite(table["mase_change"].to_numpy(float))]
    if table.empty:
        return []
    tolerance = tolerance_of(ds)
    best = {int(layer): better_order(rows, tolerance) for layer, rows in table.groupby("layer")}
    sizes = {int(layer): int(rows["of"].max()) for layer, rows in table.groupby("layer")}
    whole = [layer for layer, (_, within) in best.items() if within == sizes[layer]]
    least = min(best, key=lambda layer: best[layer][1] / sizes[layer])
    out = [
        f"{model}: in {len(whole)} of {counted(len(best), 'layer')} all heads can go at once with a rise of MASE below "
        f"{percent(tolerance)}{f' (layer{_s(whole)} {runs(whole)})' if whole else ''}; layer {least} bears least, "
        f"{best[least][1]} of {counted(sizes[least], 'head')}."
    ]
    # a layer that bears every order says nothing about orders
    open_layers = {layer: order for layer, (order, within) in best.items() if within < sizes[layer]}
    orders = [order for order in dict.fromkeys(table["order"]) if not is_random(order)]
    if len(orders) > 1 and open_layers:
        counts = {order: sum(each == order for each in open_layers.values()) for order in orders}
        parts = [f"{order_words(order)} in {count}" for order, count in counts.items()]
        none = sum(not order for order in open_layers.values())
        said = f"; in {none} no head can go" if none else ""
        out.append(f"Of the {counted(len(open_layers), 'other layer')}, the better order is {listed(parts)}{said}.")
    return out


def _s(things: Sequence[Any]) -> str:
    return "s" if len(things) > 1 else ""


def read_heads_at(ds: xr.Dataset) -> list[str]:
    """How many heads each model can do without, and what the search cost."""
    table = entries(ds, "sweep_heads_at", "kept", "of", "layer")
    table = table[np.isfinite(table["kept"].to_numpy(float))]
    out = []
    for model in models_in(table):
        rows = table[table["model"] == model]
        total, kept = int(rows["of"].sum()), int(rows["kept"].sum())
        none = [int(layer) for layer in rows.loc[rows["kept"] == 0, "layer"]]
        most = rows.iloc[int((rows["kept"] / rows["of"]).to_numpy(float).argmax())]
        text = (
            f"{model}: layer by layer, {total - kept} of {counted(total, 'head')} can go "
            f"({percent((total - kept) / total)}); layer {most['layer']} needs most, "
            f"{int(most['kept'])} of {int(most['of'])}"
        )
        out.append(text + (f"; layer{_s(none)} {runs(none)} need{'' if _s(none) else 's'} none." if none else "."))
    if {"evaluations", "total"} <= set(table):
        spent, all_of = int(table["evaluations"].sum()), int(table["total"].sum())
        out.append(f"The search ({ds.attrs.get('search', 'scan')}) used {spent} of {counted(all_of, 'evaluation')}.")
    return out


def read_datasets(ds: xr.Dataset, model: str) -> list[str]:
    """On how many datasets a layer can lose its heads, and on how many that helps."""
    out = []
    for i in [i for i, each in enumerate(ds["model"].values) if str(each) == model]:
        of, layer = int(ds["of"].values[i]), int(ds["layer"].values[i])
        largest = array(ds, "largest_within", "dataset", panel=i)
        change = array(ds, "mase_change", "dataset", "ablated", panel=i)
        known = np.isfinite(change).any(axis=1)
        if not known.any():
            continue
        # no head ablated is always within
        largest, without = np.maximum(largest[known], 0), change[known, names(ds, "ablated").index(str(of))]
        text = (
            f"Layer {layer} ({ds['role'].values[i]}): all {of} heads can go within {percent(tolerance_of(ds))} on "
            f"{int((largest == of).sum())} of {counted(int(known.sum()), 'dataset')}, their median "
            f"largest number is {num(float(np.median(largest)))}"
        )
        falls = f"; without all heads the MASE falls on {int((without < 0).sum())}"
        out.append(f"{text}{falls if np.isfinite(without).any() else ', of those evaluated'}.")
    return out


def read_recipes(ds: xr.Dataset) -> list[str]:
    """What each recipe costs in MASE, what stands, and how many datasets bear it."""
    metrics = names(ds, "metric")
    main = metrics.index("MASE") if "MASE" in metrics else 0
    numbers = {name: array(ds, name, "entry", "metric")[:, main] for name in ("change", "lower", "upper", "stands")}
    out = []
    table = recipe_rows(ds)
    for row in told(table.head(_NAMED)):
        own = {name: values[row["place"]] for name, values in numbers.items()}
        if not np.isfinite(own["change"]):
            continue
        counts = ""
        if "n_resilient" in row:
            resilient, improved = int(row["n_resilient"]), int(row["n_improved"])
            counts = (
                f"; {resilient} of {counted(int(row['n_datasets']), 'dataset')} rise{'s' if resilient == 1 else ''} "
                f"by less than 5 %, {improved} of them improve{'s' if improved == 1 else ''}"
            )
        stands = "stands" if own["stands"] else "does not stand"
        span = span_text(own["lower"], own["upper"])
        out.append(
            f"{row['label']}: {metrics[main]} {change_text(own['change'])}{f' {span}' if span else ''}, which {stands} "
            f"after Holm's correction{_family(table)}{counts}."
        )
    if len(table) > _NAMED:
        more = len(table) - _NAMED
        out.append(f"{more} more {'is' if more == 1 else 'are'} in the table.")
    return out


def read_selection(ds: xr.Dataset) -> list[str]:
    """Whether an informed choice beats random ones, recipe by recipe."""
    out = []
    columns = (ds[name].values for name in ("pair_model", "pair_recipe", "diff", "diff_lower", "diff_upper"))
    for model, recipe, diff, lower, upper in zip(*columns, strict=True):
        if not np.isfinite(diff):
            continue
        known = np.isfinite([lower, upper]).all()
        verdict = "an interval without 0" if lower > 0 or upper < 0 else "an interval that holds 0"
        seeds = int(((ds["model"] == model) & (ds["recipe"] == recipe) & (ds["selection"] == "random")).sum())
        span = span_text(lower, upper).replace(" %]", "]")
        said = f" {span}, {verdict}" if known else ""
        out.append(
            f"{model}, {recipe}: the informed choice changes MASE by {change_text(diff)[:-2]} percentage points "
            f"against the mean of {seeds} random one{'s' if seeds > 1 else ''}{said}."
        )
    return out
