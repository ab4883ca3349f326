"""Chapter in which a reader clicks through the heads: every state is in the page, and no kernel is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.catalogue.attention import maps_of
from tsfm_lens.catalogue.computing import on_first
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.words import num
from tsfm_lens.viz.attention import attention_kind
from tsfm_lens.viz.explore import (
    Update,
    ablation_update,
    explore_figure,
    head_update,
    head_words,
    sampling_words,
    score_update,
    scores,
    start,
)
from tsfm_lens.viz.explore_panels import TRACES, attention_words, head_name
from tsfm_lens.viz.select import array, names, unit_of
from tsfm_lens.viz.theme import percent
from tsfm_lens.viz.timeline import timeline

_CELLS = 1024  # of the attention drawn; longer contexts are drawn in cells of several steps


def _explore(ds: xr.Dataset) -> Iterator[Plate]:
    fig = explore_figure(ds)
    pool = _Pool(ds)
    band = fig.data[TRACES.index("attention")]
    band.x, band.z = pool.edges(list(band.x)), pool.sums(np.asarray(band.z))
    band.update(attention_words(ds, timeline(ds, 0), pool.width))
    remarks = ["click a head in the map, or choose it", sampling_words(ds), pool.remark]
    subtitle = "; ".join(words for words in remarks if words)
    # what the page's script reads; plotly itself leaves it alone
    fig.layout.meta = {**fig.layout.meta, "subtitle": subtitle, "states": _states(ds, pool)}
    yield Plate(fig, heads_table(ds), read_explore(ds))


class _Pool:
    """Attention summed over a few adjacent steps where the context is long."""

    def __init__(self, ds: xr.Dataset) -> None:
        self.width = -(-ds.sizes["time"] // _CELLS)

    @property
    def remark(self) -> str:
        return f"each stripe of attention is {self.width} steps wide" if self.width > 1 else ""

    def sums(self, z: np.ndarray) -> np.ndarray:
        return np.add.reduceat(z, np.arange(0, z.shape[-1], self.width), axis=-1)

    def edges(self, x: list[Any]) -> list[Any]:
        return [*x[: -1 : self.width], x[-1]]


def _states(ds: xr.Dataset, pool: _Pool) -> dict[str, Any]:
    """Collect all that the controls can show: properties of traces by their place."""
    layers, heads = range(ds.sizes["layer"]), range(ds.sizes["head"])

    def cell(layer: int, head: int) -> dict[str, Any]:
        update = head_update(ds, layer, head)
        pooled = pool.sums(update["attention"]["z"])
        update["attention"] |= {"z": pooled, "zmax": float(np.nanmax(pooled)) or 1.0}
        alone = array(ds, "ablated_forecast", "quantile", "step", layer=layer, head=head, series=0)
        return {
            "label": head_name(ds, layer, head),
            "text": head_words(ds, layer, head),
            "update": _compact(update),
            "toggled": _compact(ablation_update(ds, [(layer, head)], alone)),
        }

    return {
        "map": TRACES.index("scores"),
        "start": list(start(ds)),
        "menu": [{"label": each.words, "update": _compact(score_update(ds, key))} for key, each in scores(ds).items()],
        "cells": [[cell(layer, head) for head in heads] for layer in layers],
        "plain": _compact(ablation_update(ds, [], None)),
        "words": {"menu": "the map shows", "cell": "head", "toggle": "show the forecast without it"},
    }


def _compact(update: Update) -> dict[str, dict[str, Any]]:
    """Round an update to four digits for JSON; NaN becomes null."""
    return {
        str(TRACES.index(name)): {key: _plain(value) for key, value in properties.items()}
        for name, properties in update.items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, float | np.floating):
        return float(f"{value:.4g}") if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def heads_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate the scores, a row per head."""
    layers, heads = names(ds, "layer"), names(ds, "head")
    table = pd.DataFrame({"layer": np.repeat(layers, len(heads)), "head": np.tile(heads, len(layers))})
    table["component"] = ds["component"].values.ravel()
    for key, each in scores(ds).items():
        table[key.replace(" ", "_")] = each.values.ravel()
    for key in ("write_share", "attention_forecast", "attention_other"):
        table[key] = array(ds, key, "layer", "head").ravel()
    return table


def read_explore(ds: xr.Dataset) -> list[str]:
    """Name the head that matters most and the one that writes most, and whether they are the same."""
    unit, of_heads = unit_of(ds, 0) or "data units", f"Of the heads of {attention_kind(ds)}"
    shift, size = (array(ds, key, "layer", "head") for key in ("mean_shift", "write_size"))
    names_of = ds["component"].transpose("layer", "head").values.astype(str)
    loudest = tuple(int(v) for v in np.unravel_index(size.argmax(), size.shape))
    share = array(ds, "write_share", "layer", "head")[loudest]
    leads = np.argwhere(array(ds, "mean_shift_leads", "layer", "head").astype(bool))
    if not len(leads):
        out = [
            f"{of_heads} none stands out: without any of them the forecast moves by up to {num(shift.max())} {unit}."
        ]
        return [*out, f"{names_of[loudest]} writes most: {num(size[loudest])} {unit} on average."]
    most = (int(leads[0][0]), int(leads[0][1]))
    out = [
        f"{of_heads} the forecast moves most without {names_of[most]}: by {num(shift[most])} {unit} on "
        f"average, where the median head moves it by {num(float(np.median(shift)))} {unit}."
    ]
    same = "It also writes most" if most == loudest else f"{names_of[loudest]} writes most"
    out.append(f"{same}: {num(size[loudest])} {unit} on average, {percent(float(share))} of what all components write.")
    return out


MEASUREMENTS = (
    Measurement(
        kind="explore",
        theme="Activations",
        about="one head in one view: what it reads and writes, its spectra, the forecast without it (`run.explore()`)",
        heading="One head at a time",
        guide="A linked view of the heads of one kind of attention, the last over time before the forecast is read "
        "out: what each looks at, what it writes to the forecast, the spectra of its matrices, and the forecast "
        "without it. In a notebook, run.explore() opens it with any set of heads ablated.",
        compute=on_first("head_states", each=lambda lens: {"explore": {}} if maps_of(lens) else {}),
        plates=_explore,
        figures=(Figure("explore_figure", "One head: what it reads, what it writes, and the forecast without it."),),
    ),
)
