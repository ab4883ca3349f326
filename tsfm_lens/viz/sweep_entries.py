"""Parts that the figures of sweeps share: rows of results, intervals, significance, and words for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tsfm_lens.core.registry import FigurePanel
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.stats import units_needed
from tsfm_lens.viz.sheet import Panel, Sheet
from tsfm_lens.viz.theme import BLUE, GREEN, INK, VERMILION, percent
from tsfm_lens.viz.words import listed

PARTS = {"both": "heads and MLPs", "heads": "heads", "mlp": "MLPs"}
PART_COLOURS = {"heads": BLUE, "mlp": VERMILION, "both": GREEN}
MASE_WORDS = "MASE (geometric mean over datasets, seasonal naive = 1)"
SIGNIFICANT = "filled: the change of MASE is significant"
NO_AXIS = {"ticks": "", "showline": False}
_MAX_NAMED = 8  # changes in a sentence
_MAX_FIRST = 3  # entries that are named by how often they are first
_DIRECTIONS = {"low": "lowest", "high": "highest"}


def finished(table: pd.DataFrame, what: str, *columns: str) -> tuple[pd.DataFrame, str]:
    """Return the rows whose numbers are all there, and a remark on the others for a subtitle ("" if there are none)."""
    finite = np.isfinite(table[list(columns)].to_numpy(dtype=float)).all(axis=1)
    if not finite.any():
        raise InputError(
            f"this sweep has no finished entry for {what}; it has not run, or was not requested"
        )
    missing = int((~finite).sum())
    return (
        table[finite],
        f"{missing} without a result {'is' if missing == 1 else 'are'} left out"
        if missing
        else "",
    )


def models_in(table: pd.DataFrame) -> list[str]:
    """List the models of some rows, in their order."""
    return list(dict.fromkeys(table["model"]))


def chosen_model(table: pd.DataFrame, model: str | int) -> str:
    """Return a model of a result by its name or its place."""
    models = models_in(table)
    if isinstance(model, str) and model in models:
        return model
    if isinstance(model, int) and -len(models) <= model < len(models):
        return models[model]
    raise unknown_name("model", model, models)


def told(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows one by one, for what is said of each."""
    return [
        {str(key): value for key, value in row.items()}
        for row in table.to_dict("records")
    ]


def baseline_of(table: pd.DataFrame, model: str) -> float:
    """Return the unablated MASE of a model; NaN where it is not known."""
    values = table.loc[table["model"] == model, "baseline_mase"]
    return float(values.iloc[0]) if len(values) else float("nan")


def tolerance_of(table: pd.DataFrame) -> float:
    """Return the relative rise of the error that a sweep allows."""
    return float(table.attrs.get("tolerance", 0.01))


def intervals_of(table: pd.DataFrame) -> str:
    """Name the intervals of a result in a word or two: "95 % intervals"."""
    return f"{percent(float(table.attrs.get('confidence', 0.95)))} intervals"


def methods_of(tables: Sequence[pd.DataFrame]) -> list[str]:
    """Describe how the intervals and tests of a page were made, and name tests with too few units."""
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
    level = percent(1 - float(tested[0].attrs.get("confidence", 0.95)))
    return [
        f"A change is a ratio of geometric means over datasets. Its {intervals_of(tested[0])} are Student's t "
        f"intervals of log ratios over {over}. Significance: exact two-sided sign test of its direction at {level}, "
        "Holm-corrected over all tests of this page on one model and metric. Datasets made of the same observations "
        "count once, as their source; within a single source each series counts once, with all its windows. A share "
        "of bootstrap samples says how often an entry is first when these units are resampled.",
        *(f"{each}." for each in few if each),
    ]


def few_units(row: Mapping[str, Any], table: pd.DataFrame) -> str:
    """Say that there are too few units for the tests of a page, and how many are needed; "" where they suffice."""
    needed = units_needed(
        row["tests"], level=1 - float(table.attrs.get("confidence", 0.95))
    )
    words = f"{row['units']} {row['unit']} are too few for {counted(row['tests'], 'test')}; {needed} are needed"
    return words if row["units"] < needed else ""


def sizes_words(rows: pd.DataFrame) -> str:
    """Write the sizes of some changes, how many are significant, or why none can be."""
    low, middle, high = (
        change_text(each) for each in rows["change"].quantile([0, 0.5, 1])
    )
    count = int(rows["significant"].sum())
    few = few_units(told(rows.nlargest(1, "units"))[0], rows)
    said = f"significant: {count or 'none'} of {len(rows)}"
    if few and not count:
        said = few
    return f"MASE changes by {low} to {high} (median {middle}); {said}"


def say_changes(rows: pd.DataFrame, subject: str, names: pd.Series) -> list[str]:
    """Say of each model the sizes of some changes, which are significant, and which one leads.

    Args:
        rows: entries of a sweep, with a column "change".
        subject: what was taken out, such as "without one head".
        names: of the entries, by the index of ``rows``.
    """
    rows = rows.assign(name=names)[np.isfinite(rows["change"])]
    out = []
    for model, mine in rows.groupby("model", sort=False):
        order = mine["change"].abs().sort_values(ascending=False, kind="stable").index
        significant = mine.loc[order][mine.loc[order, "significant"]]
        named = [
            f"{row['name']} ({change_words(row)})"
            for row in told(significant.head(_MAX_NAMED))
        ]
        sizes = f"{model}: {subject}, {sizes_words(mine)}"
        out.append(f"{sizes}: {listed(named)}." if named else f"{sizes}.")
        leading = mine[(mine["leads"] == "highest") & (mine["change"] > 0)]
        often = often_first(mine if leading.empty else leading, "name")
        if often:
            sure = "not significantly" if leading.empty else "significantly"
            out.append(
                f"Costs most in bootstrap samples, {sure} more than any other: {often}."
            )
    return out


def verdict(significant: Any) -> str:
    """Write whether a change is significant."""
    return "significant" if bool(significant) else "not significant"


def often_first(rows: pd.DataFrame, what: str, name: str = "lead_share") -> str:
    """Name the entries most often first in bootstrap samples of units: "layer 3 (62 %) and layer 0 (20 %)"."""
    first = (
        rows[rows[name] > 0]
        .sort_values(name, ascending=False, kind="stable")
        .head(_MAX_FIRST)
    )
    return (
        listed([f"{row[what]} ({percent(round(row[name], 2))})" for row in told(first)])
        if len(first)
        else ""
    )


def counted(count: int, word: str) -> str:
    """Write a number of things: "1 head", "3 heads"."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def change_text(share: float, digits: int = 1) -> str:
    """Write a relative change in percent with its sign; 0 has none, and from 10 000 % on it is in powers of ten."""
    text = f"{100 * share:+.{digits}f}" if abs(share) < 100 else f"{100 * share:+.1e}"
    return "0 %" if float(text) == 0 else f"{text.replace('-', '−')} %"


def span_text(lower: float, upper: float, digits: int = 1) -> str:
    """Write an interval of relative changes; "" where there is none."""
    if not np.isfinite([lower, upper]).all():
        return ""
    return f"[{change_text(lower, digits)[:-2]}, {change_text(upper, digits)}]"


def change_words(row: Mapping[str, Any]) -> str:
    """Write a change with its interval, where there is one: "+1.0 % [−0.4, +2.0 %]"; "unknown" without a result."""
    if not np.isfinite(row["change"]):
        return "unknown"
    return (
        f"{change_text(row['change'])} {span_text(row['lower'], row['upper'])}".rstrip()
    )


def order_words(order: str) -> str:
    """Write an order of ablation in words: "lowest stable rank first", "at random, seed 3"; "no head can go"."""
    if not order:
        return "no head can go"
    kind, _, which = str(order).partition(":")
    if kind == "random":
        return f"at random, seed {which}" if which else "at random"
    return f"{_DIRECTIONS.get(which, which)} {kind.replace('_', ' ')} first".strip()


def recipe_words(row: Mapping[str, Any]) -> str:
    """Write what a recipe takes out: "28 % of heads + 2 MLPs"."""
    share = (
        100 * max(float(row["heads_ablated"]), 0) / max(float(row["heads_total"]), 1)
    )
    mlps = max(int(row["n_mlps"]), 0)
    return f"{share:.0f} % of heads" + (
        f" + {mlps} MLP{'s' if mlps > 1 else ''}" if mlps else ""
    )


def selection_words(selection: str, seed: int = -1) -> str:
    """Write how a recipe's heads were chosen, in words."""
    if selection == "random":
        return f"at random, seed {seed}" if seed >= 0 else "at random"
    return {"listed": "as listed", "stable_rank": "by stable rank"}.get(
        selection, selection.replace("_", " ")
    )


def symbols(significant: Iterable[Any], symbol: str = "circle") -> list[str]:
    """Return a filled symbol for each change that is significant, an open one for the others."""
    return [symbol if bool(each) else f"{symbol}-open" for each in significant]


def whiskers(
    rows: pd.DataFrame, name: str = "", *, colour: str = INK, scale: float = 1.0
) -> dict[str, Any]:
    """Return error bars over the intervals of some rows: of changes, or of the column ``name`` before its ends."""
    ends = [f"{name}_{end}" if name else end for end in ("lower", "upper")]
    middle, low, high = (
        rows[each].to_numpy(float) for each in (name or "change", *ends)
    )
    bars = {
        "array": scale * (high - middle),
        "arrayminus": scale * (middle - low),
        "symmetric": False,
    }
    return {"type": "data", **bars, "color": colour, "thickness": 1.2, "width": 2}


def label_rows(canvas: Sheet, words: Sequence[str], **look: Any) -> None:
    """Put words, safe for plotly, beside the rows of a figure, the first on top."""
    ticks = {
        "tickvals": list(range(len(words))),
        "ticktext": list(words),
        "ticklabelstandoff": 6,
        **NO_AXIS,
    }
    canvas.fig.update_yaxes(range=[len(words) - 0.5, -0.5], **ticks | look)


def band(
    panel: Panel, x: np.ndarray, rows: pd.DataFrame, base: float, colour: str
) -> None:
    """Draw the intervals of the changes of some rows as a band of MASE, where there are any."""
    lower, upper = (
        base * (1 + rows[name].to_numpy(float)) for name in ("lower", "upper")
    )
    finite = np.isfinite(lower) & np.isfinite(upper)
    if finite.sum() > 1:
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        panel.band(
            x[finite],
            lower[finite],
            upper[finite],
            f"rgba({red},{green},{blue},0.16)",
            "interval",
        )


def level(panel: Panel, value: float, dash: str) -> None:
    """Draw a thin horizontal line through a panel, where the value is known."""
    if np.isfinite(value):
        panel.level(value, dash=dash)


def whole_ticks(canvas: Sheet, most: float) -> None:
    """Set ticks of the x axes at whole numbers, about six up to ``most``."""
    canvas.x(
        dtick=next(
            step
            for step in (1, 2, 5, 10, 20, 50, 100, 1000)
            if most / step <= 6 or step == 1000
        )
    )


def sweep_panel(
    name: str,
    table: pd.DataFrame,
    draw: Callable[..., go.Figure],
    words: Callable[..., list[str]],
) -> Iterator[FigurePanel]:
    """Yield a figure of a table with its reading, where the sweep has something for it."""
    try:
        chart = draw(table)
    except InputError as error:
        if "no finished entry" not in str(error):
            raise
    else:
        yield FigurePanel(chart, table, words(table), name)


def sweep_subject(table: pd.DataFrame) -> str:
    """Name the models, with the numbers of datasets and windows."""
    count = int(
        table.attrs.get(
            "n_datasets", table["dataset"].nunique() if "dataset" in table else 0
        )
    )
    windows = (
        f", {counted(int(table.attrs['n_windows']), 'window')}"
        if "n_windows" in table.attrs
        else ""
    )
    datasets = f" on {counted(count, 'dataset')}" if count else ""
    return f"{listed(models_in(table))}{datasets}{windows}"


def least_words(rows: pd.DataFrame) -> str:
    """Write how many heads layers keep, and which need theirs most."""
    low, high, most = rows["kept"].min(), rows["kept"].max(), rows["of"].max()
    rows = rows.assign(name="layer " + rows["layer"].astype(str))
    leading = rows[rows["leads"] == "highest"]
    often = often_first(rows if leading.empty else leading, "name")
    sure = "not significantly" if leading.empty else "significantly"
    needs = f"; {sure} most needed, in bootstrap samples: {often}" if often else ""
    return f"layers keep {low} to {high} of {counted(int(most), 'head')}{needs}"
