"""Chapters on the results of sweeps: what ablations cost on whole benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.catalogue import Plate
from tsfm_lens.catalogue.words import listed
from tsfm_lens.errors import InputError
from tsfm_lens.report import readings_sweep as read
from tsfm_lens.report.chapter import Chapter
from tsfm_lens.report.sweep_tables import tidy
from tsfm_lens.viz import (
    component_errors,
    dataset_heatmap,
    head_curves,
    heads_at_layers,
    layer_distances,
    range_curves,
    recipe_changes,
    recipe_table,
    selection_comparison,
)
from tsfm_lens.viz.sweep_entries import PARTS, counted


def _if_any(draw: Callable[[], go.Figure]) -> go.Figure | None:
    """A figure, or None where the sweep has nothing for it."""
    try:
        return draw()
    except InputError as error:
        if "no finished entry" not in str(error):
            raise
        return None


def _effects(ds: xr.Dataset) -> Iterator[Plate]:
    table = tidy(ds)
    for part in PARTS:
        fig = _if_any(lambda part=part: layer_distances(ds, part=part))  # type: ignore[misc]
        if fig is not None:
            own = table[table["family"].isin(("layers", "groups")) & (table["part"] == part)]
            yield Plate(fig, own, read.read_distances(ds, part), f"layer_distances-{part}")
    if (fig := _if_any(lambda: component_errors(ds))) is not None:
        own = table[table["family"] == "layers"]
        yield Plate(fig, own, read.read_components(ds), "component_errors")
    if (fig := _if_any(lambda: range_curves(ds))) is not None:
        yield Plate(fig, table[table["family"] == "ranges"], read.read_ranges(ds), "range_curves")


def _curves(ds: xr.Dataset) -> Iterator[Plate]:
    table = tidy(ds)
    models = list(dict.fromkeys(table["model"]))
    if len(models) > 1 and (fig := _if_any(lambda: head_curves(ds, by="model"))) is not None:
        words = [sentence for model in models for sentence in read.read_curves(ds, model)[:1]]
        yield Plate(fig, table, words, "head_curves")
    for model in models:
        fig = _if_any(lambda model=model: head_curves(ds, model=model))  # type: ignore[misc]
        if fig is not None:
            own = table[table["model"] == model]
            yield Plate(fig, own, read.read_curves(ds, model), f"head_curves-{model}")


def _heads_at(ds: xr.Dataset) -> Iterator[Plate]:
    if (fig := _if_any(lambda: heads_at_layers(ds))) is not None:
        yield Plate(fig, tidy(ds), read.read_heads_at(ds), "heads_at_layers")


def _datasets(ds: xr.Dataset) -> Iterator[Plate]:
    table = tidy(ds)
    for model in dict.fromkeys(str(each) for each in ds["model"].values):
        own = table[table["model"] == model]
        yield Plate(dataset_heatmap(ds, model=model), own, read.read_datasets(ds, model), f"dataset_heatmap-{model}")


def _recipes(ds: xr.Dataset) -> Iterator[Plate]:
    table = tidy(ds)
    if (fig := _if_any(lambda: recipe_table(ds))) is not None:
        yield Plate(fig, table, read.read_recipes(ds), "recipe_table")
        words = ["The same numbers as dots: what lies left of the line became better."]
        yield Plate(recipe_changes(ds), table, words, "recipe_changes")


def _selection(ds: xr.Dataset) -> Iterator[Plate]:
    if (fig := _if_any(lambda: selection_comparison(ds))) is not None:
        yield Plate(fig, tidy(ds), read.read_selection(ds), "selection_comparison")


def _subject(ds: xr.Dataset) -> str:
    """Which models on how many datasets and windows."""
    models = list(dict.fromkeys(str(model) for model in ds["model"].values))
    count = int(ds.attrs.get("n_datasets", ds.sizes.get("dataset", 0)))
    windows = f", {counted(int(ds.attrs['n_windows']), 'window')}" if "n_windows" in ds.attrs else ""
    datasets = f" on {counted(count, 'dataset')}" if count else ""
    return f"{listed(models)}{datasets}{windows}"


CHAPTERS = {
    "sweep_effects": Chapter(
        "Layers and their parts across datasets",
        "Whole layers, only their heads, or only their MLPs are ablated, one by one, in groups, and over growing "
        "ranges; every change is against the unablated model on the same windows.",
        _effects,
        _subject,
    ),
    "sweep_curves": Chapter(
        "How many heads of a layer can go",
        "The heads of one layer are ablated one after the other, in an order taken from the weights or from "
        "activations, in its reverse, or at random.",
        _curves,
        _subject,
    ),
    "sweep_heads_at": Chapter(
        "Heads that each layer must keep",
        "The fewest heads that a layer keeps while the error rises by less than the tolerance (heads@1pp for 1 %), all "
        "its others ablated at once.",
        _heads_at,
        _subject,
    ),
    "sweep_datasets": Chapter(
        "Which datasets bear the loss of heads",
        "The same for every dataset by itself, in the layer that needs its heads most and in the one that needs them "
        "least.",
        _datasets,
        _subject,
    ),
    "sweep_recipes": Chapter(
        "Heavy ablations",
        "Many heads and MLPs in several layers are ablated together, as a recipe lists them.",
        _recipes,
        _subject,
    ),
    "sweep_selection": Chapter(
        "Informed and random choices",
        "The same recipes with as many heads of each layer drawn at random: if the choice did not matter, both would "
        "cost the same.",
        _selection,
        _subject,
    ),
}
