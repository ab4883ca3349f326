"""Readings of the figures of sweeps: plain sentences computed from their numbers.

A layer, order or recipe is named as the best or worst only if it differs from all others after correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.catalogue.words import listed, num
from tsfm_lens.viz.sweep_entries import (
    PARTS,
    change_text,
    change_words,
    counted,
    effects_of,
    models_in,
    order_words,
    points_words,
    table_of,
    told,
    tolerance_of,
)
from tsfm_lens.viz.sweep_heads import is_random
from tsfm_lens.viz.sweep_layers import most_ablatable
from tsfm_lens.viz.sweep_recipes import recipe_rows
from tsfm_lens.viz.theme import percent

_MAX_NAMES = 8  # things that are named one by one
_SMALL = 0.01  # a change of MASE that a reader would call small


def runs(numbers: Sequence[int]) -> str:
    """Write whole numbers with neighbours put together: "0, 3 to 5 and 9"."""
    ranges: list[list[int]] = []
    for each in sorted(set(numbers)):
        if ranges and each == ranges[-1][1] + 1:
            ranges[-1][1] = each
        else:
            ranges.append([each, each])
    return listed(
        [word for a, b in ranges for word in ([f"{a} to {b}"] if b > a + 1 else sorted({str(a), str(b)}, key=int))]
    )


def read_distances(table: pd.DataFrame, part: str) -> list[str]:
    """Describe which single layers matter, which changes stand, and where the forecast keeps its shape."""
    rows = effects_of(table, "spearman_distance", "distance_leads", "change", "stands", "tests")
    rows = rows[(rows["part"] == part) & rows["family"].isin(("layers", "groups"))]
    rows = rows[np.isfinite(rows["spearman_distance"])]
    out = []
    for model in models_in(rows):
        mine = rows[rows["model"] == model]
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
    small = int((rows["change"].abs() < _SMALL).sum())
    standing = rows.loc[rows["stands"], "first"].tolist()
    word = "the changes of layers" if len(standing) > 1 else "the change of layer"
    which = f"{word} {runs(standing)} stand{'' if len(standing) > 1 else 's'}" if standing else "no change stands"
    summary = (
        f"{model}: without the {PARTS[part]} of one layer, {small} of {counted(len(rows), 'layer')} "
        f"change{'s' if small == 1 else ''} MASE by less than "
        f"{percent(_SMALL)}; {which} after Holm's correction{_family(rows)}."
    )
    if len(rows) < 2:
        return [summary]
    leaders = {row["distance_leads"]: row for row in told(rows[rows["distance_leads"] != ""])}
    verbs = {"lowest": "keeps its shape best", "highest": "loses its shape most"}
    parts = [
        f"{verb} without layer {leaders[side]['first']} (Spearman distance {num(leaders[side]['spearman_distance'])})"
        for side, verb in verbs.items()
        if side in leaders
    ]
    low, high = rows["spearman_distance"].min(), rows["spearman_distance"].max()
    none = (
        f"No layer stands out by how far the forecast moves without it (Spearman distance {num(low)} to {num(high)})."
    )
    return [summary, f"The forecast {listed(parts)}." if parts else none]


def _family(rows: pd.DataFrame) -> str:
    """Write how many tests a correction was for."""
    sizes = sorted(set(rows["tests"]))
    tests = "test" if sizes == [1] else "tests"
    return f" (famil{'ies' if len(sizes) > 1 else 'y'} of {listed([str(size) for size in sizes])} {tests})"


def read_heads(table: pd.DataFrame) -> list[str]:
    """Describe which single heads' changes stand, and whether one of them costs more than every other."""
    rows = table_of(table, "sweep_heads", "change", "lower", "upper", "stands", "leads", "tests")
    rows = rows[np.isfinite(rows["change"])]
    out = []
    for model in models_in(rows):
        mine = rows[rows["model"] == model]
        standing = mine[mine["stands"]]
        verb = "stands" if len(standing) == 1 else "stand"
        summary = (
            f"{model}: without one head, MASE changes by {change_text(mine['change'].min())} to "
            f"{change_text(mine['change'].max())}; of {counted(len(mine), 'change')} "
            f"{len(standing) or 'none'} {verb if len(standing) else 'stands'} after Holm's correction{_family(mine)}"
        )
        by_size = standing.loc[standing["change"].abs().sort_values(ascending=False, kind="stable").index]
        which = [f"{row['label']} ({change_words(row)})" for row in told(by_size.head(_MAX_NAMES))]
        more = f", and {len(standing) - _MAX_NAMES} more in the table" if len(standing) > _MAX_NAMES else ""
        out.append(f"{summary}: {listed(which)}{more}." if which else f"{summary}.")
        if not which:
            out.append(f"These data do not tell which head of {model} matters; more datasets or series may.")
        for row in told(mine[(mine["leads"] == "highest") & mine["stands"]]):
            out.append(f"The loss of {row['label']} costs more than that of every other head.")
    return out


def read_components(table: pd.DataFrame) -> list[str]:
    """State what the most ablatable layer of every model costs, part by part."""
    rows = effects_of(table, "change", "stands", "leads", "baseline_mase")
    layers = rows[(rows["family"] == "layers") & (rows["size"] == 1) & np.isfinite(rows["change"])]
    out = []
    for best in told(most_ablatable(layers)):
        parts = [
            f"{change_words(row)}{', which stands,' if row['stands'] else ''} without its {PARTS[row['part']]}"
            for row in told(layers[(layers["model"] == best["model"]) & (layers["first"] == best["first"])])
        ]
        which = f"{best['model']} bears the loss of layer {best['first']} best"
        if best["leads"] != "lowest":
            which = f"{best['model']}: no layer's loss stands out as the cheapest; drawn is layer {best['first']}"
        out.append(f"{which}: its MASE of {num(best['baseline_mase'])} changes by {listed(parts)}.")
    return out


def read_ranges(table: pd.DataFrame) -> list[str]:
    """State how long a range may get before the error rises, by part."""
    rows = effects_of(table, "mase", "change", "stands")
    rows = rows[(rows["family"] == "ranges") & np.isfinite(rows["change"])]
    out = []
    for (model, part), lengths in rows.groupby(["model", "part"], sort=False):
        fine = lengths[lengths["change"] < _SMALL]
        longest = told(lengths.sort_values("size"))[-1]
        reach = (
            f"stays within {percent(_SMALL)} up to {counted(int(fine['size'].max()), 'layer')}"
            if len(fine)
            else (f"rises by {percent(_SMALL)} or more at once")
        )
        out.append(
            f"{model}, without {PARTS[str(part)]}: the MASE {reach}; over all {counted(longest['size'], 'layer')} it "
            f"changes by {change_text(longest['change'])}{', which stands' if longest['stands'] else ''}."
        )
    return out


def read_curves(table: pd.DataFrame) -> list[str]:
    """State how many heads the layers of one model can lose, and whether one order is the better one throughout."""
    rows = table_of(table, "sweep_curves", "change", "within", "better", "order_stands")
    rows = rows[np.isfinite(rows["change"])]
    if rows.empty:
        return []
    model = rows["model"].iloc[0]
    layers = rows.drop_duplicates("layer")
    valid = layers[layers["within"] >= 0]
    if valid.empty:
        return [f"{model}: how many heads of a layer can go is not decided yet."]
    whole = valid.loc[valid["within"] == valid["of"], "layer"].tolist()
    metric = valid["judged_by"].iloc[0]
    out = [
        f"{model}: in {len(whole)} of {counted(len(valid), 'layer')} all heads can go at once with a rise of {metric} "
        f"below {percent(tolerance_of(table))}{f' (layer{_s(whole)} {runs(whole)})' if whole else ''}; "
        f"{_least(valid.assign(kept=valid['of'] - valid['within']))}."
    ]
    # a layer that bears every order says nothing about orders
    open_layers = valid[valid["within"] < valid["of"]]
    orders = [order for order in dict.fromkeys(rows["order"]) if not is_random(order)]
    if len(orders) > 1 and len(open_layers):
        better = rows[rows["better"] & (rows["within"] > 0) & (rows["within"] < rows["of"])].drop_duplicates("layer")
        parts = [f"{order_words(order)} in {(better['order'] == order).sum()}" for order in orders]
        none = int((open_layers["within"] == 0).sum())
        remark = f"; in {none} no head can go" if none else ""
        standing = better.loc[better["order_stands"], "layer"].tolist()
        where = f"layer{_s(standing)} {runs(standing)}" if standing else "no layer"
        out.append(
            f"Of the {counted(len(open_layers), 'other layer')}, the better order is {listed(parts)}{remark}; that the "
            f"other order costs more there stands after Holm's correction in {where}."
        )
    return out


def _least(rows: pd.DataFrame) -> str:
    """Name the layer that needs its heads most, if losing all of them costs more there than in every other layer."""
    most = told(rows[rows["leads"] == "highest"])
    if most:
        return f"layer {most[0]['layer']} bears least, it keeps {most[0]['kept']} of {most[0]['of']}"
    low, high = rows["kept"].min(), rows["kept"].max()
    span = f"{low}" if low == high else f"{low} to {high}"
    return f"layers keep {span} of {counted(int(rows['of'].max()), 'head')}, and none stands out as bearing least"


def _s(things: Sequence[Any]) -> str:
    return "s" if len(things) > 1 else ""


def read_heads_at(table: pd.DataFrame) -> list[str]:
    """State how many heads each model can do without, and what the search cost."""
    table_of(table, "sweep_heads_at", "kept", "of", "layer", "better", "leads")
    best = table[table["better"]]
    out = []
    for model in models_in(best):
        rows = best[best["model"] == model]
        total, remaining = int(rows["of"].sum()), int(rows["kept"].sum())
        none = rows.loc[rows["kept"] == 0, "layer"].tolist()
        text = (
            f"{model}: layer by layer, {total - remaining} of {counted(total, 'head')} can go "
            f"({percent((total - remaining) / total)}); {_least(rows)}"
        )
        out.append(text + (f"; layer{_s(none)} {runs(none)} need{'' if _s(none) else 's'} none." if none else "."))
    evaluations, all_of = int(table["evaluations"].sum()), int(table["total"].sum())
    out.append(
        f"The search ({table.attrs.get('search', 'scan')}) used {evaluations} of {counted(all_of, 'evaluation')}."
    )
    return out


def read_datasets(table: pd.DataFrame) -> list[str]:
    """State on how many datasets a layer can lose its heads, and on how many that helps; of one model."""
    out = []
    for layer, rows in table.groupby("layer", sort=False):
        finite = rows[np.isfinite(rows["change"])]
        if finite.empty:
            continue
        of, remaining = int(rows["of"].iloc[0]), int(rows["kept"].iloc[0])
        # no head ablated is always within
        largest = finite.groupby("dataset")["largest_within"].first().clip(lower=0)
        without = finite.loc[finite["ablated"] == of, "change"]
        text = (
            f"Layer {layer} (keeps {remaining} of {of} heads over all datasets): all {of} heads can go within "
            f"{percent(tolerance_of(table))} on {int((largest == of).sum())} of {counted(len(largest), 'dataset')}, "
            f"their median largest number is {num(float(largest.median()))}"
        )
        falls = f"; without all heads the MASE falls on {int((without < 0).sum())}"
        out.append(f"{text}{falls if len(without) else ', of those evaluated'}.")
    return out


def read_recipes(table: pd.DataFrame) -> list[str]:
    """State what each recipe costs in MASE, what stands, and how many datasets bear it."""
    rows = recipe_rows(table)
    rows = rows[rows["metric"] == ("MASE" if (rows["metric"] == "MASE").any() else rows["metric"].iloc[0])]
    out = []
    for row in told(rows.head(_MAX_NAMES)):
        if not np.isfinite(row["change"]):
            continue
        resilient, improved = row["n_resilient"], row["n_improved"]
        verdict = "stands" if row["stands"] else "does not stand"
        out.append(
            f"{row['label']}: {row['metric']} {change_words(row)}, which {verdict} after Holm's correction"
            f"{_family(rows)}; {resilient} of {counted(row['n_datasets'], 'dataset')} "
            f"rise{'s' if resilient == 1 else ''} by less than 5 %, {improved} of them "
            f"improve{'s' if improved == 1 else ''}."
        )
    if len(rows) > _MAX_NAMES:
        more = len(rows) - _MAX_NAMES
        out.append(f"{more} more {'is' if more == 1 else 'are'} in the table.")
    return out


def read_selection(table: pd.DataFrame) -> list[str]:
    """State whether an informed choice beats random ones, recipe by recipe."""
    table_of(table, "sweep_selection", "diff", "diff_lower", "diff_upper", "diff_stands")
    out = []
    for row in told(table[np.isfinite(table["diff"])]):
        same = (table["model"] == row["model"]) & (table["recipe"] == row["recipe"])
        seeds = int((same & (table["selection"] == "random")).sum())
        span = points_words(row["diff"], row["diff_lower"], row["diff_upper"]).partition(" ")[2]
        verdict = f" {span}, which {'stands' if row['diff_stands'] else 'does not stand'} after Holm's correction"
        out.append(
            f"{row['model']}, {row['recipe']}: the informed choice changes MASE by {change_text(row['diff'])[:-2]} "
            f"percentage points against the mean of {seeds} random one{'s' if seeds > 1 else ''}"
            f"{verdict if span else ''}."
        )
    return out
