"""The results of sweeps as tables: tidy frames for CSV files, and LaTeX with rules of booktabs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.viz.select import DRAWN_BY, SWEEP_KINDS, array, names
from tsfm_lens.viz.sweep_entries import intervals_of, order_words, selection_words, told, tolerance_of
from tsfm_lens.viz.sweep_recipes import recipe_rows
from tsfm_lens.viz.theme import percent

_LONG = 45  # rows that still fit a page
_BOLD = "bfseries: ; boldmath: ;"
# columns of every tidy table in this order, others behind them by name
_COLUMNS = (
    *("model", "family", "recipe", "selection", "seed", "label", "part", "first", "last", "layer", "role", "order"),
    *("ablated", "of", "share", "kept", "heads_ablated", "heads_total", "n_mlps", "n_layers", "dataset", "metric"),
    *("spearman_distance", "spearman_distance_lower", "spearman_distance_upper", "baseline_mase", "mase"),
    *("mase_change", "mase_change_lower", "mase_change_upper", "change", "lower", "upper", "p_value", "p_holm"),
    *("stands", "tests", "diff", "diff_lower", "diff_upper", "diff_p", "largest_within"),
)


@dataclass(frozen=True)
class _Sheet:
    """A table as it is printed.

    Attributes:
        cells: strings; ``math`` names the columns that hold LaTeX already, all others are text.
        bold: same shape.
        caption: plain text.
    """

    cells: pd.DataFrame
    math: list[str]
    bold: pd.DataFrame
    caption: str


def tidy(ds: xr.Dataset) -> pd.DataFrame:
    """A result of a sweep as one row an entry (and metric, or dataset and number of heads), unrounded.

    Args:
        ds: of one of the kinds ``viz.select.SWEEP_KINDS``.

    Raises:
        InputError: ``ds`` is of another kind.
    """
    table = _tidy(ds, _kind(ds))
    known = {name: place for place, name in enumerate(_COLUMNS)}
    ordered: list[str] = sorted((str(name) for name in table), key=lambda name: (known.get(name, len(known)), name))
    return table[ordered]


def _tidy(ds: xr.Dataset, kind: str) -> pd.DataFrame:
    if kind == "sweep_datasets":
        return _tidy_datasets(ds)
    if kind == "sweep_recipes":
        table = ds.to_dataframe().reset_index()
        return table.drop(columns="entry")
    columns = {str(name): v.values for name, v in ds.variables.items() if v.dims == ("entry",) and name != "entry"}
    table = pd.DataFrame(columns)
    if "baseline_mase" in ds:
        known = dict(zip(names(ds, "model_name"), ds["baseline_mase"].values, strict=True))
        table["baseline_mase"] = table["model"].astype(str).map(known)
    if kind == "sweep_selection":
        table = table.merge(_pairs(ds), on=["model", "recipe"], how="left")
        informed = table["selection"].astype(str) != "random"
        gaps = [str(name) for name in table if str(name).startswith("diff")]
        table[gaps] = table[gaps].where(informed)
    if kind == "sweep_heads_at":
        # where all heads stay, no order is the better one
        table["order"] = table["order"].where(table["kept"] < table["of"])
    if kind == "sweep_heads_at" and "kept_by_order" in ds:
        for i, order in enumerate(names(ds, "order_name")):
            table[f"kept: {order}"] = array(ds, "kept_by_order", "entry", order_name=i)
    return table


def _kind(ds: xr.Dataset) -> str:
    kind = ds.attrs.get("kind") if isinstance(ds, xr.Dataset) else type(ds).__name__
    if kind not in SWEEP_KINDS:
        helped = f"; {DRAWN_BY[kind]} draws that kind" if kind in DRAWN_BY else ""
        raise InputError(f"a result of a sweep ({', '.join(SWEEP_KINDS)}) is needed, not {kind!r}{helped}.")
    return str(kind)


def _pairs(ds: xr.Dataset) -> pd.DataFrame:
    columns = {name: ds[name].values for name in ds.data_vars if ds[name].dims == ("pair",)}
    return pd.DataFrame({"model": ds["pair_model"].values, "recipe": ds["pair_recipe"].values, **columns})


def _tidy_datasets(ds: xr.Dataset) -> pd.DataFrame:
    table = ds.to_dataframe().reset_index()
    table = table[np.isfinite(table["mase"].to_numpy(float))]
    table["largest_within"] = table["largest_within"].astype(int)
    return table.drop(columns="panel", errors="ignore").reset_index(drop=True)


def latex(ds: xr.Dataset) -> str:
    """A result of a sweep as a LaTeX table with rules of booktabs; long ones run over pages (longtable).

    Changes that stand after Holm's correction are bold. Recipes come as in tables 1 and 4 of the tsfm-lens paper; a
    table by dataset has a row a dataset. Names are escaped.

    Args:
        ds: of one of the kinds ``viz.select.SWEEP_KINDS``.

    Raises:
        InputError: ``ds`` is of another kind.
    """
    sheet = _SHEETS[_kind(ds)](ds)
    words = [str(name) for name in sheet.cells if str(name) not in sheet.math]
    cells = sheet.cells.copy()
    for name in words:
        # a line break or a tab in a name would break the row
        cells[name] = cells[name].astype(str).str.split().str.join(" ")
    style = cells.style.hide(axis="index").format(escape="latex", subset=pd.Index(words))
    style = style.format_index(escape="latex", axis="columns")
    style = style.apply(lambda _: sheet.bold.replace({True: _BOLD, False: ""}).astype(str), axis=None)
    long = len(cells) > _LONG
    text = style.to_latex(
        hrules=True,
        column_format="".join("r" if name in sheet.math else "l" for name in cells),
        environment="longtable" if long else None,
    )
    head = "% needs \\usepackage{booktabs}" + (" and \\usepackage{longtable}" if long else "")
    return f"{head}\n% {sheet.caption}\n{text}"


def _number(value: float, digits: int = 3) -> str:
    return f"${value:.{digits}f}$" if np.isfinite(value) else "--"


def _percent(value: float, digits: int = 2) -> str:
    return f"${100 * value:+.{digits}f}$" if np.isfinite(value) else "--"


def _span(lower: float, upper: float) -> str:
    return f"$[{100 * lower:+.2f}, {100 * upper:+.2f}]$" if np.isfinite([lower, upper]).all() else "--"


def _p(value: float) -> str:
    if not np.isfinite(value):
        return "--"
    return "$<0.001$" if value < 0.001 else f"${value:.3f}$"


def _sheet(rows: list[dict[str, str]], words: list[str], bold: list[bool], where: list[str], caption: str) -> _Sheet:
    """A sheet whose columns ``where`` are bold in the rows that are."""
    cells = pd.DataFrame(rows)
    mask = pd.DataFrame(False, index=cells.index, columns=cells.columns)
    for name in where:
        mask[name] = bold
    return _Sheet(cells, [str(name) for name in cells if name not in words], mask, caption)


def _effects(ds: xr.Dataset) -> _Sheet:
    table = told(tidy(ds))
    rows = [
        {
            "model": str(row["model"]),
            "ablated": str(row["label"]),
            "Spearman distance": _number(row["spearman_distance"]),
            "MASE": _number(row["mase"]),
            "% change": _percent(row["mase_change"]),
            "interval": _span(row["mase_change_lower"], row["mase_change_upper"]),
            "p (Holm)": _p(row.get("p_holm", float("nan"))),
        }
        for row in table
    ]
    caption = (
        f"Ablated parts of the models; {intervals_of(ds)}; bold: the change of MASE stands after Holm's correction."
    )
    return _sheet(rows, ["model", "ablated"], [bool(row["stands"]) for row in table], ["% change"], caption)


def _curves(ds: xr.Dataset) -> _Sheet:
    table = told(tidy(ds))
    rows = [
        {
            "model": str(row["model"]),
            "order": order_words(row["order"]),
            "layer": str(row["layer"]),
            "heads ablated": f"{row['ablated']} of {row['of']}",
            "MASE": _number(row["mase"]),
            "% change": _percent(row["mase_change"]),
            "interval": _span(row["mase_change_lower"], row["mase_change_upper"]),
        }
        for row in table
    ]
    standing = [bool(row.get("stands", False)) for row in table]
    caption = f"Heads of one layer ablated; {intervals_of(ds)}; bold: the change stands after Holm's correction."
    return _sheet(rows, ["model", "order"], standing, ["% change"], caption)


def _heads_at(ds: xr.Dataset) -> _Sheet:
    rows = [
        {
            "model": str(row["model"]),
            "better order": order_words("" if row["kept"] >= row["of"] else row["order"]) if known else "--",
            "layer": str(row["layer"]),
            "heads kept": str(int(row["kept"])) if known else "--",
            "of": str(int(row["of"])),
            "% change": _percent(row["change"]),
        }
        for row in told(tidy(ds))
        for known in [np.isfinite(row["kept"])]
    ]
    caption = f"Heads that each layer must keep for a rise below {percent(tolerance_of(ds))}."
    return _sheet(rows, ["model", "better order"], [False] * len(rows), [], caption)


def _datasets(ds: xr.Dataset) -> _Sheet:
    """A row a dataset: unablated MASE, and for each layer the largest number within the tolerance with its MASE."""
    columns: dict[str, list[str]] = {"dataset": names(ds, "dataset")}
    for i in range(ds.sizes["panel"]):
        name = f"{ds['model'].values[i]}, layer {int(ds['layer'].values[i])}"
        mase, largest = (
            array(ds, "mase", "dataset", "ablated", panel=i),
            array(ds, "largest_within", "dataset", panel=i),
        )
        counts = [str(count) for count in names(ds, "ablated")]
        columns[f"{name}: heads (MASE)"] = [
            f"{int(most)} ({_number(line[counts.index(str(int(most)))], 2)})" if most >= 0 else "--"
            for most, line in zip(largest, mase, strict=True)
        ]
    cells = pd.DataFrame(columns)
    bold = pd.DataFrame(False, index=cells.index, columns=cells.columns)
    caption = (
        f"Largest number of heads of a layer whose ablation raises MASE by less than {percent(tolerance_of(ds))}, and "
        "the MASE at it."
    )
    return _Sheet(cells, [str(name) for name in cells if name != "dataset"], bold, caption)


def _recipes(ds: xr.Dataset) -> _Sheet:
    """Tables 1 and 4 of the paper: a row a recipe, a column a metric, resilient and improved datasets."""
    table, metrics = recipe_rows(ds), names(ds, "metric")
    change, stands = (array(ds, name, "entry", "metric") for name in ("change", "stands"))
    total = int(table["n_datasets"].max())
    rows = []
    several = table["chosen"].nunique() > 1
    for row in told(table):
        what = f"{row['label']}, {row['chosen']}" if several else str(row["label"])
        cells = {"model (zero-ablated % of heads + MLPs)": what}
        cells |= {f"% change of {m}": _percent(change[row["place"], k]) for k, m in enumerate(metrics)}
        for name in ("resilient", "improved"):
            count, of = int(row[f"n_{name}"]), int(row["n_datasets"])
            cells[f"{name} /{total}"] = str(count) if of == total else f"{count} of {of}"
        rows.append(cells)
    cells_frame = pd.DataFrame(rows)
    bold = pd.DataFrame(False, index=cells_frame.index, columns=cells_frame.columns)
    for k, metric in enumerate(metrics):
        bold[f"% change of {metric}"] = stands[table["place"].to_numpy(), k] > 0
    caption = "Heavy ablations: change of every metric, lower is better; bold: it stands after Holm's correction."
    return _Sheet(cells_frame, [str(name) for name in cells_frame.columns[1:]], bold, caption)


def _selection(ds: xr.Dataset) -> _Sheet:
    table = told(tidy(ds))
    rows = [
        {
            "model": str(row["model"]),
            "recipe": str(row["recipe"]),
            "heads": selection_words(str(row["selection"]), int(row["seed"])),
            "% change of MASE": _percent(row["change"]),
            "interval": _span(row["lower"], row["upper"]),
            "minus random": _percent(row["diff"]),
            "its interval": _span(row["diff_lower"], row["diff_upper"]),
        }
        for row in table
    ]
    standing = [bool(row["stands"]) for row in table]
    caption = (
        f"Informed and random choices of as many heads; {intervals_of(ds)}; differences in percentage points; bold: "
        "the change stands after Holm's correction."
    )
    return _sheet(rows, ["model", "recipe", "heads"], standing, ["% change of MASE"], caption)


_SHEETS: dict[str, Callable[[xr.Dataset], _Sheet]] = {
    "sweep_effects": _effects,
    "sweep_curves": _curves,
    "sweep_heads_at": _heads_at,
    "sweep_datasets": _datasets,
    "sweep_recipes": _recipes,
    "sweep_selection": _selection,
}
