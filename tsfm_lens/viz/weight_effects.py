"""Effects of fine-tuning by component: how far weights moved, what that does, and what setting them back costs."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.registry import measurement
from tsfm_lens.viz.findings import finding, judged
from tsfm_lens.viz.select import array, model_of, names, unit_of
from tsfm_lens.viz.sheet import sheet
from tsfm_lens.viz.theme import BLUE, GREY, mixed, percent, plain
from tsfm_lens.viz.words import listed, num

__all__ = ["weight_effects_bars"]

_MAX_NAMES = 3

WEIGHT_EFFECTS = measurement("weight_effects")


def read_weight_effects(ds: xr.Dataset) -> list[str]:
    """State whether anything was tuned, where the weights moved most, which of it matters, and what the error gains."""
    model, base = model_of(ds), str(ds.attrs["base"])
    if ds.attrs["identical"]:
        return [f"Nothing differs: {model} is the base model {base}, weight for weight."]
    labels, moved = names(ds, "component"), array(ds, "relative_norm", "component")
    share, order = judged(ds, "share", "component"), np.argsort(-moved, kind="stable")[:_MAX_NAMES]
    furthest = [f"{labels[i]} ({percent(float(moved[i]))} of its norm{_rank(ds, i)})" for i in order]
    adapters = int(ds.attrs["adapters"])
    read = f" {adapters} adapters beside their matrices are read as what they add." if adapters else ""
    count = len(labels)
    many = f"{count} components differ" if count > 1 else "one component differ"
    out = [f"The weights of {many} from those of {base}, most in {listed(furthest)}.{read}"]
    named = [f"{labels[i]} ({share.told(i, percent)})" for i in share.named(_MAX_NAMES)]
    out += (
        [f"Set back alone, {listed(named)} move the forecast most, as shares of the series' range{share.basis}."]
        if named
        else ["No component by itself moves the forecast by 1 % of the series' range when it is set back."]
    )
    # untrained models are no rivals of a tuned one
    out += share.standing(labels, "components")[:-1]
    if "cumulative_error" in ds:
        error = array(ds, "cumulative_error", "back", "series").mean(1)
        half = error[0] + (error[-1] - error[0]) / 2
        first = int(np.argmax((error >= half) if error[-1] >= error[0] else (error <= half)))
        words = "lower" if error[0] < error[-1] else "higher"
        out.append(
            f"Tuning made the error {words} on these series: a mean absolute error of {num(float(error[0]))}, and "
            f"{num(float(error[-1]))} of the base model. "
            + (f"Setting back the first {first} of {count} components undoes half of that." if count > 1 else "")
        )
    return out


def _rank(ds: xr.Dataset, at: int) -> str:
    rank, full = (int(array(ds, name, "component")[at]) for name in ("rank", "full_rank"))
    return f", rank {rank} of {full}" if full else ""


@WEIGHT_EFFECTS.figure(table=("norm", "relative_norm", "rank", "share"), sentences=read_weight_effects)
def weight_effects_bars(ds: xr.Dataset, *, top: int = 15) -> go.Figure:
    """Draw how far each component's weights moved, what setting it back does, and the error as more are set back.

    Example:
        >>> fig = viz.weight_effects_bars(probes.weight_effects(explain.untrained_twin(lens), lens, run), top=5)
        >>> fig.layout.meta["title"].startswith("Effects of tuned weights")
        True
    """
    if top < 1:
        raise InputError(f"top is {top}, expected 1 or more")
    title, base = f"Effects of tuned weights of {model_of(ds)}", str(ds.attrs["base"])
    if ds.attrs["identical"]:
        canvas = sheet([120], min_width=420)
        next(iter(canvas)).note("no weight differs", 0.5, 0.5)
        return canvas.dress(title, f"nothing differs: this is the base model {base}")
    first = slice(0, top)
    labels = [plain(name) for name in names(ds, "component")[first]]
    moved, effect = array(ds, "relative_norm", "component")[first], array(ds, "share", "component", "series").mean(1)
    noise = finding(ds, "share", "component", unit="of the range")
    mine = None if noise is None else noise.at(list(range(len(labels))))
    with_error = "cumulative_error" in ds
    widths = [0.3, 0.4, 0.3] if with_error else [0.45, 0.55]
    canvas = sheet([max(150, 22 * len(labels))], widths, column_gap=0.07, min_width=700, below=68, shared_yaxes=True)
    left, middle, *rest = canvas
    left.bars(labels, moved, "", "%{y}<br>moved by %{x:.3g} of its norm", colour=mixed(GREY, 0.6), across=True)
    middle.floor(mine, across=True)
    middle.bars(labels, effect[first], "", "%{y}<br>%{x:.3g} of the range", colour=BLUE, across=True, noise=mine)
    if rest:
        error = array(ds, "cumulative_error", "back", "series").mean(1)
        unit = unit_of(ds) or "data units"
        hover = "with %{y} and all above set back<br>mean absolute error %{x:.4g}"
        rest[0].dots(error[1:][first], labels, "", hover, size=7)
        rest[0].upright(float(error[0]), dash="dash")
        rest[0].x(f"mean absolute error\nset back so far ({unit})", nticks=4)
    canvas.y(autorange="reversed", ticks="", showline=False, dtick=1)
    left.y("component")
    left.x("change of the weights\n(share of their norm)", nticks=4)
    middle.x("effect of setting it back\n(share of the range)", nticks=5)
    left_out = len(names(ds, "component")) - len(labels)
    return canvas.dress(
        title,
        f"against {base}; each set back alone, on the right one after the other",
        "dashed: the tuned model" if with_error else "",
        f"{left_out} more components differ" if left_out > 0 else "",
    )
