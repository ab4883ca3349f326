"""Mechanisms of a token checkpoint: induction heads, sharp heads, and copying.

``python -m tsfm_lens.studies.recipes.mechanisms [MODEL]`` prints the table of the card.
Read :func:`measure` first: it scores the heads, then forecasts repeated motifs with
heads ablated. The scores are probes of :mod:`tsfm_lens.probes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
import typer
import xarray as xr
from rich.table import Table

from tsfm_lens.ablation import Variant, point_forecasts
from tsfm_lens.core.console import console
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks import Component
from tsfm_lens.models import Lens, load
from tsfm_lens.models.run import Run
from tsfm_lens.probes import head_entropy, induction_scores
from tsfm_lens.training.command import run_command


@dataclass(frozen=True)
class Mechanisms:
    """Heads by kind, and the error of copying with and without them."""

    test: xr.Dataset
    entropy: xr.Dataset
    induction: tuple[Component, ...]
    sharp: tuple[Component, ...]
    alone: np.ndarray
    copy_error: dict[str, float]


def motifs(
    count: int, length: int, repeats: int, horizon: int, seed: int = 0
) -> tuple[SeriesBatch, np.ndarray]:
    """Draw random motifs repeated exactly.

    Their exact repetition makes the continuation of the context known.
    """
    rng = np.random.default_rng(seed)
    shapes = rng.standard_normal((count, length))
    full = np.tile(shapes, (1, repeats + -(-horizon // length)))
    context = full[:, : length * repeats]
    return (
        SeriesBatch(tuple(context)),
        full[:, length * repeats : length * repeats + horizon],
    )


def measure(
    lens: Lens, *, motif: int = 32, repeats: int = 2, count: int = 24, seed: int = 0
) -> Mechanisms:
    """Find the heads, then forecast repeated motifs without them."""
    # led along the motif, so that the scores do not depend on how well the model copies
    settings: dict[str, Any] = {
        "motif": motif,
        "repeats": repeats,
        "n_sequences": 4 * count,
        "seed": seed,
    }
    test = induction_scores(
        lens, **settings, decoding="forced", offset=1, positions="all"
    )
    horizon = min(lens.adapter.prediction_length, motif)
    batch, future = motifs(count, motif, repeats, horizon, seed)
    run = lens.run(batch, horizon, truth=future, rollout=True, num_samples=20)
    entropy = head_entropy(run.select(range(min(count, 6))), kind="cross_attn")
    is_induction = test["induction"].values
    is_sharp = entropy["sharp"].values
    every = [(_head(lens, layer, head),) for layer, head in np.ndindex(*is_sharp.shape)]
    alone = _copy_errors(run, every).reshape(is_sharp.shape)
    # widest first; heads that also induce come after those that do not
    rank = np.where(is_sharp, np.inf, -entropy["entropy"].values + 100.0 * is_induction)
    order = [np.unravel_index(i, alone.shape) for i in np.argsort(rank, axis=None)][
        : int((~is_sharp).sum())
    ]
    diffuse = tuple(_head(lens, int(layer), int(head)) for layer, head in order)

    def heads(mask: np.ndarray) -> tuple[Component, ...]:
        return tuple(_head(lens, layer, head) for layer, head in np.argwhere(mask))

    induction = heads(is_induction)
    sharp = heads(is_sharp)
    both = heads(is_induction & is_sharp)
    sets = {
        "plain": (),
        "induction": induction,
        "sharp": sharp,
        "both": both,
        "diffuse": diffuse[: len(both)],
    }
    error = dict(
        zip(sets, _copy_errors(run, list(sets.values())).tolist(), strict=True)
    )
    return Mechanisms(test, entropy, induction, sharp, alone, error)


def _copy_errors(run: Run, sets: Sequence[tuple[Component, ...]]) -> np.ndarray:
    """Compute (set,) the mean absolute error of forecasts without each set of heads."""
    assert run.truth is not None
    forecasts = point_forecasts(run, [Variant.zero(*heads) for heads in sets])
    return np.asarray(np.abs(forecasts - run.truth).mean((1, 2)))


def _head(lens: Lens, layer: int, head: int) -> Component:
    return Component(lens.wiring.output_stack.name, int(layer), "cross_attn", int(head))


def main(
    model: Annotated[
        str, typer.Argument(help="name or folder of a token model")
    ] = "chronos-nano",
    repeats: Annotated[
        int, typer.Option(min=2, help="times that a motif is shown; the paper's are 4")
    ] = 2,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 1,
) -> None:
    """Print what each cross-attention head does, and what copying loses without it.

    The model is one of tokens.
    """
    torch.set_num_threads(threads)
    lens = load(model)
    scores = measure(lens, repeats=repeats)
    out = console(width=120)
    table = Table(
        "head",
        "prefix matching",
        "copy score",
        "entropy (nats)",
        "normalised",
        "copy error without",
        "kind",
    )
    table.columns[0].no_wrap = True
    for layer, head in np.ndindex(*scores.alone.shape):
        component = _head(lens, layer, head)
        kinds = [
            kind
            for kind in ("induction", "sharp")
            if component in getattr(scores, kind)
        ]
        at = {"layer": layer, "head": head}
        test = scores.test.isel(at)
        entropy = scores.entropy.isel(at)
        arrays = (
            test.prefix_matching,
            test.copy_score,
            entropy.entropy,
            entropy.normalised,
        )
        numbers = [*map(float, arrays), scores.alone[layer, head]]
        table.add_row(
            str(component), *(f"{number:.2f}" for number in numbers), ", ".join(kinds)
        )
    out.print(table)
    out.print(f"copy accuracy on random tokens {float(scores.test.copy_accuracy):.2f}")
    for name, value in scores.copy_error.items():
        if name == "plain":
            heads = "all heads"
        else:
            heads = f"the heads that are {name} ablated"
        out.print(
            f"copy error of a repeated motif, {heads}: {value:.3f} standard deviations"
        )


if __name__ == "__main__":
    run_command(main)
