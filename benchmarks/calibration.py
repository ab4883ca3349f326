"""Calibration of what pages claim: significance, leaders and learned parts, on drawn
effects and on models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
import xarray as xr

from tsfm_lens import probes
from tsfm_lens.core.errors import LensError
from tsfm_lens.core.estimates import corrected, estimated_effects, with_twins
from tsfm_lens.core.stats import LEVEL, SMALLEST, holm, leader, sign_test
from tsfm_lens.data import SeriesBatch, bundled, bundled_names
from tsfm_lens.models import Lens, Run, load
from tsfm_lens.models.twins import reinitialised_twin, untrained_twin
from tsfm_lens.studies.method_scores.methods import worth_naming
from tsfm_lens.studies.method_scores.page import markdown, replace_section
from tsfm_lens.studies.method_scores.series import evaluation_case
from tsfm_lens.testing import tiny
from tsfm_lens.training.command import run_command
from tsfm_lens.zoo.planted import mechanisms, plant

Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
START = "<!-- measured: calibration -->"
STOP = "<!-- end: calibration -->"
UNITS = (2, 4, 8, 16, 32, 64)
MEMBERS = 24
TRUE = 6  # members of a page that have an effect where power is measured
EMBEDDED = ("chronos-nano", "bolt-nano", "chronos2-nano")
TINY = ("chronos", "chronos-bolt", "timesfm-2.5", "moirai-2", "toto-1")
LONG = ("electricity", "pedestrians", "seattle_heat", "gasoline")
SHIFTS = (1, 2, 3, 4, 5)
# twins of a report with weights in random order, and with new ones
_OLD = 20
_NEW = 4
_SIZES = (2, 3, 8, 30)
_UNITS = (6, 9, 20)


def _clustered(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Average four windows a series, which share most of what they are."""
    of_series = rng.normal(size=(*shape, 1)) + 0.3 * rng.normal(size=(*shape, 4))
    return np.asarray(of_series.mean(-1) + rng.normal(size=shape[1]))


DRAWS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "log-normal": lambda rng, shape: np.exp(1.5 * rng.normal(size=shape)) - 1,
    "t with 2 degrees": lambda rng, shape: rng.standard_t(2, size=shape),
    "outliers": lambda rng, shape: (
        rng.normal(size=shape) * np.where(rng.random(shape) < 0.1, 50, 1)
    ),
    "clustered": _clustered,
}
"""Effects (member, series) whose median is 0."""


def significant_pages(
    draw: Draw, units: int, *, trials: int = 1000, shift: float = 0.0, seed: int = 0
) -> float:
    """Compute the share of pages that call a member significant; with a shift, of
    shifted members so called.
    """
    rng = np.random.default_rng([seed, units])
    count = 0.0
    for _ in range(trials):
        effect = draw(rng, (MEMBERS, units))
        effect[:TRUE] += shift
        named = holm(sign_test(effect)) <= LEVEL
        count += float(named[:TRUE].mean()) if shift else float(named.any())
    return count / trials


def false_leaders(
    draw: Draw, members: int, units: int, *, trials: int = 1000, seed: int = 0
) -> float:
    """Compute how often one of several members, alike by definition, is called the
    leader.
    """
    rng = np.random.default_rng([seed, members, units])
    return (
        sum(
            leader(np.abs(draw(rng, (members, units)))) is not None
            for _ in range(trials)
        )
        / trials
    )


def compute_claims(run: Run) -> dict[str, xr.Dataset]:
    """Compute the effects that a page makes claims about."""
    run = run.alone()
    results = {"ablation_effects": probes.ablation_effects(run)}
    with suppress(LensError):
        results["attribution"] = probes.attribution(run)
    return corrected(results)


def learned_pages(
    lens: Lens, run_of: Callable[[Lens], Run], *, models: int = 20
) -> dict[str, float]:
    """Compute the share of untrained models of which a page claims that a part is
    learned.

    Models with the weights of ``lens`` in random order, and models with new weights,
    are each compared with 24 twins. Another order of weights in random order is a twin
    of the same kind, and so are other new weights.
    """
    makers = {
        "weights in random order": untrained_twin,
        "new weights": reinitialised_twin,
    }
    pools = {
        name: [
            compute_claims(run_of(maker(lens, seed))) for seed in range(models + _OLD)
        ]
        for name, maker in makers.items()
    }
    new = [
        compute_claims(run_of(reinitialised_twin(lens, 1000 + seed)))
        for seed in range(_NEW)
    ]
    return {
        name: float(
            np.mean(
                [claims_learned(pool[i], [*pool[models:], *new]) for i in range(models)]
            )
        )
        for name, pool in pools.items()
    }


def claims_learned(
    page: dict[str, xr.Dataset], twins: Sequence[dict[str, xr.Dataset]]
) -> bool:
    """Test if a page, compared with those of twins, calls any member learned."""
    compared = corrected(
        {
            key: with_twins(data, [control[key] for control in twins])
            for key, data in page.items()
        }
    )
    return any(
        bool(data[f"{name}_learned"].any())
        for data in compared.values()
        for name in estimated_effects(data)
    )


def significant_members(page: dict[str, xr.Dataset]) -> set[tuple[str, str, int]]:
    """List the members that a page calls significant."""
    return {
        (key, name, int(position))
        for key, data in page.items()
        for name in estimated_effects(data)
        for position in np.flatnonzero(data[f"{name}_significant"].values)
    }


def shifted_claims(
    lens: Lens,
    batches: Sequence[SeriesBatch],
    windows: int,
    shifts: Sequence[int] = SHIFTS,
) -> float:
    """Compute the share of significant members that are not so when all windows begin a
    few steps earlier.
    """

    def members(batch: SeriesBatch, steps: int = 0) -> set[tuple[str, str, int]]:
        values = tuple(value[: len(value) - steps] for value in batch.values)
        return significant_members(
            compute_claims(_run(replace(batch, values=values), 12, lens, windows))
        )

    plain = [members(batch) for batch in batches]
    pairs = [
        (batch, own, steps)
        for batch, own in zip(batches, plain, strict=True)
        for steps in shifts
    ]
    lost = sum(len(own - members(batch, steps)) for batch, own, steps in pairs)
    if any(plain):
        return lost / (len(shifts) * sum(map(len, plain)))
    return float("nan")


def _run(batch: SeriesBatch, horizon: int, lens: Lens, windows: int = 1) -> Run:
    how: dict[str, Any] = {"num_samples": 8} if lens.adapter.readout == "token" else {}
    return lens.run(batch, horizon, holdout=True, windows=windows, **how)


def planted_claims(seeds: int) -> Iterator[dict[str, Any]]:
    """Count by planted model the true parts of 1 % or more, those of them that a page
    names, and others that it names.

    Backups, which act only when another part is gone, count neither way.
    """
    for mechanism, architecture in mechanisms():
        for seed in range(seeds):
            planted = plant(mechanism, architecture, seed=seed, reads=None)
            case = evaluation_case(planted.lens(), planted.card, seed=seed)
            effects = probes.ablation_effects(case.clean, components=case.components)
            true, idle = (
                np.isin(effects["component"], planted.card.components(r))
                for r in ("mechanism", "backup")
            )
            named = worth_naming(effects, "mean_shift").values
            large = true & (effects["mean_shift_size"].values >= SMALLEST)
            counts = {
                "true": large,
                "named": large & named,
                "others": named & ~true & ~idle,
            }
            yield {"model": architecture, "models": 1} | {
                name: int(count.sum()) for name, count in counts.items()
            }


def _simulated(trials: int) -> Iterator[str]:
    yield (
        f"False pages, and power at a shift of one unit, in % ({MEMBERS} members,"
        f" {trials} pages each):"
    )
    heads = ["effects", *(f"{units} series" for units in UNITS)]
    lines = [
        [name]
        + [
            f"{100 * significant_pages(draw, n, trials=trials):.1f} / "
            f"{100 * significant_pages(draw, n, trials=trials // 5, shift=1.0):.0f}"
            for n in UNITS
        ]
        for name, draw in DRAWS.items()
    ]
    yield markdown([heads, *lines])
    yield (
        "False leaders among members that are alike, in % (worst of 6, 9 and 20"
        f" series, {trials} pages each):"
    )
    worst = [
        [name]
        + [
            f"{100 * max(false_leaders(draw, k, n, trials=trials) for n in _UNITS):.1f}"
            for k in _SIZES
        ]
        for name, draw in DRAWS.items()
    ]
    yield markdown([["effects", *(f"{k} members" for k in _SIZES)], *worst])


def _of_models(models: int, seeds: int) -> Iterator[str]:
    yield (
        f"Pages of untrained models that call a part learned, in % ({models} models of"
        " each kind):"
    )
    batch = bundled(*bundled_names()).tail(76)
    lines = []
    for name in (*EMBEDDED, *TINY):
        if name in EMBEDDED:
            lens = load(name)
        else:
            lens = load(tiny(name), check=False)
        shares = learned_pages(
            lens,
            partial(_run, batch, min(12, lens.adapter.longest_pass)),
            models=models,
        )
        lines.append([name, *(f"{100 * share:.0f}" for share in shares.values())])
    yield markdown([["model", "weights in random order", "new weights"], *lines])
    yield "Parts that an ablation page of planted models names:"
    counts = pd.DataFrame(planted_claims(seeds)).groupby("model", as_index=False).sum()
    heads = [
        "architecture",
        "planted models",
        "true parts of 1 % or more",
        "of them named",
        "others named",
    ]
    yield markdown([heads, *counts.astype(str).values])
    yield (
        "Significant members that are not so when all windows begin 1 to 5 steps"
        " earlier, in %:"
    )
    looks = (
        ([batch], 1),
        ([bundled(*bundled_names())], 4),
        ([bundled(name) for name in LONG], 40),
    )
    lines = [
        [name, *(f"{100 * shifted_claims(load(name), *look):.1f}" for look in looks)]
        for name in EMBEDDED
    ]
    yield markdown(
        [
            [
                "model",
                "13 series",
                "13 series, 4 windows each",
                "40 windows of one series",
            ],
            *lines,
        ]
    )


def main(
    out: Annotated[Path, typer.Option(help="page whose tables are written anew")],
    *,
    trials: Annotated[
        int, typer.Option(min=5, help="simulated pages of each kind")
    ] = 1000,
    models: Annotated[
        int, typer.Option(min=1, help="untrained models of each kind")
    ] = 20,
    seeds: Annotated[
        int, typer.Option(min=1, help="planted models of each mechanism")
    ] = 4,
) -> None:
    """Measure how often pages claim what is not so, and write tables into a page."""
    replace_section(
        out,
        START,
        STOP,
        "\n\n".join([*_simulated(trials), *_of_models(models, seeds)]) + "\n",
    )


if __name__ == "__main__":
    run_command(main)
