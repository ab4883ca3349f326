"""Chapters on the results of sweeps: what ablations cost on whole benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd
import plotly.graph_objects as go

from tsfm_lens.catalogue import Plate
from tsfm_lens.catalogue.words import listed
from tsfm_lens.errors import InputError
from tsfm_lens.report import readings_sweep as read
from tsfm_lens.report.chapter import Chapter
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
from tsfm_lens.viz.sweep_entries import PARTS, counted, models_in


def _plate(
    name: str, table: pd.DataFrame, draw: Callable[[], go.Figure], words: Callable[[], list[str]]
) -> Iterator[Plate]:
    """A figure with its table and reading, where the sweep has something for it."""
    try:
        figure = draw()
    except InputError as error:
        if "no finished entry" not in str(error):
            raise
        return
    yield Plate(figure, table, words(), name)


def _effects(table: pd.DataFrame) -> Iterator[Plate]:
    layers, ranges = (table[table["family"] == family] for family in ("layers", "ranges"))
    for part in PARTS:
        own = table[table["family"].isin(("layers", "groups")) & (table["part"] == part)]
        name = f"layer_distances-{part}"
        yield from _plate(
            name,
            own,
            lambda part=part: layer_distances(table, part=part),  # type: ignore[misc]
            lambda part=part: read.read_distances(table, part),  # type: ignore[misc]
        )
    yield from _plate("component_errors", layers, lambda: component_errors(table), lambda: read.read_components(table))
    yield from _plate("range_curves", ranges, lambda: range_curves(table), lambda: read.read_ranges(table))


def _curves(table: pd.DataFrame) -> Iterator[Plate]:
    models = models_in(table)
    if len(models) > 1:
        yield from _plate(
            "head_curves",
            table,
            lambda: head_curves(table, by="model"),
            lambda: [sentence for model in models for sentence in read.read_curves(table, model)[:1]],
        )
    for model in models:
        yield from _plate(
            f"head_curves-{model}",
            table[table["model"] == model],
            lambda model=model: head_curves(table, model=model),  # type: ignore[misc]
            lambda model=model: read.read_curves(table, model),  # type: ignore[misc]
        )


def _heads_at(table: pd.DataFrame) -> Iterator[Plate]:
    yield from _plate("heads_at_layers", table, lambda: heads_at_layers(table), lambda: read.read_heads_at(table))


def _datasets(table: pd.DataFrame) -> Iterator[Plate]:
    for model in models_in(table):
        own = table[table["model"] == model]
        yield Plate(dataset_heatmap(own), own, read.read_datasets(own), f"dataset_heatmap-{model}")


def _recipes(table: pd.DataFrame) -> Iterator[Plate]:
    yield from _plate("recipe_table", table, lambda: recipe_table(table), lambda: read.read_recipes(table))
    words = ["The same numbers as dots: what lies left of the line became better."]
    yield from _plate("recipe_changes", table, lambda: recipe_changes(table), lambda: words)


def _selection(table: pd.DataFrame) -> Iterator[Plate]:
    yield from _plate(
        "selection_comparison", table, lambda: selection_comparison(table), lambda: read.read_selection(table)
    )


def _subject(table: pd.DataFrame) -> str:
    """Which models on how many datasets and windows."""
    count = int(table.attrs.get("n_datasets", table["dataset"].nunique() if "dataset" in table else 0))
    windows = f", {counted(int(table.attrs['n_windows']), 'window')}" if "n_windows" in table.attrs else ""
    datasets = f" on {counted(count, 'dataset')}" if count else ""
    return f"{listed(models_in(table))}{datasets}{windows}"


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
        "The fewest heads that a layer keeps while the error rises by less than the tolerance (heads@1pp for 1 %), all "
        "its others ablated at once.",
        _heads_at,
        _subject,
    ),
    "sweep_datasets": Chapter(
        "Which datasets bear the loss of heads",
        "The same for every dataset by itself, in the layer that keeps most heads and in the one that keeps fewest; of "
        "layers that keep as many, the one where losing all of them costs most, or least.",
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
