"""Measure dictionaries of models, and of planted features, and write two tables.

``python -m tsfm_lens.studies.dictionaries --out DIR`` measures the embedded models. A
row that is in the tables is not measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
import xarray as xr

import tsfm_lens
from tsfm_lens.core.console import console
from tsfm_lens.core.io import write_atomically
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.models import Lens
from tsfm_lens.models.twins import make_twin
from tsfm_lens.studies.dictionaries.dictionary import Dictionary, mean_max_cosine
from tsfm_lens.studies.dictionaries.measures import (
    SEEDS,
    Tokens,
    measure_dictionaries,
    measure_removals,
    mlp_tokens,
    removal_summary,
    stream_tokens,
)
from tsfm_lens.studies.dictionaries.superposition import (
    FEATURES_OF_TOKEN,
    superposed_features,
)
from tsfm_lens.studies.recipes.families import FAMILIES, SeriesDraw
from tsfm_lens.training.command import run_command

MODELS = ("chronos-nano", "bolt-nano", "chronos2-nano")
LAYER = 1
ACTIVE = 8
ROWS_OF_A_FAMILY = 20
HORIZON = 24
ORIGINS = 2
"""Forecast origins of each bundled series, on which features are removed."""
PLANTED_FEATURES = 64
PLANTED_SERIES = 60
PLANTED_STEPS = 5000


class Rows:
    """Table of a CSV file, to which each finished row is written at once."""

    def __init__(self, path: Path) -> None:
        """Read the rows that are there."""
        self.path = path
        self.rows = pd.DataFrame()
        if path.exists():
            self.rows = pd.read_csv(path, index_col="of")

    def add(self, name: str, measure: Callable[[], Mapping[str, object]]) -> None:
        """Measure a row, unless the table has it."""
        if name in self.rows.index:
            return
        row = pd.DataFrame([measure()], index=[name])
        row["date"] = f"{datetime.now(UTC):%Y-%m-%d}"
        self.rows = pd.concat([self.rows, row])
        text = self.rows.to_csv(index_label="of", float_format="%.4g")
        write_atomically(self.path, text.encode())
        console().print(f"{name}: measured")


def main(
    out: Annotated[Path, typer.Option(help="folder of tables and activations")],
    model: Annotated[
        list[str] | None,
        typer.Option(help="model to measure, once for each; by default the embedded"),
    ] = None,
) -> None:
    """Measure dictionaries of models, and of planted features."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    planted = Rows(out / "dictionaries.planted.csv")
    for seed in SEEDS:
        planted.add(f"planting {seed}", partial(planted_row, seed, out))
    rows = Rows(out / "dictionaries.csv")
    for name in model or MODELS:
        rows.add(f"{name}, stream", partial(stream_row, name, out))
        rows.add(f"{name}, MLP", partial(mlp_row, name))


def planted_row(seed: int, folder: Path) -> dict[str, float]:
    """Measure how well dictionaries find planted features.

    Args:
        seed: of the planted model and its series.
        folder: of activations.

    Returns:
        ``found 0``, …: the mean largest cosine of a planted direction with those of the
        dictionary of each seed; and what :func:`measure_dictionaries` measures.
    """
    planted = superposed_features(seed)
    series = planted.series(PLANTED_SERIES, seed)
    tokens = stream_tokens(planted.lens, series, 0, folder / f"planting-{seed}")
    dictionaries, data = measure_dictionaries(
        tokens,
        features=PLANTED_FEATURES,
        active=FEATURES_OF_TOKEN,
        steps=PLANTED_STEPS,
    )
    found = {
        f"found {number}": mean_max_cosine(planted.directions, dictionary.directions)
        for number, dictionary in zip(SEEDS, dictionaries, strict=True)
    }
    return {**found, **_means(data)}


def stream_row(name: str, folder: Path) -> dict[str, float]:
    """Measure dictionaries of a stream, of its twin's, and removals of features.

    Args:
        name: of the model.
        folder: of activations.

    Returns:
        What :func:`measure_dictionaries` and :func:`removal_summary` measure, means
        over seeds.
    """
    lens = tsfm_lens.load(name)
    twin = make_twin(lens, 0)
    series = training_series(lens)
    tokens = stream_tokens(lens, series, LAYER, folder / name)
    of_twin = stream_tokens(twin, series, LAYER, folder / f"{name} twin")
    dictionaries, row = _beside_twin(lens, tokens, of_twin)
    run = lens.run(tsfm_lens.bundled(), HORIZON, holdout=True, windows=ORIGINS)
    summaries = [
        removal_summary(measure_removals(run, tokens, dictionary, layer=LAYER))
        for dictionary in dictionaries
    ]
    removed: Any = pd.DataFrame(summaries).mean().to_dict()
    return {**row, **removed}


def mlp_row(name: str) -> dict[str, float]:
    """Measure transcoders of an MLP, and of its twin's.

    Args:
        name: of the model.

    Returns:
        What :func:`measure_dictionaries` measures, means over seeds.
    """
    lens = tsfm_lens.load(name)
    series = training_series(lens)
    tokens, of_twin = (
        mlp_tokens(one, series, LAYER) for one in (lens, make_twin(lens, 0))
    )
    _, row = _beside_twin(lens, tokens, of_twin)
    return row


def _beside_twin(
    lens: Lens, tokens: Tokens, of_twin: Tokens
) -> tuple[list[Dictionary], dict[str, float]]:
    """Fit dictionaries to tokens of a model, and measure them beside its twin's."""
    measure = partial(measure_dictionaries, features=2 * lens.d_model, active=ACTIVE)
    dictionaries, data = measure(tokens)
    _, twin_data = measure(of_twin)
    return dictionaries, {**_means(data), **_means(twin_data, "twin ")}


def training_series(lens: Lens) -> SeriesBatch:
    """Draw series of the families that the embedded models were trained on.

    Returns:
        Twenty of each family, as long as the model's context.
    """
    draw = SeriesDraw(np.random.default_rng(0), ROWS_OF_A_FAMILY, lens.cfg.n_ctx)
    return as_series(np.concatenate([family(draw) for family in FAMILIES.values()]))


def _means(data: xr.Dataset, prefix: str = "") -> dict[str, float]:
    return {f"{prefix}{name}": float(data[name].mean()) for name in data}


if __name__ == "__main__":
    run_command(main)
