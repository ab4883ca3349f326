"""Report of a sweep: one page, and its figures and tables as files.

Read :func:`build_sweep_report` first; :func:`latex` writes a table for print. The
results come from :func:`tsfm_lens.sweep.gather`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.io import check_writable
from tsfm_lens.core.registry import FigurePanel, check, find_figures
from tsfm_lens.core.spreadsheets import to_csv
from tsfm_lens.core.stats import CONFIDENCE, units_needed
from tsfm_lens.report.build import draw_results, render_page
from tsfm_lens.viz.saving import rendered, write_together
from tsfm_lens.viz.sweep_entries import (
    describe_methods,
    describe_order,
    describe_power,
    describe_selection,
    find_tolerance,
    name_intervals,
    told,
)
from tsfm_lens.viz.sweep_recipes import recipe_rows
from tsfm_lens.viz.theme import percent
from tsfm_lens.viz.words import listed


def build_sweep_report(
    results: Mapping[str, pd.DataFrame],
    out: str | Path,
    *,
    title: str,
    provenance: Mapping[str, Any],
    notes: Sequence[str] = (),
) -> Path:
    """Write the report of a sweep.

    It is a page that opens offline, with its figures and tables as files.

    Returns:
        The folder's page.
    """
    for name, ds in results.items():
        if isinstance(ds, pd.DataFrame):
            kind = ds.attrs.get("kind")
        else:
            kind = type(ds).__name__
        if not str(kind).startswith("sweep_") or not find_figures(str(kind)):
            raise InputError(
                f"result {name!r} is of kind {kind!r}; a sweep's is a table of a kind"
                " such as sweep_heads"
            )
    folder = Path(out)
    check_writable(folder)
    panels = draw_results(results)
    tables = list(results.values())
    origin = {**provenance, "intervals and tests": describe_methods(tables)}
    kinds = [str(ds.attrs["kind"]) for ds in results.values()]
    # the leading figure has each head by its median; a second number of it, by the mean
    # over datasets, stays in the files
    told_twice = {"sweep_heads"} if ANSWER in kinds else set()
    answers = [
        name
        for name, ds in results.items()
        if ds.attrs["kind"] == ANSWER and panels[name]
    ]
    page = render_page(
        {
            name: ds
            for name, ds in results.items()
            if panels[name] and ds.attrs["kind"] not in told_twice
        },
        panels,
        title=title,
        provenance={str(key): written(value) for key, value in origin.items() if value},
        notes=[
            text
            for text in (
                # a figure in front says it in its caption
                "" if answers else describe_power(tables),
                *notes,
                *_missing(results, panels),
            )
            if text
        ],
        lead=answers,
    )
    contents: dict[Path, bytes] = {}
    drawings = [panel for result_panels in panels.values() for panel in result_panels]
    stems = _stems(panel.name for panel in drawings)
    for stem, panel in zip(stems, drawings, strict=True):
        contents[folder / "figures" / f"{stem}.json"] = rendered(panel.figure, "json")
    for stem, table in zip(_stems(results), results.values(), strict=True):
        contents[folder / "tables" / f"{stem}.csv"] = to_csv(table).encode()
        contents[folder / "tables" / f"{stem}.tex"] = latex(table).encode()
    # the page last: where it is, its files are
    contents[folder / "index.html"] = page
    write_together(contents)
    return folder / "index.html"


def _missing(
    results: Mapping[str, pd.DataFrame], panels: Mapping[str, list[FigurePanel]]
) -> list[str]:
    """List the results that are missing, by name."""
    notes = []
    for name, table in results.items():
        # every result of a sweep has this column
        n_missing = int(table["change"].isna().sum())
        if not panels[name] and n_missing == len(table):
            notes.append(f"{name} has no figure yet: none of its entries is finished.")
            continue
        if not panels[name]:
            families = dict.fromkeys(table.get("family", [name]))
            kinds = listed([f"{family!r}" for family in families])
            notes.append(
                f"There is no figure of {kinds}; the numbers are in tables/{name}.csv."
            )
        if n_missing:
            verb = "is" if n_missing == 1 else "are"
            pronoun = "it" if n_missing == 1 else "them"
            notes.append(
                f"{n_missing} of {len(table)} numbers of {name} {verb} missing; the"
                f" figures leave {pronoun} out."
            )
    return notes


def _stems(names: Iterable[str]) -> list[str]:
    """Return names of files, distinct and safe.

    They have no characters that a file system or a shell could misread.
    """
    stems: list[str] = []
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9_.]+", "-", name)[:80].strip("-.") or "result"
        count = 1
        unique = stem
        # some file systems do not distinguish cases, and a name with a count may be
        # taken as well
        while unique.lower() in {earlier.lower() for earlier in stems}:
            count += 1
            unique = f"{stem}-{count}"
        stems.append(unique)
    return stems


def written(value: Any) -> str:
    """Return a value of the provenance as lines of text.

    A list or mapping has one line for each member.
    """
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {_inline(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "\n".join(_inline(item) for item in value)
    return str(value)


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        parts = []
        for key, member in value.items():
            if member in (None, "", [], {}):
                continue
            text = member
            if not isinstance(member, str):
                text = json.dumps(member, default=str)
            parts.append(f"{key} {text}")
        return "; ".join(parts)
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str)


ANSWER = "sweep_costs"
"""Kind of the result that answers what can go, which leads the page."""
_NONE = "--"  # cell without a value
_LONG = 45  # rows that still fit a page
# pandas' Styler writes each style as a LaTeX command before the value: \bfseries is for
# text, \boldmath for numbers between dollars
_BOLD = "bfseries: ; boldmath: ;"
Cell = Callable[[dict[str, Any]], str]


def latex(table: pd.DataFrame) -> str:
    """Return a result of a sweep as a LaTeX table with rules of booktabs.

    Long ones run over pages (longtable).
    """
    kind = ""
    if isinstance(table, pd.DataFrame):
        kind = str(table.attrs.get("kind"))
    wide = {"sweep_recipes": _recipes, "sweep_datasets": _datasets}
    if kind in wide:
        return _to_latex(*wide[kind](table), _notes(table))
    if kind not in _SHEETS:
        # which raises the error for a result of another kind
        check(table, "sweep_effects")
    sheet = _SHEETS[kind]
    caption = sheet.caption.format(
        intervals=name_intervals(table), tolerance=percent(find_tolerance(table))
    )
    if kind == "sweep_heads_at":
        table = table[table["better"]]
    if kind == ANSWER:
        # a row per entry, not per dataset
        table = table.drop_duplicates(["model", "label"])
    rows = told(table)
    columns = (*sheet.text_columns, *sheet.number_columns)
    cells = pd.DataFrame(
        [{name: _CELLS[name](row) for name in columns} for row in rows],
        columns=list(columns),
    )
    bold = pd.DataFrame(False, index=cells.index, columns=cells.columns)
    if "bold" in caption:
        changes = [name for name in columns if name.startswith("% change")]
        bold[changes[0]] = [bool(row["significant"]) for row in rows]
    return _to_latex(cells, list(sheet.text_columns), bold, caption, _notes(table))


def _notes(table: pd.DataFrame) -> list[str]:
    """Return sentences below a printed table on its numbers and tests.

    They are short, since a row of a table does not break.
    """
    kind = str(table.attrs["kind"])
    if kind == "sweep_datasets":
        return [f"{_NONE}: no number of heads that was tried is within the tolerance."]
    changes = "Changes are ratios of geometric means over datasets."
    if kind == "sweep_heads_at" or table.empty:
        return [changes]
    unit = str(table["unit"].iloc[0])
    units = f"{table['units'].max()} {unit}"
    test = f"sign test over {units}, Holm-corrected for {table['tests'].max()} tests"
    if kind == "sweep_recipes":
        return [changes, f"Bold: {test}.", f"{_NONE}: not finished, or not defined."]
    missing = f"{_NONE}: not finished, or too few {unit} for an interval"
    if kind == "sweep_selection":
        missing = f"{_NONE}: with these, the heads of the recipe are compared"
    if kind == ANSWER:
        changes = f"Changes of MASE are medians over {units}."
        confidence = float(table.attrs.get("confidence", CONFIDENCE))
        needed = units_needed(1, level=1 - confidence)
        missing = f"{missing}, which needs {needed}"
    return [
        changes,
        f"In brackets: {name_intervals(table)}, not corrected for the number of rows.",
        f"p and bold: {test},",
        "so that an interval without 0 need not be significant.",
        f"{missing}.",
    ]


def _to_latex(
    cells: pd.DataFrame,
    text_columns: list[str],
    bold: pd.DataFrame,
    caption: str,
    notes: Sequence[str],
) -> str:
    """Return cells as LaTeX, with notes as rows below.

    ``text_columns`` are columns of text, which is escaped; the others hold LaTeX
    already. A note on a sign is left out where no cell has the sign.
    """
    has_missing = bool((cells == _NONE).to_numpy().any())
    for name in text_columns:
        # a line break or a tab in a name would break the row
        cells[name] = cells[name].astype(str).str.split().str.join(" ")
    style = cells.style.hide(axis="index").format(
        escape="latex", subset=pd.Index(text_columns)
    )
    style = style.format_index(escape="latex", axis="columns")
    # axis=None: the function gets the whole table and returns one of its shape
    style = style.apply(
        lambda _: bold.replace({True: _BOLD, False: ""}).astype(str), axis=None
    )
    environment = None
    head = "% needs \\usepackage{booktabs}"
    if len(cells) > _LONG:
        environment = "longtable"
        head += " and \\usepackage{longtable}"
    alignment = ["l" if name in text_columns else "r" for name in cells]
    text = style.to_latex(
        hrules=True, column_format="".join(alignment), environment=environment
    )
    rows = [
        rf"\multicolumn{{{len(alignment)}}}{{l}}{{\footnotesize {_escaped(note)}}} \\"
        for note in notes
        if has_missing or not note.startswith(_NONE)
    ]
    rule = "\\bottomrule\n"
    text = text.replace(rule, rule + "".join(f"{row}\n" for row in rows))
    return f"{head}\n% {caption}\n{text}"


def _escaped(text: str) -> str:
    return text.replace("%", r"\%")


def _recipes(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str], pd.DataFrame, str]:
    """Return tables 1 and 4 of the paper.

    They have one row per recipe, and one column per metric; then resilient and improved
    datasets.
    """
    entries = recipe_rows(table)
    # the number in the heads of the columns; a recipe with fewer datasets names its own
    total = int(entries["n_datasets"].max())
    several = entries["chosen"].nunique() > 1
    subject = "model (zero-ablated % of heads + MLPs)"
    rows = []
    bold_rows = []
    keys = ["model", "recipe", "selection", "seed"]
    for _, recipe in entries.groupby(keys, sort=False):
        metrics = told(recipe)
        first = metrics[0]
        label = first["label"]
        if several:
            label = f"{label}, {first['chosen']}"
        cells = {subject: label}
        significant = {subject: False}
        for row in metrics:
            column = f"% change of {row['metric']}"
            cells[column] = _percent(row["change"])
            significant[column] = bool(row["significant"])
        n_datasets = int(first["n_datasets"])
        for name in ("resilient", "improved"):
            count = str(int(first[f"n_{name}"]))
            if n_datasets != total:
                count += f" of {n_datasets}"
            cells[f"{name} /{total}"] = count
        rows.append(cells)
        bold_rows.append(significant)
    frame = pd.DataFrame(rows)
    # the counts of datasets have no test, and are never bold
    bold = pd.DataFrame(bold_rows).reindex(columns=frame.columns, fill_value=False)
    caption = (
        "Heavy ablations: change of every metric, lower is better; bold: significant."
    )
    return frame, [subject], bold, caption


def _datasets(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str], pd.DataFrame, str]:
    """Return a table with one row for each dataset.

    It has for each layer the largest number of heads within the tolerance, and its
    MASE relative to that of the seasonal naive forecast.
    """
    names = sorted(set(table["dataset"]))
    cells = pd.DataFrame({"dataset": names})
    for (model, layer), rows in table.groupby(["model", "layer"], sort=False):
        is_largest = rows["ablated"] == rows["largest_within"]
        mase = rows[is_largest].set_index("dataset")["relative_mase"]
        texts = {
            name: f"{count} ({_number(mase[name], 2)})"
            for name, count in _largest(rows).items()
            if name in mase
        }
        cells[f"{model}, layer {layer}: heads (relative MASE)"] = [
            texts.get(name, _NONE) for name in names
        ]
    caption = (
        "Largest number of heads of a layer whose ablation raises MASE by less than "
        f"{percent(find_tolerance(table))}, and the MASE at it, relative to"
        " that of the seasonal naive forecast."
    )
    bold = pd.DataFrame(False, index=cells.index, columns=cells.columns)
    return cells, ["dataset"], bold, caption


def _largest(rows: pd.DataFrame) -> dict[str, int]:
    counts = rows.groupby("dataset")["largest_within"].first()
    return {str(name): int(count) for name, count in counts.items()}


def _number(value: float, digits: int = 3) -> str:
    if np.isfinite(value):
        return f"${value:.{digits}f}$"
    return _NONE


def _percent(value: float) -> str:
    if np.isfinite(value):
        return f"${100 * value:+.2f}$"
    return _NONE


def _p(value: float) -> str:
    if not np.isfinite(value):
        return _NONE
    if value < 0.001:
        return "$<0.001$"
    return f"${value:.3f}$"


def _interval(lower: str = "lower", upper: str = "upper") -> Cell:
    def write(row: dict[str, Any]) -> str:
        bounds = [row[lower], row[upper]]
        if np.isfinite(bounds).all():
            return f"$[{100 * bounds[0]:+.2f}, {100 * bounds[1]:+.2f}]$"
        return _NONE

    return write


def _better_order(row: dict[str, Any]) -> str:
    # a layer that keeps all heads has no order
    order = "" if row["kept"] >= row["of"] else row["order"]
    return describe_order(order)


_CELLS: dict[str, Cell] = {
    "model": lambda row: row["model"],
    "ablated": lambda row: row["label"],
    "head": lambda row: row["label"],
    "order": lambda row: describe_order(row["order"]),
    "better order": _better_order,
    "recipe": lambda row: row["recipe"],
    "heads": lambda row: describe_selection(row["selection"], row["seed"]),
    "layer": lambda row: str(row["layer"]),
    "heads ablated": lambda row: f"{row['ablated']} of {row['of']}",
    "heads kept": lambda row: str(row["kept"]),
    "of": lambda row: str(row["of"]),
    "Spearman distance": lambda row: _number(row["spearman_distance"]),
    "relative MASE": lambda row: _number(row["relative_mase"]),
    "% change (geometric mean)": lambda row: _percent(row["change"]),
    "% change of MASE": lambda row: _percent(row["change"]),
    "% change (median)": lambda row: _percent(row["median"]),
    "interval": _interval(),
    "median interval": _interval("median_lower", "median_upper"),
    "p (Holm)": lambda row: _p(row["p_holm"]),
    "% over random": lambda row: _percent(row["diff"]),
    "its interval": _interval("diff_lower", "diff_upper"),
}
"""Content of a cell, by the head of its column."""
_EFFECT = (
    *("Spearman distance", "relative MASE", "% change (geometric mean)"),
    *("interval", "p (Holm)"),
)


class _Sheet(NamedTuple):
    """Caption and columns of a printed table.

    Columns of text come first.
    """

    caption: str
    text_columns: tuple[str, ...]
    number_columns: tuple[str, ...]


_RELATIVE = (
    "Relative MASE: MASE divided by that of the seasonal naive forecast, geometric mean"
    " over datasets."
)

_SHEETS = {
    ANSWER: _Sheet(
        "Layers and heads ablated one by one; medians over units and their {intervals};"
        " bold: significant.",
        ("model", "ablated"),
        ("% change (median)", "median interval", "p (Holm)"),
    ),
    "sweep_effects": _Sheet(
        "Ablated parts of the models; {intervals}; bold: the change of MASE is"
        f" significant. {_RELATIVE}",
        ("model", "ablated"),
        _EFFECT,
    ),
    "sweep_heads": _Sheet(
        "Heads ablated one by one; {intervals}; bold: the change of MASE is"
        f" significant. {_RELATIVE}",
        ("model", "head"),
        _EFFECT,
    ),
    "sweep_curves": _Sheet(
        "Heads of one layer ablated; {intervals}; bold: the change is significant."
        f" {_RELATIVE}",
        ("model", "order"),
        (
            *("layer", "heads ablated", "relative MASE"),
            *("% change (geometric mean)", "interval"),
        ),
    ),
    "sweep_heads_at": _Sheet(
        "Heads that each layer must keep for a rise below {tolerance}.",
        ("model", "better order"),
        ("layer", "heads kept", "of", "% change (geometric mean)"),
    ),
    "sweep_selection": _Sheet(
        "Informed and random choices of the same number of heads; {intervals}; bold:"
        " the change is significant.",
        ("model", "recipe", "heads"),
        ("% change of MASE", "interval", "% over random", "its interval"),
    ),
}
