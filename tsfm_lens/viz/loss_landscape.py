"""Loss around the weights, along filter-normalised directions."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.grid import log_axis
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.select import array, model_of, names
from tsfm_lens.viz.sheet import Look, Sheet, sheet
from tsfm_lens.viz.theme import CATEGORICAL, INK, mixed, plain
from tsfm_lens.viz.training_watch import run_words, watch_table
from tsfm_lens.viz.words import num

__all__ = ["loss_landscape"]
_STEEP = 30  # times the smallest loss from which on a scale is logarithmic
_SIDE = 280  # pixels


LOSS_LANDSCAPE = measurement(
    "loss_landscape",
    theme="Training",
    title="The loss around the weights",
    summary="the loss around the weights, along filter-normalised directions",
    description="A slice shows two of very many directions: flat here is not flat everywhere.",
    source="Li et al. 2018",
    maker="made while a model is trained: `tsfm_lens.training` makes it",
    subject=lambda ds: str(ds.attrs.get("model", "")),
)


def read_landscape(ds: xr.Dataset) -> list[str]:
    """State how far the loss rises within the slice."""
    out = []
    for run, one in run_words(ds):
        values = one["loss"].values[np.isfinite(one["loss"].values)]
        where = f"{run + ': ' if run else ''}"
        out.append(f"{where}Within the slice the loss lies between {num(values.min())} and {num(values.max())}.")
        missing = one["loss"].size - len(values)
        if missing:
            out.append(f"{where}At {missing} of {one['loss'].size} places it is not finite.")
    return out


@LOSS_LANDSCAPE.figure(
    "The loss along one direction, or over two.",
    variables=("loss",),
    table=lambda ds: watch_table(ds, "first", "second"),
    sentences=read_landscape,
)
def loss_landscape(ds: xr.Dataset) -> go.Figure:
    """Draw the loss along one direction as a line, or over two as contours; several runs together.

    Args:
        ds: of kind "loss_landscape", of one run, or of several of ``training.together``.

    Returns:
        Along one direction a line for each run, with a band over seeds. Over two a panel for each run, of the first
        seed, on one scale of colours, with the weights themselves in the middle.

    Example:
        >>> w = torch.ones(2, 2, requires_grad=True)
        >>> result = training.loss_landscape(lambda: (w**2).sum(), [w], axes=1, points=5, name="bowl")
        >>> viz.loss_landscape(result).layout.meta["title"]
        'Loss around the weights of bowl'
    """
    data = ds if "run" in ds.dims else ds.expand_dims(run=[""])
    runs = names(data, "run")
    finite = data["loss"].values[np.isfinite(data["loss"].values)]
    steep = bool(len(finite)) and finite.min() > 0 and finite.max() > _STEEP * finite.min()
    canvas = (_contours if "second" in ds.dims else _slices)(data, runs, steep)
    kind = str(ds.attrs.get("directions", "random"))
    return canvas.dress(
        f"Loss around the weights of {model_of(ds)}",
        f"directions: {kind}; each filter as long as that of the weights at 1",
    )


def _slices(data: xr.Dataset, runs: list[str], steep: bool) -> Sheet:
    canvas, at = sheet([_SIDE], min_width=360), array(data, "first", "first")
    panel = canvas.panel()
    for place, run in enumerate(runs):
        one, colour = data["loss"].isel(run=place), CATEGORICAL[place % len(CATEGORICAL)]
        if "seed" in one.dims:
            panel.band(at, one.min("seed").values, one.max("seed").values, mixed(colour, 0.25), run)
            one = one.mean("seed")
        hover = f"{plain(run)}{'<br>' * bool(run)}%{{x:.3g}} along: loss %{{y:.4g}}"
        panel.line(at, one.values, run, hover, colour=colour, dots=3)
    panel.x("along the direction (1: as long as the weights)")
    panel.y("loss", **(log_axis(data["loss"].values) if steep else {}))
    return canvas


def _contours(data: xr.Dataset, runs: list[str], steep: bool) -> Sheet:
    canvas = sheet(
        [_SIDE],
        [1] * len(runs),
        titles=runs if any(runs) else None,
        column_gap=0.06,
        min_width=max(360, 110 + 250 * len(runs)),
        shared_yaxes=True,
    )
    losses = array(data, "loss", "run", "second", "first", seed=0)
    levels = np.log10(np.where(losses > 0, losses, np.nan)) if steep else losses
    levels = np.where(np.isfinite(levels), levels, np.nan)
    for panel, z, loss in zip(canvas, levels, losses, strict=True):
        look: Look = {
            "coloraxis": "coloraxis",
            "ncontours": 24,
            "line": {"width": 0.6, "color": INK},
            "customdata": loss,
        }
        hover = "%{x:.3g} and %{y:.3g} along<br>loss %{customdata:.4g}"
        panel.add(go.Contour, "", hover, z=z, x=data["first"].values, y=data["second"].values, **look)
        panel.dots([0], [0], "", "the weights", colour="#FFFFFF", size=8, edge=INK)
        panel.x("along the first direction")
    canvas.panel().y("along the second direction")
    canvas.colours(colour_scale("loss, power of ten" if steep else "loss", levels))
    return canvas
