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
from tsfm_lens.viz.words import capital, listed

PARTS = {"both": "heads and MLPs", "heads": "heads", "mlp": "MLPs"}
_MAX_NAMED = 8  # changes in a sentence
# names of columns in figures, where they differ from the column's own
_LABELS = {
    "ablated": "heads ablated",
    "change": "change of MASE",
    "first": "first layer",
    "kept": "heads kept",
    "relative_mase": "MASE / that of seasonal naive",
    "size": "layers in the range",
    "spearman_distance": "Spearman distance (0: same order of steps)",
}
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


def describe_methods(tables: Sequence[pd.DataFrame]) -> str:
    """Describe how the intervals and tests of a page's tables were made."""
    tests = _tests(tables)
    if tests.empty:
        return ""
    confidence = float(tests["confidence"].iloc[0])
    over = " or ".join(dict.fromkeys(tests["over"]))
    return (
        "A change is a ratio of geometric means over datasets. Its"
        f" {percent(confidence)} intervals are Student's t intervals of log ratios over"
        f" {over}; those of medians are of the sign test. Significance: exact two-sided"
        f" sign test of its direction at {percent(1 - confidence)}, Holm-corrected over"
        " all tests of this page on one model and metric. Datasets made of the same"
        " observations count once, as their source; within a single source each series"
        " counts once, with all its windows. An entry costs significantly most where"
        " the same test against each of the others says so."
    )


def describe_power(tables: Sequence[pd.DataFrame]) -> str:
    """Return a sentence that units are too few for any significance; "" else.

    Of several numbers of tests, the largest counts.
    """
    tests = _tests(tables)
    few = tests.query("units < needed")
    if few.empty:
        return ""
    hardest = _hardest(few)
    nothing = "nothing can be significant"
    if len(few) < len(tests):
        nothing = f"nothing can be significant among {hardest['tests']} tests"
    return (
        f"With {hardest['over']} {nothing} after correction ({hardest['needed']}"
        " needed)."
    )


def remark_power(table: pd.DataFrame) -> str:
    """Return for a caption how many units a significant change needs; "" with enough.

    An example is "3 datasets are too few for a test, which needs 12".
    """
    few = _tests([table]).query("units < needed")
    if few.empty:
        return ""
    hardest = _hardest(few)
    return f"{hardest['over']} are too few for a test, which needs {hardest['needed']}"


def _hardest(families: pd.DataFrame) -> dict[str, Any]:
    """Return the family with most tests, which needs most units."""
    return told(families.nlargest(1, "tests"))[0]


def _tests(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the families of tests of some tables, each once.

    ``needed`` is the number of units that one test can be significant with, ``over``
    names those that there are.
    """
    parts = [
        table[["units", "unit", "tests"]].assign(
            confidence=float(table.attrs.get("confidence", CONFIDENCE))
        )
        for table in tables
        if "units" in table
    ]
    if not parts:
        return pd.DataFrame(columns=["units", "needed"])
    tests = pd.concat(parts).drop_duplicates()
    needed = [
        units_needed(row["tests"], level=1 - row["confidence"]) for row in told(tests)
    ]
    return tests.assign(
        needed=needed, over=tests["units"].astype(str) + " " + tests["unit"]
    )


def describe_sizes(rows: pd.DataFrame) -> str:
    """Write the range of some changes, and how many are significant, if any can be."""
    low = change_text(rows["change"].min())
    high = change_text(rows["change"].max())
    sizes = f"MASE changes by {low} to {high} (geometric means over datasets)"
    if len(rows) == 1:
        sizes = f"MASE changes by {low} (geometric mean over datasets)"
    count = int(rows["significant"].sum())
    # a page says once that units are too few
    if not count and describe_power([rows]):
        return sizes
    return f"{sizes}; significant: {count or 'none'} of {len(rows)}"


def say_changes(rows: pd.DataFrame, subject: str, names: pd.Series) -> list[str]:
    """Return sentences on how large changes are, which are significant, which leads.

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
        # the order of the sizes alone says nothing of other datasets
        leading = changes[(changes["leads"] == "highest") & (changes["change"] > 0)]
        if len(leading):
            out.append(f"{capital(leading['name'].iloc[0])} costs significantly most.")
        elif (changes["lead_share"] > 0).any():
            out.append("None costs significantly most.")
    return out


def verdict(significant: Any) -> str:
    """Write whether a change is significant."""
    if bool(significant):
        return "significant"
    return "not significant"


def counted(count: int, word: str) -> str:
    """Write a number of things: "1 head", "3 heads"."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def change_text(share: float, digits: int = 1) -> str:
    """Return a relative change in percent with its sign.

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
    """Return an order of ablation in words.

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
    confidence = float(table.attrs.get("confidence", CONFIDENCE))
    few = False
    if "units" in table:
        # a t interval over two or three units can be wider than the axis of all else
        few = table["units"].max() < units_needed(1, level=1 - confidence)
    columns: dict[str, Any] = {variable: table[variable]}
    if variable in ("change", ends.rstrip("_")):
        columns[f"{variable}_significant"] = table.get("significant")
        if not few:
            columns[f"{variable}_low"] = table.get(f"{ends}lower")
            columns[f"{variable}_high"] = table.get(f"{ends}upper")
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
    power = ""
    if "significant" in table:
        power = remark_power(table)
    return ds.assign_attrs(
        kind=table.attrs.get("kind", ""), confidence=confidence, power=power
    )


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
    """Write how many heads layers must keep, and which layer needs its heads most."""
    low = rows["kept"].min()
    high = rows["kept"].max()
    span = f"{low} to {high}"
    if low == high:
        span = str(low)
    text = f"each must keep {span} of {rows['of'].max()}"
    leading = rows[rows["leads"] == "highest"]
    if leading.empty:
        return text
    return f"{text}; layer {leading['layer'].iloc[0]} needs them significantly most"


def name_tolerating(layers: Sequence[int], count: int) -> str:
    """Write which of so many layers tolerate something, "no layer tolerates"."""
    if not layers:
        return "no layer tolerates"
    if len(layers) == count:
        return "every layer tolerates"
    names = listed([str(layer) for layer in layers])
    if len(layers) == 1:
        return f"only layer {names} tolerates"
    return f"layers {names} tolerate"
