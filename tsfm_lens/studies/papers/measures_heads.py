"""Measures of sharp heads, and forecasts without components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.hooks import Component
from tsfm_lens.probes import (
    ablation_recipes,
    diffuse_heads,
    head_entropy,
    sharp_heads,
)
from tsfm_lens.probes.recipes import ORIGINAL
from tsfm_lens.studies.papers.measuring import Asked, Found, Sheet
from tsfm_lens.studies.papers.values import SHARP_HEAD, SIX_HEADS
from tsfm_lens.studies.papers.verdicts import Part, Verdict

COMPARED = 64  # first steps of a forecast that the paper measures Spearman distances on


def forecasts_without(
    request: Asked, recipes: Mapping[str, Sequence[Component]], what: str, *, steps: int | None = None, offset: int = 0
) -> xr.Dataset:
    """Compare forecasts without components, with every seed, with those of the whole model.

    Args:
        request: input of the measure.
        recipes: name -> components.
        what: label of the progress.
        steps: first ones that are compared; all if None.
        offset: forecasts that were reported before.

    Returns:
        Dataset over (recipe, seed, series), without the whole model: ``spearman_distance``, and ``error_ratio``, the
        logarithm of the mean absolute error over that of the whole model, where a truth is known.

    Raises:
        InputError: forecasts of one step, which have no order.
    """
    runs = [run if steps is None else run.shortened(steps) for run in request.seeded()]
    if runs[0].horizon < 2:
        raise InputError("the Spearman distance compares the order of a forecast's steps; give a horizon of 2 or more")
    tables = []
    for number, run in enumerate(runs):
        before = offset + number * len(recipes)

        def report(count: int, _: int, before: int = before) -> None:
            request.tell(what, before + count, offset + len(runs) * len(recipes))

        result = ablation_recipes(run, recipes, progress=report)
        distances = result[["spearman_distance"]]
        if "mae" in result:
            error = result["mae"].where(result["mae"] > 0)
            distances = distances.assign(error_ratio=np.log(error / error.sel(recipe=ORIGINAL, drop=True)))
        tables.append(distances.sel(recipe=list(recipes)))
    return xr.concat(tables, dim="seed").transpose("recipe", "seed", "series")


def without_sharp_heads(request: Asked) -> Found:
    """Measure how far forecasts move without sharp and without diffuse heads (S3-F20)."""
    windows, seeds = len(request.run.batch), len(request.seeded())

    def report(number: int, _: int) -> None:
        request.tell("attention of every window", number, windows + 4 * seeds)

    steps = min(COMPARED, request.run.horizon)
    entropy = head_entropy(request.run.shortened(min(steps, request.model.adapter.longest_pass)), progress=report)
    count = min(6, entropy["entropy"].size // 2)
    recipes = {
        "sharpest": sharp_heads(entropy),
        "most diffuse": diffuse_heads(entropy),
        "sharpest six": sharp_heads(entropy, count),
        "most diffuse six": diffuse_heads(entropy, count),
    }
    result = forecasts_without(request, recipes, "forecasts without heads", steps=steps, offset=windows)

    def claim(sharp: str, diffuse: str, heads: str) -> Verdict:
        distance = result["spearman_distance"]
        further = (distance.sel(recipe=sharp) - distance.sel(recipe=diffuse)).values
        worse = result["error_ratio"].sel(recipe=sharp).values
        return request.judge(
            Part(f"without the {sharp} {heads} the forecast's error rises", worse, "log ratio of mean absolute errors"),
            Part(
                f"without the {sharp} {heads} it moves further than without the {diffuse}", further, "Spearman distance"
            ),
        )

    sheet = Sheet(request, {"six heads of all": 100 * count / entropy["entropy"].size})
    for name in recipes:
        distance = result["spearman_distance"].sel(recipe=name).values
        sheet.mean(f"mean Spearman distance without the {name}", distance)
    claims = {
        SHARP_HEAD: claim("sharpest", "most diffuse", "head"),
        SIX_HEADS: claim("sharpest six", "most diffuse six", "heads"),
    }
    settings = {**request.settings(over_seeds=True), "steps compared": str(steps)}
    return Found(sheet.values, settings, intervals=sheet.intervals, claims=claims)


def sharp_share(request: Asked) -> Found:
    """Count sharp heads (S3-HENT)."""
    entropies = head_entropy(request.run, progress=partial(request.tell, "attention of every window"))
    values = {
        "normalised entropy below which a head is sharp": float(entropies.attrs["sharp_below"]),
        "sharp heads of all": 100 * float(entropies["sharp"].mean()),
        "heads of the decoder's cross-attention": float(entropies["sharp"].size),
        "sharp heads": float(entropies["sharp"].sum()),
    }
    return Found(values, _without_intervals(request.settings()))


def _without_intervals(settings: dict[str, str]) -> dict[str, str]:
    return {name: words for name, words in settings.items() if name != "intervals over"}
