"""Distance of structured matrices to the scoring form of every head: figure, sentences, measurement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, figure, frame, panels
from tsfm_lens.viz.findings import finding
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.places import Places, places_in
from tsfm_lens.viz.select import array, model_of, names, position
from tsfm_lens.viz.theme import BLUE, PALE, VERMILION, number, plain
from tsfm_lens.viz.words import count_of, listed, num

__all__ = ["scoring_errors"]


NULL_WORDS = {
    "rotated": "rotated bases",
    "shuffled": "shuffled features",
    "gaussian": "random weights",
}


@figure(
    "scoring_structure",
    "How near structured matrices of one size come to the heads' scoring forms.",
    variables=("error", "gain_low"),
)
def scoring_errors(
    ds: xr.Dataset, *, null: str = "rotated", budget: float | None = None
) -> go.Figure:
    """Draw the error of each structure for every head, hollow where it does not lie below the null's 95 % interval.

    Args:
        null, budget: "rotated", "shuffled" or "gaussian"; one of the result's, the largest unless given.

    Example:
        >>> fig = figures.scoring_errors(results["scoring_structure"])
        >>> fig.layout.meta["title"]
        'Structure of the scoring forms of chronos-nano'
    """
    at: dict[str, Any] = {
        "null": position(ds, "null", null),
        "budget": ds.sizes["budget"] - 1,
    }
    if budget is not None:
        at["budget"] = position(ds, "budget", str(float(budget)))
    places, structures = places_in(ds), names(ds, "structure")
    x = np.arange(len(places.names))
    grid = panel_grid(
        [_title(ds, place, at["budget"]) for place in range(len(structures))],
        row_height=170,
        most=2,
    )
    for place, panel in enumerate(grid):
        here = {"structure": place, "budget": at["budget"]}
        error = array(ds, "error", "component", **here)[places.order]
        verdict = finding(ds, "gain", "component", structure=place, **at)
        random = array(
            ds,
            "null_error",
            "component",
            "draw",
            null=position(ds, "null", "gaussian"),
            **here,
        )
        panel.partings(places.breaks, across=False)
        if verdict is not None:
            # the noise is drawn as the bars of the null, not as whiskers of the dots
            verdict = replace(verdict.at(places.order), floor=0.0)
            low, high = error + verdict.low, error + verdict.high
            ends = [
                f"{number(a)} to {number(b)}" for a, b in zip(low, high, strict=True)
            ]
            hover = f"%{{text}}<br>{NULL_WORDS[null]}: %{{customdata}}"
            words: dict[str, Any] = {
                "text": [plain(label) for label in places.labels],
                "customdata": ends,
                "textposition": "none",
            }
            name = f"{NULL_WORDS[null]}, 95 %"
            panel.bars(
                x, high - low, name, hover, colour=PALE, base=low, width=0.8, **words
            )
        ticks = {"symbol": "line-ew-open", "line": {"width": 1.5, "color": VERMILION}}
        labels: dict[str, Any] = {"text": [plain(label) for label in places.labels]}
        if null != "gaussian":
            middle = random.mean(-1)[places.order]
            hover = "%{text}<br>random weights: %{y:.3g}"
            panel.dots(
                x,
                middle,
                "random weights, mean",
                hover,
                colour=VERMILION,
                size=6,
                marker=ticks,
                **labels,
            )
        noise = None if verdict is None else verdict.without_range
        hover = "%{text}<br>error %{y:.3g}"
        panel.dots(
            x, error, "own basis", hover, colour=BLUE, size=5, noise=noise, **labels
        )
    title_axes(grid, "head", "error / norm of the form")
    grid.x(range=[-0.7, len(x) - 0.3], showgrid=False, ticks="", **_stacks(places))
    null_error = np.asarray(
        array(ds, "null_error", "null", "budget", "structure", "component", "draw")[
            :, at["budget"]
        ]
    )
    values = np.append(
        null_error[np.isfinite(null_error)],
        array(ds, "error", "budget", "structure", "component")[at["budget"]],
    )
    grid.y(range=[0, 1.08 * float(np.nanmax(np.append(values, 0.1)))])
    grid.fig.update_layout(barmode="overlay")
    size = f"numbers of rank {float(ds['budget'].values[at['budget']]):g} d_head"
    return grid.dress(
        f"Structure of the scoring forms of {model_of(ds)}",
        f"W_Q W_Kᵀ of each head, {size}",
    )


def _stacks(places: Places) -> dict[str, Any]:
    """Return ticks in the middle of each stack, with lines between their layers."""
    stacks = list(dict.fromkeys(places.stack))
    middles = [
        float(np.mean([i for i, stack in enumerate(places.stack) if stack == name]))
        for name in stacks
    ]
    lasts = [
        max(places.layer[i] for i, stack in enumerate(places.stack) if stack == name)
        for name in stacks
    ]
    words = [
        f"{name} layers 0–{last}".strip()
        for name, last in zip(stacks, lasts, strict=True)
    ]
    return {
        "tickvals": middles,
        "ticktext": [plain(word).replace(" ", "<br>", 1) for word in words],
        "tickangle": 0,
    }


def _title(ds: xr.Dataset, structure: int, budget: int) -> list[str]:
    """Return a structure with its ranks and blocks, where all heads have the same."""
    shapes = set(map(str, ds["shape"].isel(structure=structure, budget=budget).values))
    return [
        names(ds, "structure")[structure],
        shapes.pop() if len(shapes) == 1 else "sizes by stack",
    ]


def read_scoring_errors(ds: xr.Dataset, budget: int = -1) -> list[str]:
    """Describe the median error of each structure, and count the heads nearer to one than each of its nulls."""
    error = array(ds, "error", "structure", "component", budget=budget)
    if not np.isfinite(error).any():
        return ["All scoring forms are zero."]
    structures, components = names(ds, "structure"), names(ds, "component")
    share = f"{float(ds['budget'].values[budget]):g}"
    words = [
        f"{num(float(np.nanmedian(own)))} by {name}"
        for name, own in zip(structures, error, strict=True)
    ]
    out = [
        f"With the numbers of rank {share} d_head the median form is missed by {listed(words)}, of its norm."
    ]
    for place, null in enumerate(names(ds, "null")):
        stands = (
            array(
                ds,
                "gain_significant",
                "structure",
                "component",
                null=place,
                budget=budget,
            )
            > 0
        )
        gain = array(
            ds, "gain_size", "structure", "component", null=place, budget=budget
        )
        any_of, against = int(stands.any(0).sum()), NULL_WORDS[null]
        head = f"{count_of(any_of, len(components), 'heads')} {'is' if any_of < 2 else 'are'} nearer to a structure"
        if not any_of:
            out.append(f"{head} than {against} are by chance.")
            continue
        structure, first = np.unravel_index(
            int(np.argmax(np.where(stands, gain, -np.inf))), gain.shape
        )
        most = f"most {components[first]} to {structures[structure]}, by {num(float(gain[structure, first]))}"
        out.append("; ".join([f"{head} than {against} are by chance", most]) + ".")
    return out


def read_block_shares(ds: xr.Dataset) -> list[str]:
    """Describe the share of the forms in the blocks of each level."""
    share, null_share = (
        array(ds, "block_share", "level", "component"),
        array(
            ds,
            "null_block_share",
            "level",
            "component",
            null=names(ds, "null").index("rotated"),
        ),
    )
    shares = [
        f"{num(100 * float(np.nanmedian(own)))} % in {count} blocks (rotated {num(100 * float(np.nanmedian(other)))} %)"
        for count, own, other in zip(names(ds, "level"), share, null_share, strict=True)
        if int(count) > 1 and np.isfinite(own).any()
    ]
    return [f"Of the squared median form lie {listed(shares)}."] if shares else []


@panels("scoring_structure")
def _scoring_structure(ds: xr.Dataset) -> Iterator[FigurePanel]:
    table = frame(ds, "gain_size", "gain_low", "gain_high", "gain_significant")
    yield FigurePanel(
        scoring_errors(ds), table, [*read_scoring_errors(ds), *read_block_shares(ds)]
    )
    errors = frame(ds, "error", "numbers", "shape")
    yield FigurePanel(scoring_errors(ds, null="shuffled"), errors, [])
