"""Parts that the figures of sweeps share: labelled tables, intervals and sentences.

:func:`labelled` turns a table into a Dataset that :func:`generic_figure` can draw.
:func:`say_changes` writes how large changes are and which are significant. Read
:func:`labelled` first. Figures of single sweeps are in the modules ``sweep_heads``,
``sweep_layers`` and ``sweep_recipes``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import FigurePanel
from tsfm_lens.core.stats import CONFIDENCE, units_needed
from tsfm_lens.viz.theme import percent
from tsfm_lens.viz.words import listed

PARTS = {"both": "heads and MLPs", "heads": "heads", "mlp": "MLPs"}
_MAX_NAMED = 8  # changes in a sentence
# names of columns in figures, where they differ from the column's own
_LABELS = {
    "ablated": "heads ablated",
    "change": "change of MASE",
    "first": "first layer",
    "kept": "heads kept",
    "mase": "MASE",
    "size": "layers in the range",
}
_MAX_FIRST = 3  # entries that are named by how often they are first
_DIRECTIONS = {"low": "lowest", "high": "highest"}


def check_finished(what: str, values: Any) -> None:
    """Refuse a part of a sweep of which no value is known."""
    if not np.isfinite(np.asarray(values, dtype=float)).any():
        raise InputError(
            f"this sweep has no finished entry for {what}; it has not run, or was not"
            " requested"
        )


def list_models(table: pd.DataFrame) -> list[str]:
    """List the models of a table, in the order of their first rows."""
    return list(dict.fromkeys(table["model"]))


def told(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as dicts, for sentences on each."""
    return [
        {str(key): value for key, value in row.items()}
        for row in table.to_dict("records")
    ]


def find_tolerance(table: pd.DataFrame) -> float:
    """Return the relative rise of the error that a sweep allows."""
    return float(table.attrs.get("tolerance", 0.01))


def name_intervals(table: pd.DataFrame) -> str:
    """Name the intervals of a result by their level: "95 % intervals"."""
    return f"{percent(float(table.attrs.get('confidence', CONFIDENCE)))} intervals"


def describe_methods(tables: Sequence[pd.DataFrame]) -> list[str]:
    """Describe how the intervals and tests of a page's tables were made.

    Further sentences name tests that have too few units.
    """
    tested = [table for table in tables if "units" in table and len(table)]
    if not tested:
        return []
    tests = pd.concat(
        [table[["units", "unit", "tests"]] for table in tested]
    ).drop_duplicates()
    over = " or ".join(
        dict.fromkeys(f"{row['units']} {row['unit']}" for row in told(tests))
    )
    few = [few_units(row, tested[0]) for row in told(tests)]
    level = percent(1 - float(tested[0].attrs.get("confidence", CONFIDENCE)))
    return [
        (
            "A change is a ratio of geometric means over datasets. Its"
            f" {name_intervals(tested[0])} are Student's t intervals of log ratios over"
            f" {over}. Significance: exact two-sided sign test of its direction at"
            f" {level}, Holm-corrected over all tests of this page on one model and"
            " metric. Datasets made of the same observations count once, as their"
            " source; within a single source each series counts once, with all its"
            " windows. A share of bootstrap samples says how often an entry is first"
            " when these units are resampled."
        ),
        *(f"{item}." for item in few if item),
    ]


def few_units(row: Mapping[str, Any], table: pd.DataFrame) -> str:
    """Say that there are too few units for a number of tests, and how many it needs.

    ``row`` has the numbers of units and tests. The text is "" where units suffice.
    """
    needed = units_needed(
        row["tests"], level=1 - float(table.attrs.get("confidence", CONFIDENCE))
    )
    text = (
        f"{row['units']} {row['unit']} are too few for {counted(row['tests'], 'test')};"
        f" {needed} are needed"
    )
    if row["units"] < needed:
        return text
    return ""


def describe_sizes(rows: pd.DataFrame) -> str:
    """Write the range of some changes, and how many are significant or why none is."""
    low, middle, high = (
        change_text(item) for item in rows["change"].quantile([0, 0.5, 1])
    )
    count = int(rows["significant"].sum())
    few = few_units(told(rows.nlargest(1, "units"))[0], rows)
    significance = f"significant: {count or 'none'} of {len(rows)}"
    if few and not count:
        significance = few
    return f"MASE changes by {low} to {high} (median {middle}); {significance}"


def say_changes(rows: pd.DataFrame, subject: str, names: pd.Series) -> list[str]:
    """Say for each model how large changes are, which are significant, and which leads.

    Args:
        rows: entries of a sweep, with a column "change".
        subject: what was taken out, such as "without one head".
        names: of the entries, with the same index as ``rows``.
    """
    rows = rows.assign(name=names)[np.isfinite(rows["change"])]
    out = []
    for model, changes in rows.groupby("model", sort=False):
        sizes_of_changes = changes["change"].abs()
        order = sizes_of_changes.sort_values(ascending=False, kind="stable").index
        largest_first = changes.loc[order]
        significant = largest_first[largest_first["significant"]]
        named = [
            f"{row['name']} ({describe_change(row)})"
            for row in told(significant.head(_MAX_NAMED))
        ]
        sizes = f"{model}: {subject}, {describe_sizes(changes)}"
        out.append(f"{sizes}: {listed(named)}." if named else f"{sizes}.")
        # without a significant leader, the shares of all entries are compared
        leading = changes[(changes["leads"] == "highest") & (changes["change"] > 0)]
        often = often_first(changes if leading.empty else leading, "name")
        if often:
            sure = "significantly"
            if leading.empty:
                sure = "not significantly"
            out.append(
                f"Costs most in bootstrap samples, {sure} more than any other: {often}."
            )
    return out


def verdict(significant: Any) -> str:
    """Write whether a change is significant."""
    if bool(significant):
        return "significant"
    return "not significant"


def often_first(rows: pd.DataFrame, what: str, name: str = "lead_share") -> str:
    """Name the entries that are most often first in bootstrap samples of units.

    ``what`` is the column of their names, ``name`` that of the share of samples. An
    example is "layer 3 (62 %) and layer 0 (20 %)".
    """
    first = (
        rows[rows[name] > 0]
        .sort_values(name, ascending=False, kind="stable")
        .head(_MAX_FIRST)
    )
    if len(first):
        return listed(
            [f"{row[what]} ({percent(round(row[name], 2))})" for row in told(first)]
        )
    return ""


def counted(count: int, word: str) -> str:
    """Write a number of things: "1 head", "3 heads"."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def change_text(share: float, digits: int = 1) -> str:
    """Write a relative change in percent with its sign.

    0 has no sign; from 10 000 % on the number is in powers of ten.
    """
    # an ablation can break a model so that errors grow by many powers of ten
    if abs(share) < 100:
        text = f"{100 * share:+.{digits}f}"
    else:
        text = f"{100 * share:+.1e}"
    if float(text) == 0:
        return "0 %"
    return f"{text.replace('-', '−')} %"


def span_text(lower: float, upper: float, digits: int = 1) -> str:
    """Write an interval of relative changes; "" where there is none."""
    if not np.isfinite([lower, upper]).all():
        return ""
    # [:-2] takes off " %", which the upper end has for both
    return f"[{change_text(lower, digits)[:-2]}, {change_text(upper, digits)}]"


def describe_change(row: Mapping[str, Any]) -> str:
    """Write a change, "+1.0 % [−0.4, +2.0 %]", or "unknown" without a result."""
    if not np.isfinite(row["change"]):
        return "unknown"
    interval = span_text(row["lower"], row["upper"])
    return f"{change_text(row['change'])} {interval}".rstrip()


def describe_order(order: str) -> str:
    """Write an order of ablation in words.

    Examples are "lowest stable rank first", "at random, seed 3" and "no head can go".
    """
    if not order:
        return "no head can go"
    kind, _, which = str(order).partition(":")
    if kind == "random":
        if which:
            return f"at random, seed {which}"
        return "at random"
    return f"{_DIRECTIONS.get(which, which)} {kind.replace('_', ' ')} first".strip()


def describe_recipe(row: Mapping[str, Any]) -> str:
    """Write what a recipe takes out: "28 % of heads + 2 MLPs"."""
    ablated = max(float(row["heads_ablated"]), 0)
    share = 100 * ablated / max(float(row["heads_total"]), 1)
    text = f"{share:.0f} % of heads"
    mlps = max(int(row["n_mlps"]), 0)
    if not mlps:
        return text
    noun = "MLPs" if mlps > 1 else "MLP"
    return f"{text} + {mlps} {noun}"


def describe_selection(selection: str, seed: int = -1) -> str:
    """Write how a recipe's heads were chosen, in words."""
    if selection == "random":
        if seed >= 0:
            return f"at random, seed {seed}"
        return "at random"
    return {"listed": "as listed", "stable_rank": "by stable rank"}.get(
        selection, selection.replace("_", " ")
    )


def labelled(
    table: pd.DataFrame, index: Sequence[str], variable: str, ends: str = ""
) -> xr.Dataset:
    """Return a column of a table as a Dataset, with its interval and its test.

    The column "change" is turned from a share into percent.

    Args:
        table: a row per combination of the labels in ``index``.
        index: columns that become dimensions.
        variable: column of the values.
        ends: prefix of the names of the columns "lower" and "upper" of its interval.

    Raises:
        InputError: no value is known, or a combination of labels has several.
    """
    check_finished(variable.replace("_", " "), table[variable])
    columns: dict[str, Any] = {variable: table[variable]}
    if variable in ("change", ends.rstrip("_")):
        columns[f"{variable}_low"] = table.get(f"{ends}lower")
        columns[f"{variable}_high"] = table.get(f"{ends}upper")
        columns[f"{variable}_significant"] = table.get("significant")
    known = {name: values for name, values in columns.items() if values is not None}
    values = pd.DataFrame(known).astype(float)
    labels = table[list(index)]
    # one variant may stand in a table for several families, with the same values
    rows = pd.concat([labels, values], axis=1).drop_duplicates()
    repeats = labels.loc[rows.index[rows.duplicated(list(index))]]
    if len(repeats):
        which = ", ".join(f"{name} {repeats[name].iloc[0]!r}" for name in index)
        raise InputError(
            f"the table has several values of {variable} for {which}; expected one for"
            f" each combination of {', '.join(index)}"
        )
    ds = rows.set_index(list(index)).to_xarray()
    for name in index:
        # to_xarray sorts labels. Texts are put back into the order of the table, while
        # numbers stay sorted, as they are places on an axis.
        if not pd.api.types.is_numeric_dtype(labels[name]):
            ds = ds.sel({name: list(dict.fromkeys(labels[name]))})
    if variable == "change":
        for name in set(known) - {"change_significant"}:
            ds[name] = 100 * ds[name]
        ds["change"].attrs["units"] = "%"
    for name in (variable, *index):
        ds[name].attrs["long_name"] = _LABELS.get(name, name.replace("_", " "))
    confidence = float(table.attrs.get("confidence", CONFIDENCE))
    return ds.assign_attrs(kind=table.attrs.get("kind", ""), confidence=confidence)


def panels_by_model(
    draw: Callable[..., go.Figure],
    words: Callable[..., list[str]],
    table: pd.DataFrame,
    name: str = "",
) -> Iterator[FigurePanel]:
    """Yield a figure for each model of a table.

    The figure is named by the kind of the table, by ``name`` and by the model.
    """
    for model in list_models(table):
        parts = (str(table.attrs.get("kind")), name, model)
        rows = table[table["model"] == model]
        yield from sweep_panel("-".join(filter(None, parts)), rows, draw, words)


def sweep_panel(
    name: str,
    table: pd.DataFrame,
    draw: Callable[..., go.Figure],
    words: Callable[..., list[str]],
) -> Iterator[FigurePanel]:
    """Yield a figure of a table with its sentences, if any entry is finished."""
    try:
        chart = draw(table)
    except InputError as error:
        # check_finished() says this of a sweep that has run only in part, which has no
        # such figure then. Any other error is raised.
        if "no finished entry" not in str(error):
            raise
    else:
        yield FigurePanel(chart, table, words(table), name)


def sweep_subject(table: pd.DataFrame) -> str:
    """Name the models, with the numbers of datasets and windows."""
    # a table that has no row for each dataset has their number as an attribute
    count = table["dataset"].nunique() if "dataset" in table else 0
    count = int(table.attrs.get("n_datasets", count))
    windows = ""
    if "n_windows" in table.attrs:
        windows = f", {counted(int(table.attrs['n_windows']), 'window')}"
    datasets = ""
    if count:
        datasets = f" on {counted(count, 'dataset')}"
    return f"{listed(list_models(table))}{datasets}{windows}"


def describe_minimum(rows: pd.DataFrame) -> str:
    """Write how many heads layers keep, and which layers need them most."""
    low = rows["kept"].min()
    high = rows["kept"].max()
    total = rows["of"].max()
    rows = rows.assign(name="layer " + rows["layer"].astype(str))
    leading = rows[rows["leads"] == "highest"]
    often = often_first(rows if leading.empty else leading, "name")
    sure = "significantly"
    if leading.empty:
        sure = "not significantly"
    needs = ""
    if often:
        needs = f"; {sure} most needed, in bootstrap samples: {often}"
    return f"layers keep {low} to {high} of {counted(int(total), 'head')}{needs}"
