"""Figures of the tsfm-lens paper by name, and the commands for those that no single run can draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens import probes, viz
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.needs import NEEDS
from tsfm_lens.core.registry import (
    FigurePanel,
    composed_figure,
    declarations,
)
from tsfm_lens.data import SeriesBatch
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

MOST_WINDOWS = 12  # a series
MOST_SERIES = 4
HORIZON = 512  # steps of the paper's forecasts
PATCH_ROWS = 128  # forecast tokens of the matrices in figure 21
SHARE_SHARP, SHARE_DIFFUSE = 6 / 144, 0.25  # of all heads, in figure 20D
_ROLLED_OUT = (
    "tokens",
    "refeed",
)  # kinds of rollout along which maps go on beyond one pass
_FILE: dict[str, dict[str, Any]] = declarations(
    Path(__file__).with_name("figures.yaml")
)
_SHARES = {
    "sweep_sharp_given_induction": "D",
    "sweep_induction_given_sharp": "E",
    "sweep_proportion_induction": "F",
}
"""Panels of figure 23 by the share of heads that they map."""
Files = list[FigurePanel]
Drawing = Callable[..., Files]


def figure(name: str) -> Callable[[Drawing], Drawing]:
    """Register a drawing as a figure of ``figures.yaml``."""
    facts = dict(_FILE[name])
    if facts.pop("on_logits", False):
        facts |= {"needs": "tokens", "instead": "lens_forecast"}

    def register(draw: Drawing) -> Drawing:
        composed_figure(name, **facts)(draw)
        return draw

    return register


def long_run(run: Run, paper: int, *, within_pass: bool = False) -> Run:
    """Extend the run to a long horizon: the caller's choice, else the paper's as far as the series allow."""
    if run.explicit_horizon:
        return run
    adapter = run.lens.adapter
    steps = min(paper, adapter.longest_pass) if within_pass else paper
    if run.full_batch is not None:
        shortest = min(run.full_batch.lengths)
        longest = max(shortest - adapter.context_length, shortest // 2)
        steps = max(1, min(steps, longest))
    return run.at(steps)


def _file(
    shown: go.Figure, ds: xr.Dataset, note: str = "", suffix: str = ""
) -> FigurePanel:
    return FigurePanel(shown, name=suffix, results=(ds,), note=note)


# --- 1B to 1E and 22: along the depth of the model -----------------------------------------------------------


def windows(
    lens: Lens, series: SeriesBatch, horizon: int
) -> tuple[SeriesBatch, np.ndarray]:
    """Cut contexts and truths from the whole length of every series, the last ones first, truths without overlap."""
    contexts, truths = [], []
    for skip in range(0, MOST_WINDOWS * horizon, horizon):
        whole = [
            i for i, length in enumerate(series.lengths) if length - skip >= 2 * horizon
        ]
        if skip == 0 and len(whole) < len(series):
            raise InputError(
                f"a series of {min(series.lengths)} steps has no context beside {horizon} steps of truth"
            )
        if not whole or (series.multivariate and len(whole) < len(series)):
            break
        selection = series.select(whole)
        context, truth = (selection.split(skip)[0] if skip else selection).split(
            horizon
        )
        ids, groups = (
            tuple(f"{name} −{skip}" for name in names)
            for names in (context.ids, context.groups)
        )
        contexts.append(
            replace(context, ids=ids, groups=groups).tail(lens.adapter.context_length)
        )
        truths.append(truth)
    return SeriesBatch.concat(contexts), np.concatenate(truths)


def _over_windows(run: Run) -> Run:
    """Return the run of windows of every series."""
    if run.full_batch is None:
        return run
    context, truth = windows(run.lens, run.full_batch, run.horizon)
    return run.lens.run(
        context, run.horizon, truth=truth, num_samples=run.num_samples, seed=run.seed
    )


@figure("1B")
def _scheme(run: Run) -> Files:
    ds = probes.stream_shares(run)
    return [_file(viz.plot(ds), ds)]


@figure("1C")
def _logits(run: Run) -> Files:
    ds = probes.logit_lens(run.item(0), logits=True)
    return [_file(viz.lens_logit_map(ds), ds)]


@figure("1D")
def _entropy(run: Run) -> Files:
    ds = probes.logit_lens(_over_windows(run))
    note = f"{ds.sizes['series']} windows, at most {MOST_WINDOWS} a series, cut without overlap of their horizons."
    return [_file(viz.plot(ds, "entropy"), ds, note)]


@figure("1E")
def _rank(run: Run) -> Files:
    run = _over_windows(run)
    ds = probes.entropic_rank(run)
    return [_file(viz.plot(ds), ds, f"{len(run.batch)} windows.")]


@figure("22")
def _gain(run: Run) -> Files:
    ds = probes.layer_gain(probes.logit_lens(_over_windows(run)))
    note = f"{ds.sizes['series']} windows; gains against the truth, negative is better."
    return [_file(viz.plot(ds), ds, note)]


# --- 5, 20, 21 and 23: sharp, diffuse and induction heads ----------------------------------------------------


def _counts(entropy: xr.Dataset) -> tuple[int, int]:
    """Count the sharp and diffuse heads that go: the paper's shares of all heads, at least two and one."""
    total = entropy["entropy"].size
    return max(2, round(SHARE_SHARP * total)), max(1, round(SHARE_DIFFUSE * total))


@figure("5")
def _rollouts(run: Run) -> Files:
    item, steps = run.item(0), 2 * run.lens.adapter.longest_pass
    rolls = item.lens.adapter.rollout in _ROLLED_OUT
    attention_run = long_run(
        item if rolls else item.within_pass(), steps, within_pass=not rolls
    )
    maps = probes.autoregressive_attention(attention_run)
    _, diffuse = _counts(maps)
    wide = (
        item
        if run.batch.multivariate
        else run.select(list(range(min(2, len(run.batch)))))
    )
    recipes = {
        f"{diffuse} most diffuse heads ablated": probes.diffuse_heads(maps, diffuse)
    }
    forecasts = probes.ablation_recipes(
        long_run(wide, attention_run.horizon).rolled_out(), recipes
    )
    files = []
    for kind, end, part in (("sharp", "lowest", "A"), ("diffuse", "highest", "B")):
        panels = viz.autoregressive_attention_map(maps, heads=kind)
        files.append(
            _file(panels, maps, f"The heads of {end} attention entropy.", part)
        )
    for place, part in zip(range(forecasts.sizes["series"]), "CD", strict=False):
        drawn = viz.recipe_forecasts(forecasts, series=place)
        files.append(_file(drawn, forecasts, "Diffuse heads as in panel B.", part))
    return files


@figure("20")
def _sharp(run: Run) -> Files:
    few = (
        run
        if run.batch.multivariate
        else run.select(list(range(min(MOST_SERIES, len(run.batch)))))
    )
    entropy = probes.head_entropy(few.within_pass())
    sharp, diffuse = _counts(entropy)
    recipes = {
        "sharpest head": probes.sharp_heads(entropy, 1),
        f"{sharp} sharpest heads": probes.sharp_heads(entropy, sharp),
        f"{diffuse} most diffuse heads": probes.diffuse_heads(entropy, diffuse),
    }
    ds = probes.ablation_recipes(long_run(few, HORIZON).rolled_out(), recipes)
    # degenerate originals, which hardly move, come last
    spread = ds["spread_ratio"].sel(recipe="original").values
    order = np.argsort(-spread, kind="stable")
    names = ds["series"].values[order]
    words = ", ".join(
        f"{name} {ratio:.2f}" for name, ratio in zip(names, spread[order], strict=True)
    )
    note = (
        "Rows by how much the original forecast moves against the last context steps (ratio of standard deviations: "
        f"{words}); near 0 it has fallen to its mean."
    )
    return [
        _file(viz.recipe_forecasts(ds, series=str(name)), ds, note, letter)
        for name, letter in zip(names[:MOST_SERIES], ascii_uppercase, strict=False)
    ]


@figure("21")
def _patches(run: Run) -> Files:
    item = run.item(0)
    # a token model has a row of the matrix for every step, the others one for every pass
    steps_of_row = (
        1 if item.lens.adapter.readout == "token" else item.lens.adapter.longest_pass
    )
    ds = probes.patch_attention(
        long_run(
            item,
            PATCH_ROWS * steps_of_row,
            within_pass=item.lens.adapter.rollout not in _ROLLED_OUT,
        )
    )
    first, later = (
        str(ds["layer"].values[layer]) for layer in (0, min(3, ds.sizes["layer"] - 1))
    )
    return [
        _file(viz.selected_patch(ds, layer=later), ds, suffix="A"),
        _file(viz.patch_attention_grid(ds, layer=first), ds, suffix="B"),
        _file(viz.patch_attention_grid(ds, layer=later), ds, suffix="C"),
    ]


@figure("23")
def _overlap(run: Run) -> Files:
    NEEDS["tokens"].check(
        run.lens,
        "figure 23",
        "figure 'head_entropy_map' shows which of its heads are sharp",
    )
    entropy = probes.head_entropy(run)
    induction = probes.induction_scores(run.lens, seed=run.seed)
    overlap = probes.induction_overlap(induction, entropy)
    return [
        _file(viz.induction_corner(overlap), overlap, suffix="A"),
        _file(viz.head_entropy_map(entropy), entropy, suffix="B"),
        _file(viz.induction_maps(induction), induction, suffix="C"),
        *(
            _file(viz.plot(overlap, name), overlap, suffix=suffix)
            for name, suffix in _SHARES.items()
        ),
    ]
