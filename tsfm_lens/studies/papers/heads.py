"""Figures of the paper on sharp, diffuse and induction heads: 5, 20, 21 and 23."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens import probes, viz
from tsfm_lens.figures.entry import FigureFile as Plate
from tsfm_lens.figures.entry import NamedFigure as Entry
from tsfm_lens.figures.entry import long_run, within_pass
from tsfm_lens.models.run import Run
from tsfm_lens.results import first_item
from tsfm_lens.viz.needs import TOKENS

SHARE_SHARP = 6 / 144  # of all heads, in figure 20D
SHARE_DIFFUSE = 0.25
ROLLOUT = 512  # steps
ROWS = 128  # forecast tokens of the matrices in figure 21
SHOWN = 4


def _attention_run(run: Run, paper: int) -> Run:
    """Return one pass where the model's attention cannot be followed beyond, else the paper's horizon."""
    return long_run(run, paper, within_pass=not _rolls_out(run))


def _rolls_out(run: Run) -> bool:
    """Return whether roll-out maps go on beyond one pass."""
    return run.lens.adapter.rollout in ("tokens", "refeed")


def _counts(entropy: xr.Dataset) -> tuple[int, int]:
    """Count the sharp and diffuse heads that go: the paper's shares of all heads, at least two and one."""
    total = entropy["entropy"].size
    return max(2, round(SHARE_SHARP * total)), max(1, round(SHARE_DIFFUSE * total))


def _rollouts(run: Run) -> list[Plate]:
    item = first_item(run)
    attention_run = _attention_run(item if _rolls_out(item) else within_pass(item), 2 * item.lens.adapter.longest_pass)
    maps = probes.rollout_maps(attention_run)
    _, diffuse = _counts(maps)
    wide = item if run.batch.multivariate else run.select(list(range(min(2, len(run.batch)))))
    recipes = {f"{diffuse} most diffuse heads ablated": probes.diffuse_heads(maps, diffuse)}
    forecasts = probes.ablation_recipes(long_run(wide, attention_run.horizon).rolled_out(), recipes)
    return [
        Plate("A", viz.rollout_panels(maps, heads="sharp"), (maps,), "The heads of lowest attention entropy."),
        Plate("B", viz.rollout_panels(maps, heads="diffuse"), (maps,), "The heads of highest attention entropy."),
        Plate("CD", viz.recipe_forecasts(forecasts), (forecasts,), "Diffuse heads as in panel B."),
    ]


def _sharp(run: Run) -> list[Plate]:
    few = run if run.batch.multivariate else run.select(list(range(min(SHOWN, len(run.batch)))))
    entropy = probes.head_entropy(within_pass(few))
    sharp, diffuse = _counts(entropy)
    recipes = {
        "sharpest head": probes.sharp_heads(entropy, 1),
        f"{sharp} sharpest heads": probes.sharp_heads(entropy, sharp),
        f"{diffuse} most diffuse heads": probes.diffuse_heads(entropy, diffuse),
    }
    ds = probes.ablation_recipes(long_run(few, ROLLOUT).rolled_out(), recipes)
    # degenerate originals, which hardly move, come last
    spread = ds["spread_ratio"].sel(recipe="original").values
    order = [str(ds["series"].values[i]) for i in np.argsort(-spread, kind="stable")]
    words = ", ".join(f"{ds['series'].values[i]} {spread[i]:.2f}" for i in np.argsort(-spread, kind="stable"))
    note = (
        "Rows by how much the original forecast moves against the last context steps (ratio of standard deviations: "
        f"{words}); near 0 it has fallen to its mean."
    )
    return [Plate("", viz.recipe_forecasts(ds, series=order[:SHOWN]), (ds,), note)]


def _patches(run: Run) -> list[Plate]:
    item = first_item(run)
    # a token model has a row of the matrix for every step, the others one for every pass
    steps_of_row = 1 if item.lens.adapter.readout == "token" else item.lens.adapter.longest_pass
    ds = probes.patch_attention(_attention_run(item, ROWS * steps_of_row))
    layer = min(3, ds.sizes["layer"] - 1)
    return [
        Plate("A", viz.selected_patch(ds, layer=str(ds["layer"].values[layer])), (ds,)),
        Plate("B", viz.patch_attention_grid(ds, layer=str(ds["layer"].values[0])), (ds,)),
        Plate("C", viz.patch_attention_grid(ds, layer=str(ds["layer"].values[layer])), (ds,)),
    ]


def _overlap(run: Run) -> list[Plate]:
    TOKENS.check(run.lens, "figure 23", "figure 'head_entropy_map' shows which of its heads are sharp")
    entropy = probes.head_entropy(run)
    induction = probes.repeated_tokens(run.lens, seed=run.seed)
    overlap = probes.induction_overlap(induction, entropy)
    return [
        Plate("A", viz.induction_corner(overlap), (overlap,)),
        Plate("B", viz.head_entropy_map(entropy), (entropy,)),
        Plate("C", viz.induction_maps(induction), (induction,)),
        Plate("DEF", viz.overlap_thresholds(overlap), (overlap,)),
    ]


ENTRIES = (
    Entry(
        "5",
        "Roll-out maps of the sharpest (A) and the most diffuse heads (B), and forecasts without diffuse heads (C, D).",
        "rollout_maps on the first series, diffuse_heads, ablation_recipes",
        ("rollout_panels", "recipe_forecasts"),
        _rollouts,
        "Chronos base, cross-attention, 9 heads each, black at weight 0.1",
    ),
    Entry(
        "20",
        "Forecasts without the sharpest head, without several sharp heads, and without diffuse heads.",
        "head_entropy over one pass, sharp_heads, diffuse_heads, ablation_recipes along the whole roll-out",
        ("recipe_forecasts",),
        _sharp,
        "Chronos base, 512 steps, 20 samples; one sharp head, six sharp heads (4 % of 144), diffuse heads",
    ),
    Entry(
        "21",
        "The forecast with the patch that one head selects (A), and attention matrices of the first (B) and of a later "
        "layer (C) with the stable rank of every head.",
        "patch_attention on the first series",
        ("selected_patch", "patch_attention_grid"),
        _patches,
        "Chronos-Bolt small on the Lorenz system, context 2048, 8192 steps; layers 0 and 3, head 4 of layer 3",
    ),
    Entry(
        "23",
        "Prefix-matching, copying and entropy of every head (A to C), and the overlap of induction and sharp heads "
        "over thresholds (D to F).",
        "repeated_tokens, head_entropy, induction_overlap",
        ("induction_corner", "head_entropy_map", "induction_maps", "overlap_thresholds"),
        _overlap,
        "Chronos base, 32 random tokens repeated 4 times; thresholds 0.3 (prefix), 2 (copy), 0.38 (entropy)",
    ),
)
