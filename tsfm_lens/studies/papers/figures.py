"""Figures of the tsfm-lens paper by name, and the commands for those that no single run can draw."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens import probes, viz
from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError
from tsfm_lens.figures.entry import FigureFile, NamedFigure, long_run, within_pass
from tsfm_lens.hooks.component import Component
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.results import first_item
from tsfm_lens.studies.papers.items import ITEMS
from tsfm_lens.sweep.plan.orders import order_words
from tsfm_lens.sweep.plan.recipes import is_for, read_recipe, to_entries
from tsfm_lens.sweep.plan.variants import VariantPlanner
from tsfm_lens.viz.needs import TOKENS

MOST_WINDOWS = 12  # a series
MOST_SERIES = 4
HORIZON, TAIL = 512, 512  # steps of the paper's forecasts and of the drawn context
PATCH_ROWS = 128  # forecast tokens of the matrices in figure 21
SHARE_SHARP, SHARE_DIFFUSE = 6 / 144, 0.25  # of all heads, in figure 20D
INFORMED, RANDOM = "by stable rank", "at random"
_ON_LOGITS: dict[str, Any] = {"needs": (TOKENS,), "instead": "figure 'lens_forecast' shows what its layers hold"}
_ENTRIES: list[NamedFigure] = []
Files = list[FigureFile]
Drawing = Callable[..., Files]


def figure(
    name: str,
    title: str,
    computes: str,
    *renderers: str,
    paper: str,
    needs: tuple[Any, ...] = (),
    instead: str = "",
    **options: Any,
) -> Callable[[Drawing], Drawing]:
    """Register a drawing, called with these options; see :class:`tsfm_lens.figures.entry.NamedFigure`."""

    def register(draw: Drawing) -> Drawing:
        _ENTRIES.append(
            NamedFigure(name, title, computes, renderers, partial(draw, **options), paper, needs=needs, instead=instead)
        )
        return draw

    return register


def _file(shown: go.Figure, ds: xr.Dataset, note: str = "", suffix: str = "") -> FigureFile:
    return FigureFile(suffix, shown, (ds,), note)


# --- 1B to 1E and 22: along the depth of the model -----------------------------------------------------------


def windows(lens: Lens, series: SeriesBatch, horizon: int) -> tuple[SeriesBatch, np.ndarray]:
    """Cut contexts and truths from the whole length of every series, the last ones first, truths without overlap."""
    contexts, truths = [], []
    for skip in range(0, MOST_WINDOWS * horizon, horizon):
        whole = [i for i, length in enumerate(series.lengths) if length - skip >= 2 * horizon]
        if skip == 0 and len(whole) < len(series):
            raise InputError(f"a series of {min(series.lengths)} steps has no context beside {horizon} steps of truth")
        if not whole or (series.multivariate and len(whole) < len(series)):
            break
        selection = series.select(whole)
        context, truth = (selection.split(skip)[0] if skip else selection).split(horizon)
        ids, groups = (tuple(f"{name} −{skip}" for name in names) for names in (context.ids, context.groups))
        contexts.append(replace(context, ids=ids, groups=groups).tail(lens.adapter.context_length))
        truths.append(truth)
    return SeriesBatch.concat(contexts), np.concatenate(truths)


def _over_windows(run: Run) -> Run:
    """Return the run of windows of every series."""
    if run.full_batch is None:
        return run
    context, truth = windows(run.lens, run.full_batch, run.horizon)
    return run.lens.run(context, run.horizon, truth=truth, num_samples=run.num_samples, seed=run.seed)


@figure(
    "1B",
    "Scheme of the residual stream: who writes to it, and how much of the forecast.",
    "stream_shares: direct attribution of every attention, MLP and head",
    "stream_scheme",
    paper="a drawn scheme, without data",
)
def _scheme(run: Run) -> Files:
    ds = probes.stream_shares(run)
    return [_file(viz.stream_scheme(ds), ds)]


@figure(
    "1C",
    "Logits of every value at every forecast step, read from the residual stream after each layer.",
    "lens_logits on the first series",
    "lens_logit_map",
    paper="Chronos base on a chaotic system; token ids upwards, raw logits, colours symmetric in each panel",
    **_ON_LOGITS,
)
def _logits(run: Run) -> Files:
    ds = probes.lens_logits(first_item(run))
    return [_file(viz.lens_logit_map(ds), ds)]


@figure(
    "1D",
    "Entropy of the next value's distribution after each layer, a line per window, and their median.",
    "logit_lens over windows of every series",
    "layer_entropy",
    paper="Chronos base, 401 tasks of chaotic systems",
    **_ON_LOGITS,
)
def _entropy(run: Run) -> Files:
    ds = probes.logit_lens(_over_windows(run))
    note = f"{ds.sizes['series']} windows, at most {MOST_WINDOWS} a series, cut without overlap of their horizons."
    return [_file(viz.layer_entropy(ds), ds, note)]


@figure(
    "1E",
    "Entropic rank of the head outputs of each layer.",
    "entropic_rank over windows of every series",
    "entropic_rank_line",
    paper="Chronos base, cross-attention",
)
def _rank(run: Run) -> Files:
    run = _over_windows(run)
    ds = probes.entropic_rank(run)
    return [_file(viz.entropic_rank_line(ds), ds, f"{len(run.batch)} windows.")]


@figure(
    "22",
    "What each layer adds to the accuracy of the forecast read after it, a line per window, and their median.",
    "logit_lens over windows of every series, layer_gain",
    "layer_gain",
    paper="Chronos base, 117 windows of chaotic systems; one black line per window, the median in red",
)
def _gain(run: Run) -> Files:
    ds = probes.layer_gain(probes.logit_lens(_over_windows(run)))
    note = f"{ds.sizes['series']} windows; gains against the truth, negative is better."
    return [_file(viz.layer_gain(ds), ds, note)]


# --- 5, 20, 21 and 23: sharp, diffuse and induction heads ----------------------------------------------------


def _rolls_out(run: Run) -> bool:
    """Return whether roll-out maps go on beyond one pass."""
    return run.lens.adapter.rollout in ("tokens", "refeed")


def _counts(entropy: xr.Dataset) -> tuple[int, int]:
    """Count the sharp and diffuse heads that go: the paper's shares of all heads, at least two and one."""
    total = entropy["entropy"].size
    return max(2, round(SHARE_SHARP * total)), max(1, round(SHARE_DIFFUSE * total))


@figure(
    "5",
    "Roll-out maps of the sharpest (A) and the most diffuse heads (B), and forecasts without diffuse heads (C, D).",
    "autoregressive_attention on the first series, diffuse_heads, ablation_recipes",
    "autoregressive_attention_map",
    "recipe_forecasts",
    paper="Chronos base, cross-attention, 9 heads each, black at weight 0.1",
)
def _rollouts(run: Run) -> Files:
    item, steps = first_item(run), 2 * run.lens.adapter.longest_pass
    rolls = _rolls_out(item)
    attention_run = long_run(item if rolls else within_pass(item), steps, within_pass=not rolls)
    maps = probes.autoregressive_attention(attention_run)
    _, diffuse = _counts(maps)
    wide = item if run.batch.multivariate else run.select(list(range(min(2, len(run.batch)))))
    recipes = {f"{diffuse} most diffuse heads ablated": probes.diffuse_heads(maps, diffuse)}
    forecasts = probes.ablation_recipes(long_run(wide, attention_run.horizon).rolled_out(), recipes)
    return [
        _file(
            viz.autoregressive_attention_map(maps, heads="sharp"), maps, "The heads of lowest attention entropy.", "A"
        ),
        _file(
            viz.autoregressive_attention_map(maps, heads="diffuse"),
            maps,
            "The heads of highest attention entropy.",
            "B",
        ),
        _file(viz.recipe_forecasts(forecasts), forecasts, "Diffuse heads as in panel B.", "CD"),
    ]


@figure(
    "20",
    "Forecasts without the sharpest head, without several sharp heads, and without diffuse heads.",
    "head_entropy over one pass, sharp_heads, diffuse_heads, ablation_recipes along the whole roll-out",
    "recipe_forecasts",
    paper="Chronos base, 512 steps, 20 samples; one sharp head, six sharp heads (4 % of 144), diffuse heads",
)
def _sharp(run: Run) -> Files:
    few = run if run.batch.multivariate else run.select(list(range(min(MOST_SERIES, len(run.batch)))))
    entropy = probes.head_entropy(within_pass(few))
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
    words = ", ".join(f"{name} {ratio:.2f}" for name, ratio in zip(names, spread[order], strict=True))
    note = (
        "Rows by how much the original forecast moves against the last context steps (ratio of standard deviations: "
        f"{words}); near 0 it has fallen to its mean."
    )
    return [_file(viz.recipe_forecasts(ds, series=[str(name) for name in names[:MOST_SERIES]]), ds, note)]


@figure(
    "21",
    "The forecast with the patch that one head selects (A), and attention matrices of the first (B) and of a later "
    "layer (C) with the stable rank of every head.",
    "patch_attention on the first series",
    "selected_patch",
    "patch_attention_grid",
    paper="Chronos-Bolt small on the Lorenz system, context 2048, 8192 steps; layers 0 and 3, head 4 of layer 3",
)
def _patches(run: Run) -> Files:
    item = first_item(run)
    # a token model has a row of the matrix for every step, the others one for every pass
    steps_of_row = 1 if item.lens.adapter.readout == "token" else item.lens.adapter.longest_pass
    ds = probes.patch_attention(long_run(item, PATCH_ROWS * steps_of_row, within_pass=not _rolls_out(item)))
    first, later = (str(ds["layer"].values[layer]) for layer in (0, min(3, ds.sizes["layer"] - 1)))
    return [
        _file(viz.selected_patch(ds, layer=later), ds, suffix="A"),
        _file(viz.patch_attention_grid(ds, layer=first), ds, suffix="B"),
        _file(viz.patch_attention_grid(ds, layer=later), ds, suffix="C"),
    ]


@figure(
    "23",
    "Prefix-matching, copying and entropy of every head (A to C), and the overlap of induction and sharp heads "
    "over thresholds (D to F).",
    "induction_scores, head_entropy, induction_overlap",
    "induction_corner",
    "head_entropy_map",
    "induction_maps",
    "overlap_thresholds",
    paper="Chronos base, 32 random tokens repeated 4 times; thresholds 0.3 (prefix), 2 (copy), 0.38 (entropy)",
)
def _overlap(run: Run) -> Files:
    TOKENS.check(run.lens, "figure 23", "figure 'head_entropy_map' shows which of its heads are sharp")
    entropy = probes.head_entropy(run)
    induction = probes.induction_scores(run.lens, seed=run.seed)
    overlap = probes.induction_overlap(induction, entropy)
    return [
        _file(viz.induction_corner(overlap), overlap, suffix="A"),
        _file(viz.head_entropy_map(entropy), entropy, suffix="B"),
        _file(viz.induction_maps(induction), induction, suffix="C"),
        _file(viz.overlap_thresholds(overlap), overlap, suffix="DEF"),
    ]


# --- 6B, 6C and 12 to 15: heavy ablations --------------------------------------------------------------------


def recipe_components(lens: Lens, name: str, seed: int) -> dict[str, list[str]]:
    """List what a recipe takes from a model, as a sweep of the same recipe does, and as many heads at random."""
    entries = to_entries(read_recipe(name), VariantPlanner(lens, lens.model_id), random_seeds=(seed,), scale=True)
    words = {"recipes": INFORMED, "random": RANDOM}
    return {words[entry.family]: list(entry.spec.components) for entry in entries}


def _origin(lens: Lens, name: str) -> str:
    """Describe where a recipe's heads come from."""
    recipe, stack = read_recipe(name), lens.wiring.output_stack
    lists = recipe.lists
    assert lists is not None
    order = order_words(recipe.order)
    if is_for(recipe, lens):
        which = "the heads" if lists.heads is not None else f"the numbers of heads ({order})"
        return f"recipe {name}: {which} that the paper's authors released"
    return (
        f"recipe {name} scaled from {len(lists.kept)} layers of {lists.n_heads} heads to {stack.n_layers} of "
        f"{stack.n_heads}: the same shares of heads at the same depths, {order}"
    )


def _first(run: Run) -> Run:
    """Select the first series that a figure has room for, whole items."""
    rows: list[int] = []
    for group in dict.fromkeys(run.batch.groups):
        members = [i for i, label in enumerate(run.batch.groups) if label == group]
        if rows and len(rows) + len(members) > MOST_SERIES:
            break
        rows += members
    return run.select(rows)


@figure(
    "6B",
    "Long forecasts of the complete model.",
    "ablation_recipes, of which the original is drawn",
    "recipe_forecasts",
    paper="TimesFM 2.5; the last 512 of 2048 context steps drawn",
)
def _originals(run: Run) -> Files:
    few = long_run(_first(run), HORIZON)
    # one branch alone, so that the plain forecasts are computed in the same way as those of 6C
    stack = few.lens.wiring.output_stack
    component = Component(stack.name, 0, stack.rows(0)[-1].kind)
    ds = probes.ablation_recipes(few.rolled_out(), {"-": [component]}).isel(recipe=[0])
    return [_file(viz.recipe_forecasts(ds, context_steps=min(TAIL, 2 * few.horizon)), ds)]


@figure(
    "6C",
    "Long forecasts with the middle third of the layers at heads@1pp and two MLPs removed.",
    "ablation_recipes of the sweep recipe timesfm-28",
    "recipe_forecasts",
    paper="TimesFM 2.5, layers 7 to 13 at heads@1pp (27.5 % of heads), MLPs 10 and 11 removed",
    recipe="timesfm-28",
    original=False,
    sets=(INFORMED,),
)
@figure(
    "12",
    "As 6C with as many heads of each layer drawn at random.",
    "ablation_recipes of the sweep recipe timesfm-28, random_heads",
    "recipe_forecasts",
    paper="TimesFM 2.5, random heads at the counts of figure 6C",
    recipe="timesfm-28",
    sets=(RANDOM,),
)
@figure(
    "13",
    "Original forecasts, all layers ablated by stable rank, and as many heads at random.",
    "ablation_recipes of the sweep recipe timesfm-51, random_heads",
    "recipe_forecasts",
    paper="TimesFM 2.5, layers 7 to 13 at heads@1pp, all others at 1 + heads@1pp, MLPs 10 and 11 removed (51.25 % of "
    "heads)",
    recipe="timesfm-51",
    sets=(INFORMED, RANDOM),
)
@figure(
    "14",
    "Original forecasts, and those with a third of the layers at heads@1pp.",
    "ablation_recipes of the sweep recipe toto-29",
    "recipe_forecasts",
    paper="Toto, multivariate; layers 2, 9, 10 and 11 at heads@1pp (29.2 % of heads)",
    recipe="toto-29",
    sets=(INFORMED,),
)
@figure(
    "15",
    "Original forecasts, and those with nearly all layers at heads@1pp and most MLPs removed.",
    "ablation_recipes of the sweep recipe bolt-60",
    "recipe_forecasts",
    paper="Chronos-Bolt base, layers 0 to 10 at heads@1pp (59.7 % of heads), MLPs 1 to 9 removed",
    recipe="bolt-60",
    sets=(INFORMED,),
)
def _ablated(run: Run, *, recipe: str, sets: tuple[str, ...], original: bool = True) -> Files:
    few, lens = _first(run), run.lens
    recipes = {key: heads for key, heads in recipe_components(lens, recipe, few.seed).items() if key in sets}
    if not recipes:
        raise InputError(f"this figure draws heads at random, and recipe {recipe} takes none from {lens.model_id}")
    ds = probes.ablation_recipes(long_run(few, HORIZON).rolled_out(), recipes)
    ds.attrs["recipe"] = recipe
    panels = [str(name) for name in ds["recipe"].values][0 if original else 1 :]
    tail = min(TAIL, 2 * ds.sizes["step"])
    return [_file(viz.recipe_forecasts(ds, recipes=panels, context_steps=tail), ds, _origin(lens, recipe))]


ENTRIES = sorted(_ENTRIES, key=lambda entry: (int(re.sub(r"\D", "", entry.name)), entry.name))
ELSEWHERE: dict[str, str] = {}
"""Commands for figures that no single run can draw, by number."""
for _item in ITEMS:
    _number, _command = _item.id.removeprefix("S3-F"), f"`tsfm-lens reproduce {_item.id}`"
    if _item.sweep:
        _command += f", then `tsfm-lens sweep report {_item.id}.store`"
    else:
        _command = f"a sweep over layers (`tsfm-lens sweep`); {_command} has its numbers on one model"
    if _number != _item.id and (_item.sweep or _number in ("2", "8", "9")):
        _words = f"figure {_number} of the paper ({_item.title}) is drawn from a sweep of ablations"
        ELSEWHERE[_number] = f"{_words}: {_command}"
