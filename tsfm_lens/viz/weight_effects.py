"""Effects of fine-tuning by component: how far weights moved, what that does, and what setting them back costs."""

from __future__ import annotations

import math

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import figure, measurement
from tsfm_lens.viz.findings import finding, judged
from tsfm_lens.viz.select import (
    array,
    model_of,
    names,
    shown,
    statistic_of,
)
from tsfm_lens.viz.sheet import sheet
from tsfm_lens.viz.summary import summarize
from tsfm_lens.viz.theme import BLUE, GREY, mixed, percent, plain

__all__ = ["weight_effects_bars"]

_HALF = 0.5

measurement(
    "weight_effects",
    title="Effects of tuned weights",
    theme="Causes",
    summary=(
        "which components' weights differ from the base model's, and what setting "
        "each back does"
    ),
    description=(
        "Each component of a fine-tuned model is set back to the base model's "
        "weights, alone and one after the other. How far weights moved says nothing "
        "about what that does to the forecast, so both are shown. Each model "
        "forecasts by itself, a token model on its own path. Effects are shares of "
        "the series' range, errors ratios, so units do not matter."
    ),
    source="LoRA, Hu et al. 2021, arXiv:2106.09685",
    maker=("made of two models and a run: `tsfm_lens.probes.weight_effects` makes it"),
)


def read_weight_effects(ds: xr.Dataset) -> list[str]:
    """State whether anything was tuned, where the weights moved most, which of it matters, and what the error gains."""
    if ds.attrs["identical"]:
        return [
            f"Nothing differs: {model_of(ds)} is the base model {ds.attrs['base']}, weight "
            "for weight."
        ]
    out = summarize(
        ds,
        "Components whose weights differ from those of {base}: {components}; most, as a "
        "share of their norm: {relative_norm:largest percent}.",
        "{adapters} adapters beside their matrices are read as what they add.",
        "Components that move the forecast most when set back alone, as shares of the "
        "series' range{share:basis}: {share:largest percent}.",
        effect="share",
        noun="components",
        components=ds.sizes["component"],
        adapters=ds.attrs["adapters"] or None,
    )
    # untrained models are no rivals of a tuned one
    out = out[:-1]
    if "base_error_change" in ds:
        out += _read_errors(ds)
    return out


def _read_errors(ds: xr.Dataset) -> list[str]:
    """State what tuning did to the error of the forecasts, and how few components undo half of it."""
    change = judged(ds, "base_error_change")
    together = array(ds, "cumulative_error_change_size", "back")
    gain = float(change.size)
    if not gain or not change.acts:
        return [f"Tuning left the error of the {statistic_of(ds)} forecast as it was."]
    first = None
    if len(together) > 2 and together[-1]:
        first = int(np.argmax(together / together[-1] >= _HALF))
    return summarize(
        ds,
        "Tuning changed the error of the {word} forecast by {share} of the base model's; "
        "that is {verdict}.",
        "Setting back the first {first} of {count} components undoes half of that.",
        word=statistic_of(ds),
        share=change.told(0, _of_base, over=True) if np.isfinite(gain) else None,
        verdict=change.for_others(),
        first=first,
        count=len(together) - 1,
    )


def _of_base(change: float) -> str:
    """Write what tuning adds to the base model's error; ``change`` is the logarithm of that over the tuned model's."""
    share = math.expm1(-change)
    return f"{'+' if share >= 0 else ''}{percent(share)}"


@figure(
    "weight_effects",
    ("How far each component's weights moved, and what setting it back does."),
    table=("norm", "relative_norm", "rank", "share"),
    sentences=read_weight_effects,
)
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
    moved, noise = (
        array(ds, "relative_norm", "component")[first],
        finding(ds, "share", "component", unit="of the range"),
    )
    mine = None if noise is None else noise.at(list(range(len(labels))))
    with_error = "cumulative_error_change_size" in ds
    widths = [0.3, 0.4, 0.3] if with_error else [0.45, 0.55]
    canvas = sheet(
        [max(150, 22 * len(labels))],
        widths,
        column_gap=0.07,
        min_width=700,
        below=68,
        shared_yaxes=True,
    )
    left, middle, *rest = canvas
    left.bars(
        labels,
        moved,
        "",
        "%{y}<br>moved by %{x:.3g} of its norm",
        colour=mixed(GREY, 0.6),
        across=True,
    )
    middle.floor(mine, across=True)
    size = array(ds, "share_size", "component")[first]
    middle.bars(
        labels,
        size,
        "",
        "%{y}<br>%{x:.3g} of the range",
        colour=BLUE,
        across=True,
        noise=mine,
    )
    word = statistic_of(ds)
    if rest:
        change = 100 * np.expm1(array(ds, "cumulative_error_change_size", "back"))
        hover = "with %{y} and all above set back<br>error %{x:+.3g} %"
        rest[0].dots(change[1:][first], labels, "", hover, size=7)
        rest[0].upright(0.0, dash="dash")
        rest[0].x("mean absolute error\nset back so far (change, %)", nticks=4)
    canvas.y(autorange="reversed", ticks="", showline=False, dtick=1)
    left.y("component")
    left.x("change of the weights\n(share of their norm)", nticks=4)
    middle.x("effect of setting it back\n(share of the range)", nticks=5)
    series = names(ds, "series")
    over = f", median over {shown(series)}" if len(series) > 1 else f" of {series[0]}"
    left_out = len(names(ds, "component")) - len(labels)
    return canvas.dress(
        title,
        f"against {base}; each set back alone, on the right one after the other",
        f"{word} forecast{over}",
        "dashed: the tuned model" if with_error else "",
        f"{left_out} more components differ" if left_out > 0 else "",
    )
