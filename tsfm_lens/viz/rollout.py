"""Roll-out maps: which context steps the heads read, forecast token by forecast token."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.viz.attention import single_series
from tsfm_lens.viz.grid import panel_grid
from tsfm_lens.viz.select import array, check, layer_name, model_of, names
from tsfm_lens.viz.theme import dress, number, plain

_GREYS = [(0.0, "#ffffff"), (1.0, "#000000")]


def rollout_panels(ds: xr.Dataset, *, heads: str = "sharp", count: int = 9, zmax: float | None = None) -> go.Figure:
    """The roll-out maps of the sharpest or the most diffuse heads, each head a panel.

    A diagonal band is a head that reads at a fixed lag; a horizontal one reads the same steps throughout.

    Args:
        ds: of kind "rollout".
        heads: "sharp" for the lowest entropies, "diffuse" for the highest.
        count: panels, at most the heads that there are.
        zmax: weight at which the grey ends in black; 0.1 or the 99.9 % quantile, whichever is larger, if None.

    Returns:
        Small multiples on shared axes: forecast steps to the right, context steps upwards.

    Raises:
        InputError: ``ds`` is of another kind, or ``heads`` and ``count`` are not as above.
    """
    check(ds, "rollout", "attention")
    if heads not in ("sharp", "diffuse"):
        raise InputError(f"heads={heads!r} is not known, choose 'sharp' or 'diffuse'")
    if count < 1:
        raise InputError(f"count is {count}, expected 1 or more")
    ranks = array(ds, "sharpness_rank", "layer", "head")
    order = np.argsort(ranks.ravel() if heads == "sharp" else -ranks.ravel())[:count]
    chosen = [divmod(int(flat), ranks.shape[1]) for flat in order]
    values = array(ds, "attention", "layer", "head", "key", "query")
    entropy = array(ds, "entropy", "layer", "head")
    # special tokens cover no step, so they have no place on the axis
    ordinary = np.array([not str(word) for word in ds["key_special"].values])
    limit = zmax or max(0.1, float(np.nanquantile(values[..., ordinary, :], 0.999)))
    titles: list[tuple[str, ...]] = [
        (f"{layer_name(names(ds, 'layer')[row])}, head {names(ds, 'head')[col]}: {number(entropy[row, col])} nats",)
        for row, col in chosen
    ]
    grid = panel_grid(titles, row_height=130)
    x, y = ds["query_start"].values, ds["key_start"].values[ordinary]
    for (row, col), (layer, head) in zip(grid.places, chosen, strict=True):
        place = f"{plain(layer_name(names(ds, 'layer')[layer]))}, head {head}"
        grid.fig.add_trace(
            go.Heatmap(
                x=x,
                y=y,
                z=values[layer, head][ordinary],
                coloraxis="coloraxis",
                hovertemplate=f"{place}<br>forecast step %{{x}} reads context step %{{y}}"
                "<br>weight %{z:.3g}<extra></extra>",
            ),
            row=row,
            col=col,
        )
    bar = {"title": {"text": "attention weight", "side": "right"}}
    grid.fig.update_layout(coloraxis={"colorscale": _GREYS, "cmin": 0.0, "cmax": limit, "colorbar": bar})
    bottom = max(row for row, _ in grid.places)
    grid.fig.update_xaxes(title_text="forecast step", row=bottom)
    grid.fig.update_yaxes(title_text="context step", col=1)
    word = "Sharpest" if heads == "sharp" else "Most diffuse"
    return dress(
        grid.fig,
        f"{word} heads of {model_of(ds)} along the forecast of {single_series(ds)}",
        f"{ds.attrs.get('attention', 'attention')}; steps from the forecast start; black: {number(limit)} and more",
        **grid.room,
    )
