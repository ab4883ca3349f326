"""Chapters on the results of sweeps: what ablations cost on whole benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pandas as pd
import plotly.graph_objects as go

from tsfm_lens.catalogue import sweep_readings as read
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.words import listed
from tsfm_lens.errors import InputError
from tsfm_lens.viz import (
    component_errors,
    dataset_heatmap,
    head_changes,
    head_curves,
    heads_at_layers,
    layer_distances,
    range_curves,
    recipe_changes,
    recipe_table,
    selection_comparison,
)
from tsfm_lens.viz.sweep_entries import PARTS, counted, models_in

Draw = Callable[[pd.DataFrame], go.Figure]
Read = Callable[[pd.DataFrame], list[str]]


def _plate(name: str, table: pd.DataFrame, draw: Draw, words: Read) -> Iterator[Plate]:
    """Yield a figure of a table with its reading, where the sweep has something for it."""
    try:
        figure = draw(table)
    except InputError as error:
        if "no finished entry" not in str(error):
            raise
        return
    yield Plate(figure, table, words(table), name)


def _effects(table: pd.DataFrame) -> Iterator[Plate]:
    for part in PARTS:
        layers = table[table["family"].isin(("layers", "groups")) & (table["part"] == part)]
        draw, words = partial(layer_distances, part=part), partial(read.read_distances, part=part)
        yield from _plate(f"layer_distances-{part}", layers, draw, words)
    yield from _plate("component_errors", table[table["family"] == "layers"], component_errors, read.read_components)
    yield from _plate("range_curves", table[table["family"] == "ranges"], range_curves, read.read_ranges)


def _heads(table: pd.DataFrame) -> Iterator[Plate]:
    yield from _plate("head_changes", table, head_changes, read.read_heads)


def _curves(table: pd.DataFrame) -> Iterator[Plate]:
    by_model = {model: table[table["model"] == model] for model in models_in(table)}
    if len(by_model) > 1:
        words = [sentence for curves in by_model.values() for sentence in read.read_curves(curves)[:1]]
        yield from _plate("head_curves", table, partial(head_curves, by="model"), lambda _: words)
    for model, curves in by_model.items():
        yield from _plate(f"head_curves-{model}", curves, head_curves, read.read_curves)


def _heads_at(table: pd.DataFrame) -> Iterator[Plate]:
    yield from _plate("heads_at_layers", table, heads_at_layers, read.read_heads_at)


def _datasets(table: pd.DataFrame) -> Iterator[Plate]:
    for model in models_in(table):
        of_model = table[table["model"] == model]
        yield from _plate(f"dataset_heatmap-{model}", of_model, dataset_heatmap, read.read_datasets)


def _recipes(table: pd.DataFrame) -> Iterator[Plate]:
    yield from _plate("recipe_table", table, recipe_table, read.read_recipes)
    words = ["The same numbers as dots: what lies left of the line became better."]
    yield from _plate("recipe_changes", table, recipe_changes, lambda _: words)


def _selection(table: pd.DataFrame) -> Iterator[Plate]:
    yield from _plate("selection_comparison", table, selection_comparison, read.read_selection)


def _subject(table: pd.DataFrame) -> str:
    """Name the models, with the numbers of datasets and windows."""
    count = int(table.attrs.get("n_datasets", table["dataset"].nunique() if "dataset" in table else 0))
    windows = f", {counted(int(table.attrs['n_windows']), 'window')}" if "n_windows" in table.attrs else ""
    datasets = f" on {counted(count, 'dataset')}" if count else ""
    return f"{listed(models_in(table))}{datasets}{windows}"


MEASUREMENTS = (
    Measurement(
        kind="sweep_effects",
        theme="Sweeps",
        about="layers, groups and ranges of layers, and their parts, across datasets",
        heading="Layers and their parts across datasets",
        guide="Whole layers, only their heads, or only their MLPs are ablated, one by one, in groups, and over growing "
        "ranges; every change is against the unablated model on the same windows.",
        compute=None,
        plates=_effects,
        figures=(
            Figure("layer_distances", "Distance of the forecast without layers and groups of layers."),
            Figure("component_errors", "Error without the MLP, the heads, or both of the most ablatable layer."),
            Figure("range_curves", "Error over growing ranges of layers."),
        ),
        source="tsfm-lens, figures 2 to 4, 8 and 9",
        paper=("S3-F3", "S3-F4"),
        subject=_subject,
    ),
    Measurement(
        kind="sweep_heads",
        theme="Sweeps",
        about="error without each head by itself, across datasets",
        heading="Heads one by one",
        guide="Every head is ablated by itself, all else in place. The interval says how far its change would vary "
        "over datasets and series like these. An open dot may be noise, also where it is far from 0: of many heads one "
        "is the largest by chance alone, and the correction is for how many were looked at.",
        compute=None,
        plates=_heads,
        figures=(Figure("head_changes", "Error without each head by itself, with intervals."),),
        source="tsfm-lens, section 5",
        paper=(),
        subject=_subject,
    ),
    Measurement(
        kind="sweep_curves",
        theme="Sweeps",
        about="error over the share of heads ablated, by order",
        heading="How many heads of a layer can go",
        guide="The heads of one layer are ablated one after the other, in an order taken from the weights or from "
        "activations, in its reverse, or at random.",
        compute=None,
        plates=_curves,
        figures=(Figure("head_curves", "Error over the share of heads ablated, by order."),),
        source="tsfm-lens, figures 7 and 10",
        paper=("S3-F7", "S3-F10"),
        subject=_subject,
    ),
    Measurement(
        kind="sweep_heads_at",
        theme="Sweeps",
        about="heads that each layer must keep (heads@1pp)",
        heading="Heads that each layer must keep",
        guide="The fewest heads that a layer keeps while the error rises by less than the tolerance (heads@1pp for 1 "
        "%), all its others ablated at once.",
        compute=None,
        plates=_heads_at,
        figures=(Figure("heads_at_layers", "Heads that each layer must keep."),),
        source="tsfm-lens, definition 5.2, figures 6 and 11",
        paper=("S3-F11",),
        subject=_subject,
    ),
    Measurement(
        kind="sweep_datasets",
        theme="Sweeps",
        about="error on every dataset over heads ablated",
        heading="Which datasets bear the loss of heads",
        guide="The same for every dataset by itself, in the layer that keeps most heads and in the one that keeps "
        "fewest; of layers that keep as many, the one where losing all of them costs most, or least.",
        compute=None,
        plates=_datasets,
        figures=(Figure("dataset_heatmap", "Error on every dataset over heads ablated."),),
        source="tsfm-lens, figures 16 to 19",
        paper=("S3-F16", "S3-F17", "S3-F18", "S3-F19"),
        subject=_subject,
    ),
    Measurement(
        kind="sweep_recipes",
        theme="Sweeps",
        about="heavy ablations on every metric",
        heading="Heavy ablations",
        guide="Many heads and MLPs in several layers are ablated together, as a recipe lists them.",
        compute=None,
        plates=_recipes,
        figures=(
            Figure("recipe_table", "Heavy ablations on every metric."),
            Figure("recipe_changes", "The same numbers as dots with intervals."),
        ),
        source="tsfm-lens, tables 1 and 4",
        paper=("S3-T1", "S3-T4"),
        subject=_subject,
    ),
    Measurement(
        kind="sweep_selection",
        theme="Sweeps",
        about="informed against random choices of heads",
        heading="Informed and random choices",
        guide="The same recipes with as many heads of each layer drawn at random: if the choice did not matter, both "
        "would cost the same.",
        compute=None,
        plates=_selection,
        figures=(Figure("selection_comparison", "Informed and random choices of as many heads."),),
        source="tsfm-lens, figures 12 and 13",
        paper=(),
        subject=_subject,
    ),
)
