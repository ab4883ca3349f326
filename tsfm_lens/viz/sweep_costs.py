"""Forest of what single layers and heads cost: the finding of a sweep.

:func:`cost_forest` draws the entries of each model by their cost, :func:`read_costs`
says which of them can go.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tsfm_lens.core.registry import figure, measurement, panels
from tsfm_lens.viz import sweep_entries as sweep
from tsfm_lens.viz.findings import EffectEstimate
from tsfm_lens.viz.ratios import ratio_axis, ratio_bounds
from tsfm_lens.viz.select import head_word
from tsfm_lens.viz.sheet import Panel, sheet
from tsfm_lens.viz.theme import BLUE, GREY, SKY, mixed, percent, plain
from tsfm_lens.viz.words import listed, verb

__all__ = ["cost_forest"]

_ROW = 16  # pixels of an entry
_ARROW = 8  # pixels
_GAP = 34  # pixels between two models
_MAX_NAMES = 3  # entries that a sentence names
_LEAST = 6  # entries that a model has room for, however many models there are
_LOST = {"heads": "all its heads", "both": "heads and MLP", "mlp": "its MLP"}
_COLUMNS = (
    *("model", "family", "label", "part", "layer", "attention", "head"),
    *("member", "member_change", "median", "median_lower", "median_upper"),
    *("significant", "unit", "units"),
)

measurement(
    "sweep_costs",
    title="Cost of losing a layer or a head",
    theme="Sweeps",
    summary="error without each layer and each head by itself, dataset by dataset",
    description=(
        "Each layer, its heads, its MLP and every head are ablated by themselves. The "
        "cost is the ratio of MASE to that of the whole model on the same windows, its "
        "median over datasets, which one dataset alone cannot move far. The interval "
        "is that of the sign test: its ends are datasets, and it holds 0 unless the "
        "test, uncorrected, says otherwise. Other chapters have the ratio of geometric "
        "means over datasets, which one dataset can move."
    ),
    source="tsfm-lens, figure 2 and section 5",
    subject=sweep.sweep_subject,
)


def read_costs(table: pd.DataFrame) -> list[str]:
    """State which layers and heads can go, model by model, and what they cost."""
    tolerance = sweep.find_tolerance(table)
    limit = percent(tolerance)
    finding = []
    out = []
    for model, rows in _entries(table).groupby("model", sort=False):
        clauses = []
        leading = []
        layers = rows[rows["family"] == "layers"]
        for part, lost in _LOST.items():
            of_part = layers[layers["part"] == part]
            if len(of_part):
                clauses.append(_tolerating(of_part, lost, tolerance))
                leading += _leading(of_part, lost)
        heads = rows[rows["family"] == "heads"]
        if len(heads):
            count = int((heads["median"] < tolerance).sum())
            # after what is said of their layers
            clauses.insert(
                1,
                f"{count or 'none'} of {sweep.counted(len(heads), 'head')}"
                f" {verb(count, 'cost')} less than {limit}, each by itself",
            )
            leading += _leading(heads, "one head")
        over = f"{rows['units'].max()} {rows['unit'].iloc[0]}"
        finding.append(
            f"{model} on {over}: {_significant(rows)}; {_removable(rows, tolerance)}."
        )
        # medians are of these units, and say nothing of others
        out.append(f"{model}, by medians, which are not tested: {'; '.join(clauses)}.")
        if leading:
            out.append(f"{model}: {'; '.join(leading)}.")
        else:
            out.append(f"{model}: no layer or head costs significantly most.")
        if above := _above_whole(layers):
            out.append(
                f"{model}: {listed(above[:_MAX_NAMES])}; costs do not add up, as what"
                " is left of a layer can do harm."
            )
    return [" ".join(finding), *out]


def _significant(rows: pd.DataFrame) -> str:
    """Say which costs are significant, the largest first."""
    count = sweep.counted(len(rows), "cost")
    by_size = rows.sort_values("median", key=np.abs, ascending=False, kind="stable")
    tested = sweep.told(by_size[by_size["significant"].astype(bool)])
    if not tested:
        most = sweep.told(rows.nlargest(1, "median"))[0]
        cost = sweep.change_text(most["median"])
        return (
            f"none of {count} is significant (largest median: {most['name']}, {cost})"
        )
    named = [
        f"{row['name']} (median {sweep.change_text(row['median'])})"
        for row in tested[:_MAX_NAMES]
    ]
    if len(tested) > _MAX_NAMES:
        named.append(f"{len(tested) - _MAX_NAMES} more")
    are = "is" if len(tested) == 1 else "are"
    return f"{len(tested)} of {count} {are} significant: {listed(named)}"


def _removable(rows: pd.DataFrame, tolerance: float) -> str:
    """Say what costs less than the tolerance by the whole interval of its median."""
    limit = percent(tolerance)
    if not np.isfinite(rows["median_upper"]).any():
        return f"too few to say what costs less than {limit}"
    free = rows[rows["median_upper"] < tolerance]["name"].tolist()
    if not free:
        return f"no interval is wholly below {limit}"
    if len(free) > _MAX_NAMES:
        free = [*free[:_MAX_NAMES], f"{len(free) - _MAX_NAMES} more"]
    return f"below {limit} by the whole interval: {listed(free)}"


def _tolerating(rows: pd.DataFrame, lost: str, tolerance: float) -> str:
    """Say which layers can lose a part, and where the median cost is largest."""
    layers = rows[rows["median"] < tolerance]["layer"].tolist()
    text = f"{sweep.name_tolerating(layers, len(rows))} losing {lost}"
    if len(layers) == len(rows) or len(rows) < 2:
        return text
    most = sweep.told(rows.nlargest(1, "median"))[0]
    cost = sweep.change_text(most["median"])
    return f"{text} (largest median: layer {most['layer']}, {cost})"


def _leading(rows: pd.DataFrame, lost: str) -> list[str]:
    """Say which entry costs significantly more than each of the others, if any."""
    return [
        f"without {lost}, {row['name']} costs significantly most"
        for row in sweep.told(rows[rows["leads"] == "highest"])
    ]


def _above_whole(layers: pd.DataFrame) -> list[str]:
    """Say which parts cost more than their whole layer, by medians."""
    whole = layers[layers["part"] == "both"].set_index("layer")["median"]
    parts = layers[layers["part"] != "both"]
    return [
        f"{row['name']}: {sweep.change_text(row['median'])}, more than the whole layer"
        f" ({sweep.change_text(whole[row['layer']])})"
        for row in sweep.told(parts.nlargest(len(parts), "median"))
        if row["layer"] in whole and row["median"] > max(whole[row["layer"]], 0)
    ]


def _entries(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each entry of which a cost is known, with a short ``name``."""
    entries: pd.DataFrame = table.drop_duplicates(["model", "label"])
    entries = entries.dropna(subset="median")
    return entries.assign(name=[_name(row) for row in sweep.told(entries)])


def _name(row: Mapping[str, Any]) -> str:
    """Name an entry as other pages do: "layer 2, cross-attention head 3"."""
    if row["family"] != "heads":
        part = {"heads": ", all heads", "mlp": ", MLP"}.get(row["part"], "")
        return f"layer {row['layer']}{part}"
    return f"layer {row['layer']}, {head_word(row['attention'], row['head'])}"


@figure(
    "sweep_costs",
    "Cost of losing each layer and each head, dataset by dataset.",
    variables=_COLUMNS,
    sentences=read_costs,
)
def cost_forest(table: pd.DataFrame, *, top: int = 20) -> go.Figure:
    """Draw the cost of every layer and head by itself, the cheapest first.

    A row is an entry: its median over datasets, the interval of that, and each dataset.
    The axis is logarithmic and ends at five times the error; what is beyond is an
    arrow. A dot is open unless the cost is significant.

    Args:
        table: of kind "sweep_costs".
        top: rows of all models together: every whole layer, then the cheapest and the
            costliest of all else. A model has at least six rows of the latter.

    Returns:
        A panel for each model, with a row for each layer or head. The axis is the
        change of MASE in percent.

    Example:
        >>> viz.cost_forest(tables["costs"]).layout.meta["title"]
        'Cost of losing a layer or a head of alpha and beta'
    """
    sweep.check_finished("single layers and heads", table["median"])
    entries = _entries(table)
    models = sweep.list_models(entries)
    most = max(top // len(models), _LEAST)
    chosen = [_choose(entries[entries["model"] == model], most) for model in models]
    canvas = sheet(
        [_ROW * len(rows) for rows in chosen],
        titles=models if len(models) > 1 else None,
        row_gap=_GAP,
        shared_xaxes=True,
    )
    rows_of_all = pd.concat(chosen)
    places = rows_of_all[rows_of_all["hidden"] == 0][["model", "label", "place"]]
    members = table.merge(places, on=["model", "label"])
    columns = ["member_change", "median_lower", "median_upper"]
    bounds = ratio_bounds(1 + members[columns].to_numpy())
    tolerance = sweep.find_tolerance(table)
    is_cut = False
    for panel, model, rows in zip(canvas, models, chosen, strict=True):
        panel.background_band(bounds[0], 1 + tolerance, mixed(SKY, 0.2), across=True)
        panel.vline(1.0)
        _label_rows(panel, rows)
        drawn = rows[rows["hidden"] == 0]
        is_cut |= _draw_rows(panel, drawn, members[members["model"] == model], bounds)
    canvas.x(**ratio_axis(bounds))
    canvas.panel(len(models)).x(
        "← better without it; change of MASE (%, log scale); worse without it →"
    )
    unit = f"{table['units'].max()} {table['unit'].iloc[0]}"
    interval = ""
    if np.isfinite(entries["median_lower"]).any():
        interval = f"line: {sweep.name_intervals(table).removesuffix('s')}"
    arrows = ""
    if is_cut:
        arrows = "arrow: off the axis"
    return canvas.finalize(
        f"Cost of losing a layer or a head of {listed(models)}",
        f"dot: median of {unit}",
        interval,
        f"grey: {table['unit'].iloc[0]}",
        f"shaded: below +{percent(tolerance)}",
        arrows,
        sweep.remark_power(table),
    )


panels("sweep_costs")(
    partial(sweep.sweep_panel, "sweep_costs", draw=cost_forest, words=read_costs)
)


def _choose(entries: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return the entries to draw by cost, ``most`` of them or somewhat more.

    Whole layers are never hidden. ``place`` is that of a row. Entries that are hidden
    between two rows share one, whose ``hidden`` is their number; it is 0 elsewhere.
    """
    ordered = entries.sort_values("median", kind="stable", ignore_index=True)
    is_whole = (ordered["family"] == "layers") & (ordered["part"] == "both")
    rest = ordered.index[~is_whole]
    n_drawn = max(most - int(is_whole.sum()), _LEAST)
    n_hidden = max(len(rest) - n_drawn, 0)
    # to say that one is hidden takes a row as well
    if n_hidden == 1:
        n_hidden = 0
    cheapest = n_drawn // 2
    hidden = ordered.index.isin(rest[cheapest : cheapest + n_hidden])
    # one place for each drawn row, and one for a run of hidden ones
    begins = ~hidden | ~np.append(False, hidden[:-1])
    ordered["place"] = begins.cumsum() - 1
    count = pd.Series(hidden).groupby(ordered["place"]).transform("sum")
    rows: pd.DataFrame = ordered.assign(hidden=count)[begins]
    return rows


def _label_rows(panel: Panel, rows: pd.DataFrame) -> None:
    """Write names and costs beside the rows, and how many entries are hidden."""
    texts = []
    for row in sweep.told(rows):
        text = f"{plain(row['name'])}  {sweep.change_text(row['median'])}"
        if row["hidden"]:
            text = f"{row['hidden']} more between"
        texts.append(text)
    panel.y(
        tickvals=rows["place"].tolist(),
        ticktext=texts,
        range=[len(rows) - 0.5, -0.5],
        ticks="",
    )


def _draw_rows(
    panel: Panel,
    rows: pd.DataFrame,
    members: pd.DataFrame,
    bounds: tuple[float, float],
) -> bool:
    """Draw the entries of one model; return whether any mark is beyond the axis."""
    names = rows.set_index("place")["name"]
    of_members = [
        f"{plain(names[place])} on {plain(member)}<br>{sweep.change_text(change)}"
        for place, member, change in zip(
            members["place"], members["member"], members["member_change"], strict=True
        )
    ]
    cut = _marks(
        panel,
        1 + members["member_change"],
        members["place"],
        of_members,
        bounds,
        colour=mixed(GREY, 0.55),
        size=4,
    )
    of_rows = [
        f"{plain(row['name'])}<br>median {sweep.change_text(row['median'])}"
        f" {sweep.span_text(row['median_lower'], row['median_upper'])}"
        for row in sweep.told(rows)
    ]
    middle, low, high = (
        1 + rows[name].to_numpy() for name in ("median", "median_lower", "median_upper")
    )
    estimate = EffectEstimate(
        middle,
        low,
        high,
        np.ones(len(rows)),
        rows["significant"].to_numpy(bool),
        pales=True,
    )
    cut |= _marks(
        panel,
        middle,
        rows["place"],
        of_rows,
        bounds,
        size=9,
        colour=BLUE,
        noise=estimate,
    )
    return cut


def _marks(
    panel: Panel, x: Any, y: Any, texts: list[str], bounds: Any, **style: Any
) -> bool:
    """Draw dots, and an arrow for each that is beyond the axis; return if any is."""
    x, y = np.asarray(x, dtype=float), np.asarray(y)
    hover = "%{text}"
    panel.dots(x, y, "", hover, text=texts, across=True, **style)
    effect = style.pop("noise", None)
    for end, beyond, symbol in (
        (bounds[0], np.asarray(x < bounds[0]), "triangle-left"),
        (bounds[1], np.asarray(x > bounds[1]), "triangle-right"),
    ):
        if beyond.any():
            noise = None
            if effect is not None:
                noise = effect.at(beyond).without_range
            panel.dots(
                np.full(beyond.sum(), end),
                y[beyond],
                "",
                hover,
                text=np.array(texts)[beyond],
                symbol=symbol,
                noise=noise,
                cliponaxis=False,
                **style | {"size": _ARROW},
            )
    return bool(((x < bounds[0]) | (x > bounds[1])).any())
