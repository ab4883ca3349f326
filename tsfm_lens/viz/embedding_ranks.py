"""Ranks of embedded signals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.grid import log_axis, panel_grid, title_axes
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.row_angles import angle_map
from tsfm_lens.viz.select import array, model_of, names, positions
from tsfm_lens.viz.sheet import blank
from tsfm_lens.viz.theme import CATEGORICAL, plain
from tsfm_lens.viz.weight_ranks import level_position, relative
from tsfm_lens.viz.words import listed, num

__all__ = ["embedding_spectra", "token_angle_map"]

EMBEDDING_RANKS = measurement(
    "embedding_ranks",
    theme="Activations",
    title="Ranks of embedded series",
    summary="how many directions embedded series use: signal families, own series, vocabulary; angles of tokens",
    description="Series are embedded as tokens of many dimensions, of which smooth ones use few. The same is shown for "
    "sinusoids, exponentials, white noise and zeros.",
    source="Flow of ranks, figures 2, 3 and 13",
    paper=("S0-F2", "S0-F3", "S0-F13"),
)


def read_embedding_ranks(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """State how many directions the families use, and which single signals differ beyond their intervals."""
    place = level_position(ds, epsilon)
    level, families = f"{float(ds['epsilon'].values[place]):g}", names(ds, "family")
    rank, full = array(ds, "epsilon_rank", "family", epsilon=place), np.asarray(ds["full"].values)
    valid = array(ds, "told", "family", epsilon=place) > 0
    counts = [f"{name} {int(rank[i])} of {int(full[i])}" for i, name in enumerate(families) if valid[i]]
    if not counts:
        return [f"At ε = {level} rounding may hide every rank."]
    out = [f"At ε = {level} embedded tokens use so many directions: {listed(counts)}."]
    low, high = (array(ds, f"signal_rank_{end}", "family", epsilon=place) for end in ("low", "high"))
    several = [i for i in np.flatnonzero(high > low) if valid[i]]
    if len(several) > 1:
        most = max(several, key=lambda i: low[i])
        others = [i for i in several if i != most]
        next_high = max(high[i] for i in others)
        out.append(
            f"A single signal of {families[most]} uses the most directions, {num(low[most])} to {num(high[most])}; "
            f"one of any other family at most {num(next_high)}."
            if low[most] > next_high
            else "Of the numbers of directions that single signals use, the intervals overlap."
        )
    return out


def read_token_angles(ds: xr.Dataset) -> list[str]:
    """State how far apart tokens lie, against random lines."""
    means = array(ds, "mean_angle", "family")
    angles = [f"{name} {num(means[i])}°" for i, name in enumerate(names(ds, "family")) if np.isfinite(means[i])]
    if not angles:
        return ["All tokens are zero, so they have no angles."]
    random = num(float(ds.attrs["random_angle"]))
    return [f"Mean angles between two tokens: {listed(angles)}; between random lines {random}°."]


@EMBEDDING_RANKS.figure(
    "Singular values of embedded families of signals.",
    variables=("singular_value", "full"),
    table=("epsilon_rank", "told", "signal_rank_estimate", "signal_rank_low", "signal_rank_high"),
    sentences=read_embedding_ranks,
)
def embedding_spectra(ds: xr.Dataset) -> go.Figure:
    """Draw relative singular values of embedded families of signals, and of the vocabulary.

    Args:
        ds: of kind "embedding_ranks".

    Returns:
        A line per family on a logarithmic axis.
    """
    values = relative(array(ds, "singular_value", "family", "mode"), array(ds, "rounding_floor", "family"))
    tokens = array(ds, "tokens", "family").astype(int)
    modes, canvas = np.arange(1, values.shape[1] + 1), blank(300)
    panel = canvas.panel()
    for place, (family, line) in enumerate(zip(names(ds, "family"), values, strict=True)):
        # a single direction is no line
        alone = int(np.isfinite(line).sum() == 1)
        hover = f"{plain(family)}, {tokens[place]} tokens, mode %{{x}}<br>%{{y:.3g}} of the largest"
        colour = CATEGORICAL[place % len(CATEGORICAL)]
        panel.line(modes, line, family, hover, colour=colour, width=1.8, dots=7.0 * alone)
    panel.y("singular value / largest", **log_axis(values))
    panel.x("mode")
    return canvas.dress(
        f"Spectra of series as {model_of(ds)} embeds them",
        "tokens before the first layer",
        "each spectrum relative to its largest value",
    )


@EMBEDDING_RANKS.figure(
    "Angles between embedded tokens, family by family.",
    variables=("angle",),
    table=("tokens", "full", "mean_angle", "stable_rank", "effective_rank", "participation_ratio", "rounding_floor"),
    sentences=read_token_angles,
)
def token_angle_map(ds: xr.Dataset, *, families: Sequence[str] | None = None) -> go.Figure:
    """Draw angles between embedded tokens, a panel per family: dark where two tokens lie on one line.

    Args:
        ds: of kind "embedding_ranks".
        families: to draw, all unless given.

    Returns:
        Heat maps from 0 to 90 degrees.
    """
    rows = positions(ds, "family", families)
    labels = [names(ds, "family")[place] for place in rows]
    grid = panel_grid([(label,) for label in labels], row_height=190)
    angles = array(ds, "angle", "family", "token", "other_token")[rows]
    for panel, values, label in zip(grid, angles, labels, strict=True):
        angle_map(panel, values, f"{plain(label)}<br>tokens %{{y}} and %{{x}}: %{{z:.1f}}°")
    title_axes(grid, "token", "token")
    grid.y(autorange="reversed")
    grid.colours(colour_scale("angle (degrees)", low=0.0, high=90.0, dark_low=True))
    return grid.dress(
        f"Angles between tokens that {model_of(ds)} embeds",
        "tokens before the first layer, as lines",
        f"dark: on one line; random lines lie {float(ds.attrs['random_angle']):.0f}° apart",
        "empty: tokens that are zero, or fewer of them",
    )
