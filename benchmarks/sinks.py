"""How often attention sinks are found, and given the right kind.

``python -m benchmarks.sinks --out docs/sinks.csv`` writes a row for each model that is
looked at: planted ones, the embedded ones, and copies with weights in random order. A
row that is in the file is not measured again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import xarray as xr

import tsfm_lens
from tsfm_lens import probes
from tsfm_lens.data import bundled_names
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.twins import untrained_twin
from tsfm_lens.studies.dictionaries.__main__ import Rows
from tsfm_lens.training.command import run_command
from tsfm_lens.zoo.planted import draw_contexts, plant

EMBEDDED = ("bolt-nano", "chronos2-nano", "chronos-nano")
SINKING = "chronos-nano"
SEEDS = 8
DRAWS = 10
SERIES = 6
STEPS = 96
HORIZON = 24
KINDS = {"mechanism": "broadcast", "constant": "bias", "decoy": "nop"}
"""Role of a head that rests on the end token -> the kind of its sink."""
PLANTED = "planted"
EMPTY = "none"
DRAWN = "series drawn"
SHUFFLED = "weights in random order"


def count_sinks(data: xr.Dataset) -> dict[str, object]:
    """Count the heads of a result, and name those that have a sink."""
    sinks = data["sink"].to_series()
    sinks = sinks[sinks != EMPTY]
    named = [f"{head} {kind}" for head, kind in sinks.items()]
    return {
        "heads": data.sizes["component"],
        "sinks": len(sinks),
        "named": "; ".join(named),
    }


def planted_row(seed: int) -> dict[str, object]:
    """Look at a planted model whose three kinds of sinks are known."""
    planted = plant("sinks", "chronos", seed=seed)
    series = draw_contexts(planted.card.rule, SERIES, (128, 128), seed=seed + 1)
    run = planted.lens().run(list(series), planted.card.horizon)
    data = probes.attention_sinks(run)
    kinds = {
        part.component: KINDS[part.role]
        for part in planted.card.parts
        if "cross_attn" in part.component
    }
    found = data["sink"].sel(component=list(kinds)).values
    right = int((found == list(kinds.values())).sum())
    count = count_sinks(data)
    return {"condition": PLANTED, "planted": len(kinds), "right": right, **count}


def model_row(lens: Lens, condition: str, names: Sequence[str]) -> dict[str, object]:
    """Look at a model on the ends of bundled series."""
    series = [tsfm_lens.bundled(name).values[0][-STEPS:] for name in names]
    data = probes.attention_sinks(lens.run(series, HORIZON))
    return {"condition": condition, **count_sinks(data)}


def main(
    out: Annotated[Path, typer.Option(help="CSV file, one row a model")],
) -> None:
    """Count the sinks of planted, embedded and untrained models."""
    rows = Rows(out)
    for seed in range(SEEDS):
        rows.add(f"{PLANTED}, seed {seed}", partial(planted_row, seed))
    every = bundled_names()
    for name in EMBEDDED:
        lens = tsfm_lens.load(name)
        for copy in range(SEEDS):
            twin = untrained_twin(lens, copy)
            measure = partial(model_row, twin, SHUFFLED, every[:SERIES])
            rows.add(f"{name}, copy {copy}", measure)
    lens = tsfm_lens.load(SINKING)
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        chosen = sorted(rng.choice(every, SERIES, replace=False))
        measure = partial(model_row, lens, DRAWN, chosen)
        rows.add(f"{SINKING}, draw {draw}", measure)


if __name__ == "__main__":
    run_command(main)
