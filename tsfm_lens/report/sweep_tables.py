"""Results of sweeps as LaTeX with rules of booktabs; CSV files hold the tables as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.registry import check
from tsfm_lens.viz.sweep_entries import intervals_of, order_words, selection_words, told, tolerance_of
from tsfm_lens.viz.sweep_recipes import recipe_rows
from tsfm_lens.viz.theme import percent

_LONG = 45  # rows that still fit a page
_BOLD = "bfseries: ; boldmath: ;"
Cell = Callable[[dict[str, Any]], str]


@dataclass(frozen=True)
class _Sheet:
    """Layout of a printed table."""

    caption: str
    words: dict[str, Cell]
    numbers: dict[str, Cell]
    bold: str = ""
    rows: Callable[[pd.DataFrame], pd.DataFrame] = lambda table: table


def latex(table: pd.DataFrame) -> str:
    """Write a result of a sweep as a LaTeX table with rules of booktabs; long ones run over pages (longtable)."""
    kind = str(table.attrs.get("kind")) if isinstance(table, pd.DataFrame) else ""
    wide = {"sweep_recipes": _recipes, "sweep_datasets": _datasets}
    if kind in wide:
        return _to_latex(*wide[kind](table))
    if kind not in _SHEETS:
        check(table, "sweep_effects")
    sheet = _SHEETS[kind]
    caption = sheet.caption.format(intervals=intervals_of(table), tolerance=percent(tolerance_of(table)))
    columns = sheet.words | sheet.numbers
    rows = told(sheet.rows(table))
    cells = pd.DataFrame([{name: say(row) for name, say in columns.items()} for row in rows], columns=list(columns))
    bold = pd.DataFrame(False, index=cells.index, columns=cells.columns)
    if sheet.bold:
        bold[sheet.bold] = [bool(row["stands"]) for row in rows]
    return _to_latex(cells, list(sheet.words), bold, caption)


def _to_latex(cells: pd.DataFrame, words: list[str], bold: pd.DataFrame, caption: str) -> str:
    """Write cells as LaTeX: ``words`` are columns of text, which is escaped, the others hold LaTeX already."""
    for name in words:
        # a line break or a tab in a name would break the row
        cells[name] = cells[name].astype(str).str.split().str.join(" ")
    style = cells.style.hide(axis="index").format(escape="latex", subset=pd.Index(words))
    style = style.format_index(escape="latex", axis="columns")
    style = style.apply(lambda _: bold.replace({True: _BOLD, False: ""}).astype(str), axis=None)
    long = len(cells) > _LONG
    text = style.to_latex(
        hrules=True,
        column_format="".join("l" if name in words else "r" for name in cells),
        environment="longtable" if long else None,
    )
    head = "% needs \\usepackage{booktabs}" + (" and \\usepackage{longtable}" if long else "")
    return f"{head}\n% {caption}\n{text}"


def _recipes(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str], pd.DataFrame, str]:
    """Build tables 1 and 4 of the paper: one row a recipe, one column a metric, resilient and improved datasets."""
    entries = recipe_rows(table)
    total, several = int(entries["n_datasets"].max()), entries["chosen"].nunique() > 1
    what = "model (zero-ablated % of heads + MLPs)"
    rows, bold = [], []
    for _, own in entries.groupby(["model", "recipe", "selection", "seed"], sort=False):
        metrics = told(own)
        first = metrics[0]
        cells = {what: f"{first['label']}, {first['chosen']}" if several else first["label"]}
        cells |= {f"% change of {row['metric']}": _percent(row["change"]) for row in metrics}
        significant = dict.fromkeys(cells, False)
        significant |= {f"% change of {row['metric']}": bool(row["stands"]) for row in metrics}
        for name in ("resilient", "improved"):
            count, of = int(first[f"n_{name}"]), int(first["n_datasets"])
            cells[f"{name} /{total}"] = str(count) if of == total else f"{count} of {of}"
        rows.append(cells)
        bold.append(significant)
    frame = pd.DataFrame(rows)
    caption = "Heavy ablations: change of every metric, lower is better; bold: it stands after Holm's correction."
    return frame, [what], pd.DataFrame(bold).reindex(columns=frame.columns, fill_value=False), caption


def _datasets(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str], pd.DataFrame, str]:
    """Build one row for each dataset: of each layer the largest number within the tolerance with its MASE."""
    names = sorted(set(table["dataset"]))
    cells = pd.DataFrame({"dataset": names})
    for (model, layer), rows in table.groupby(["model", "layer"], sort=False):
        at = rows[rows["ablated"] == rows["largest_within"]].set_index("dataset")["mase"]
        texts = {name: f"{rows_of} ({_number(at[name], 2)})" for name, rows_of in _largest(rows).items() if name in at}
        cells[f"{model}, layer {layer}: heads (MASE)"] = [texts.get(name, "--") for name in names]
    caption = (
        "Largest number of heads of a layer whose ablation raises MASE by less than "
        f"{percent(tolerance_of(table))}, and the MASE at it."
    )
    return cells, ["dataset"], pd.DataFrame(False, index=cells.index, columns=cells.columns), caption


def _largest(rows: pd.DataFrame) -> dict[str, int]:
    return {str(name): int(most) for name, most in rows.groupby("dataset")["largest_within"].first().items()}


def _number(value: float, digits: int = 3) -> str:
    return f"${value:.{digits}f}$" if np.isfinite(value) else "--"


def _percent(value: float, digits: int = 2) -> str:
    return f"${100 * value:+.{digits}f}$" if np.isfinite(value) else "--"


def _p(value: float) -> str:
    if not np.isfinite(value):
        return "--"
    return "$<0.001$" if value < 0.001 else f"${value:.3f}$"


def _span(lower: str = "lower", upper: str = "upper") -> Cell:
    def say(row: dict[str, Any]) -> str:
        ends = [row[lower], row[upper]]
        return f"$[{100 * ends[0]:+.2f}, {100 * ends[1]:+.2f}]$" if np.isfinite(ends).all() else "--"

    return say


def _kept_order(row: dict[str, Any]) -> str:
    return order_words("" if row["kept"] >= row["of"] else row["order"])


_MODEL: dict[str, Cell] = {"model": lambda row: row["model"]}
_CHANGE: dict[str, Cell] = {"% change": lambda row: _percent(row["change"]), "interval": _span()}
_MASE: dict[str, Cell] = {"MASE": lambda row: _number(row["mase"]), **_CHANGE}
_SHEETS = {
    "sweep_effects": _Sheet(
        "Ablated parts of the models; {intervals}; bold: the change of MASE stands after Holm's correction.",
        _MODEL | {"ablated": lambda row: row["label"]},
        {"Spearman distance": lambda row: _number(row["spearman_distance"]), **_MASE}
        | {"p (Holm)": lambda row: _p(row["p_holm"])},
        "% change",
    ),
    "sweep_heads": _Sheet(
        "Heads ablated one by one; {intervals}; bold: the change of MASE stands after Holm's correction.",
        _MODEL | {"head": lambda row: row["label"]},
        {"Spearman distance": lambda row: _number(row["spearman_distance"]), **_MASE}
        | {"p (Holm)": lambda row: _p(row["p_holm"])},
        "% change",
    ),
    "sweep_curves": _Sheet(
        "Heads of one layer ablated; {intervals}; bold: the change stands after Holm's correction.",
        _MODEL | {"order": lambda row: order_words(row["order"])},
        {"layer": lambda row: str(row["layer"]), "heads ablated": lambda row: f"{row['ablated']} of {row['of']}"}
        | _MASE,
        "% change",
    ),
    "sweep_heads_at": _Sheet(
        "Heads that each layer must keep for a rise below {tolerance}.",
        _MODEL | {"better order": _kept_order},
        {"layer": lambda row: str(row["layer"]), "heads kept": lambda row: str(row["kept"])}
        | {"of": lambda row: str(row["of"]), "% change": lambda row: _percent(row["change"])},
        rows=lambda table: table[table["better"]],
    ),
    "sweep_selection": _Sheet(
        "Informed and random choices of as many heads; {intervals}; differences in percentage points; bold: the change "
        "stands after Holm's correction.",
        _MODEL
        | {"recipe": lambda row: row["recipe"], "heads": lambda row: selection_words(row["selection"], row["seed"])},
        {"% change of MASE": _CHANGE["% change"], "interval": _span()}
        | {"minus random": lambda row: _percent(row["diff"]), "its interval": _span("diff_lower", "diff_upper")},
        "% change of MASE",
    ),
}
