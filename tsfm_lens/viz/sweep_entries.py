"""What the figures of sweeps share: rows of results, intervals, which changes stand, and the words for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.viz.select import check
from tsfm_lens.viz.theme import BLUE, GREEN, GREY, VERMILION, percent, plain

PARTS = {"both": "heads and MLPs", "heads": "heads", "mlp": "MLPs"}
PART_COLOURS = {"heads": BLUE, "mlp": VERMILION, "both": GREEN}
MASE_WORDS = "MASE (geometric mean over datasets, seasonal naive = 1)"
STANDS = "filled: the change of MASE stands after Holm's correction"
_DIRECTIONS = {"low": "lowest", "high": "highest"}


def entries(ds: xr.Dataset, kind: str, *variables: str) -> pd.DataFrame:
    """A row an entry of a sweep's result, a column for every coordinate and variable along ``entry``.

    Raises:
        InputError: ``ds`` is of another kind or lacks one of ``variables``.
    """
    check(ds, kind, *variables)
    return pd.DataFrame({str(name): v.values for name, v in ds.variables.items() if v.dims == ("entry",)})


def effects_of(ds: xr.Dataset, *variables: str) -> pd.DataFrame:
    """The entries of kind "sweep_effects" with ``size``, how many layers each takes from; ``first`` is -1 for none."""
    table = entries(ds, "sweep_effects", "model", "family", "label", "part", "first", "last", *variables)
    return table.assign(size=table["last"] - table["first"] + 1)


def models_in(table: pd.DataFrame) -> list[str]:
    """The models of some rows, in their order."""
    return list(dict.fromkeys(table["model"].astype(str)))


def chosen_model(models: Sequence[str], model: str | int) -> str:
    """A model by its name or its place.

    Raises:
        UnknownNameError: there is no such model.
    """
    if isinstance(model, str) and model in models:
        return model
    if isinstance(model, int) and -len(models) <= model < len(models):
        return models[model]
    raise unknown_name("model", model, models)


def told(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows one by one, for what is said of each."""
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def some(table: pd.DataFrame, what: str) -> pd.DataFrame:
    """The rows, if there are any.

    Raises:
        InputError: there are none.
    """
    if table.empty:
        raise InputError(f"this sweep has no finished entry for {what}; it has not run, or was not asked for")
    return table


def finished(table: pd.DataFrame, *columns: str) -> tuple[pd.DataFrame, str]:
    """The rows whose numbers are all there, and a remark on the others for a subtitle ("" if there are none)."""
    known = np.isfinite(table[list(columns)].to_numpy(dtype=float)).all(axis=1)
    lost = int((~known).sum())
    return table[known], f"; {lost} without a result {'is' if lost == 1 else 'are'} left out" if lost else ""


def baseline_of(ds: xr.Dataset, model: str) -> float:
    """The unablated MASE of a model; NaN where it is not known."""
    if "baseline_mase" not in ds:
        return float("nan")
    names = [str(name) for name in ds["model_name"].values]
    return float(ds["baseline_mase"].values[names.index(model)]) if model in names else float("nan")


def tolerance_of(ds: xr.Dataset) -> float:
    """The relative rise of the error that a sweep allows."""
    return float(ds.attrs.get("tolerance", 0.01))


def intervals_of(ds: xr.Dataset) -> str:
    """The intervals of a result in a word or two: "95 % intervals"."""
    return f"{percent(float(ds.attrs.get('confidence', 0.95)))} intervals"


def method_of(ds: xr.Dataset) -> str:
    """How the intervals and tests of a result were made, in a sentence."""
    drawn = f" of {int(ds.attrs['replicates'])} replicates" if "replicates" in ds.attrs else ""
    return (
        f"The {intervals_of(ds)} are percentiles of a paired bootstrap{drawn}: datasets are drawn with replacement, "
        "and from each its series, the same for the ablated and the unablated model. A change stands if its p-value, "
        "corrected by Holm's method for all tests of its family, is below "
        f"{1 - float(ds.attrs.get('confidence', 0.95)):.2g}."
    )


def counted(count: int, word: str) -> str:
    """A number of things: "1 head", "3 heads"."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def change_text(share: float, digits: int = 1) -> str:
    """A relative change in percent with its sign; 0 has none, and from 10 000 % on powers of ten are written."""
    text = f"{100 * share:+.{digits}f}" if abs(share) < 100 else f"{100 * share:+.1e}"
    return "0 %" if float(text) == 0 else f"{text.replace('-', '−')} %"


def span_text(lower: float, upper: float, digits: int = 1) -> str:
    """An interval of relative changes; "" where there is none."""
    if not np.isfinite([lower, upper]).all():
        return ""
    return f"[{change_text(lower, digits)[:-2]}, {change_text(upper, digits)}]"


def order_words(order: str) -> str:
    """An order of ablation in words: "lowest stable rank first", "at random, seed 3"; of none: "no head can go"."""
    if not order:
        return "no head can go"
    kind, _, which = str(order).partition(":")
    if kind == "random":
        return f"at random, seed {which}" if which else "at random"
    return f"{_DIRECTIONS.get(which, which)} {kind.replace('_', ' ')} first".strip()


def recipe_words(row: Mapping[str, Any]) -> str:
    """What a recipe takes out: "28 % of heads + 2 MLPs"."""
    share = 100 * max(float(row["heads_ablated"]), 0) / max(float(row["heads_total"]), 1)
    mlps = max(int(row["n_mlps"]), 0)
    return f"{share:.0f} % of heads" + (f" + {mlps} MLP{'s' if mlps > 1 else ''}" if mlps else "")


def selection_words(selection: str, seed: int = -1) -> str:
    """How a recipe's heads were chosen, in words."""
    if selection == "random":
        return f"at random, seed {seed}" if seed >= 0 else "at random"
    return {"listed": "as listed", "stable_rank": "by stable rank"}.get(selection, selection.replace("_", " "))


def symbols(stands: Iterable[Any], symbol: str = "circle") -> list[str]:
    """A filled symbol for each change that stands, an open one for the others."""
    return [symbol if bool(each) else f"{symbol}-open" for each in stands]


def bars_between(values: np.ndarray, lower: np.ndarray, upper: np.ndarray, **look: Any) -> dict[str, Any]:
    """Error bars from ``lower`` to ``upper`` of points at ``values``."""
    return {
        "type": "data",
        "symmetric": False,
        "array": np.asarray(upper - values),
        "arrayminus": np.asarray(values - lower),
        "thickness": 1.2,
        "width": 2,
        **look,
    }


def faint(colour: str, strength: float = 0.16) -> str:
    """A colour that lets what lies behind it through."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{strength})"


def band(fig: go.Figure, x: np.ndarray, lower: np.ndarray, upper: np.ndarray, colour: str, **at: Any) -> None:
    """A band from ``lower`` to ``upper``, where there is an interval."""
    known = np.isfinite(lower) & np.isfinite(upper)
    x, lower, upper = x[known], lower[known], upper[known]
    if len(x) < 2:
        return
    fig.add_trace(
        go.Scatter(
            x=np.concatenate([x, x[::-1]]),
            y=np.concatenate([upper, lower[::-1]]),
            mode="lines",
            line={"width": 0, "color": faint(colour)},
            fill="toself",
            fillcolor=faint(colour),
            hoverinfo="skip",
            showlegend=False,
            name="interval",
        ),
        **at,
    )


def level_line(fig: go.Figure, value: float, *, dash: str, **at: Any) -> None:
    """A thin horizontal line through a panel."""
    if np.isfinite(value):
        fig.add_hline(y=value, line={"color": GREY, "width": 1, "dash": dash}, **at)


def legend_only(fig: go.Figure, name: str, **look: Any) -> None:
    """An entry of the legend without data of its own."""
    fig.add_trace(go.Scatter(x=[None], y=[None], name=plain(name), hoverinfo="skip", **look))


def whole_ticks(fig: go.Figure, most: float) -> None:
    """Ticks of the x axes at whole numbers, about six up to ``most``."""
    fig.update_xaxes(dtick=next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000) if most / step <= 6 or step == 1000))
