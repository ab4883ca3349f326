"""Measures of further experiments of the paper on structured attention, on grids of runs and by counting."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from tsfm_lens.models.timing import ratios
from tsfm_lens.studies import structured
from tsfm_lens.studies.experiments import prepare, record
from tsfm_lens.studies.experiments.config import TrainConfig
from tsfm_lens.studies.papers import items_structured as paper
from tsfm_lens.studies.papers.measuring import Asked, Found
from tsfm_lens.studies.papers.verdicts import Part, interval, judged

ROUNDS = 12
TOKENS, WINDOW = 1024, 128


def _mean(result: Found, quantity: str, of_seeds: np.ndarray) -> None:
    finite = of_seeds[np.isfinite(of_seeds)]
    mean = interval(finite, range(len(finite)))
    result.values[quantity] = mean.estimate
    if np.isfinite(mean.low):
        result.intervals[quantity] = (mean.low, mean.high)


def forecasts(request: Asked) -> Found:
    """Measure figure 14: absolute test errors over those of standard attention with the same seed."""
    data = record("encoders")
    errors = {str(arm): data["test_mae"].sel(arm=arm).values for arm in data["arm"].values}
    result = Found({}, {"width": "32", "heads": "4", "layers": "2", "steps": "one epoch", "intervals over": "seeds"})
    for arm, of_seeds in errors.items():
        standard = errors[f"standard, {arm.rsplit(', ', 1)[1]}"]
        if standard is of_seeds:
            _mean(result, f"absolute error, {arm}", of_seeds)
        else:
            _mean(result, paper.RELATIVE.format(arm=arm), of_seeds / standard - 1)
    margins = errors["standard, T = 96"] - errors["MLR attention 6+2, T = 96"]
    part = Part("", margins, "absolute error, less that of MLR attention")
    result.claims[paper.BETTER] = judged([part], range(len(margins)), "seed")
    return result


def chronos(request: Asked) -> Found:
    """Measure figure 15: losses at equal steps, and costs of the scores."""
    data = record("chronos_levels")
    loss = {str(arm): data["loss"].sel(arm=arm).values for arm in data["arm"].values}
    facts = data.attrs
    result = Found(
        {},
        {
            "steps": f"{facts['steps']:,} of {facts['rows']} rows",
            "context": str(facts["context"]),
            "horizon": str(facts["horizon"]),
            "ranks": "of heads of 16",
            "layers": "the encoder's",
            "intervals over": "seeds",
        },
    )
    for arm, of_seeds in loss.items():
        _mean(result, paper.LOSS.format(arm=arm), of_seeds)
        if arm != "standard":
            _mean(result, paper.EXCESS.format(arm=arm), of_seeds - loss["standard"])
            result.values[paper.SHARE.format(arm=arm)] = float(data["score_share"].sel(arm=arm))
    return result


def rates(request: Asked) -> Found:
    """Measure figure 5: the rate of the lowest error at every width."""
    data = record("transfer")
    widths = data["width"].values.tolist()
    result = Found(
        {},
        {
            "widths": ", ".join(map(str, widths)),
            "data": "prompts of linear regression",
            "heads": "of 4",
            "steps": str(data.attrs["steps"]),
            "intervals over": "seeds",
        },
    )
    for kind in map(str, data["parametrisation"].values):
        of_kind = data["mse"].sel(parametrisation=kind).transpose("width", "seed", "rate")
        finite = of_kind.values[:, np.isfinite(of_kind.values).all(axis=(0, 2))]
        if finite.shape[1]:
            best = data["rate"].values[finite.argmin(-1)]
            _mean(result, paper.CARRIED.format(kind=kind), best[-1] / best[0])
            for width, errors in zip(widths, finite, strict=True):
                _mean(result, f"lowest error, {kind}, width {width}", errors.min(-1))
    return result


def step_time(request: Asked) -> Found:
    """Measure figure 12: whole training steps of the paper's size, taken in turn."""
    runs = []
    for name in ("attention", "bilinear-btt"):
        content = {
            "model": {"name": name, "options": {"width": 64, "layers": 6, "heads": 8}},
            "data": {"kind": "in-context", "inputs": 16, "held_out": 1},
            "plan": {"batch": 64},
        }
        runs.append(prepare(TrainConfig.model_validate(content))[0])
    plain, form = (run.train_step for run in runs)
    ((middle, low, high),) = ratios([form], plain, rounds=request.seeds or ROUNDS, clock=time.process_time)
    settings = {"inputs": "16", "width": "64", "heads": "8", "layers": "6", "device": "CPU, one thread or as set"}
    return Found({paper.SLOWER: middle}, settings, intervals={paper.SLOWER: (low, high)})


def windows(request: Asked) -> Found:
    """Count keys that are scored at all, in whole scores; and shares of pairs, by pattern of layers."""
    x = torch.ones(1, TOKENS, 1)
    near = structured.Reach((1,), (TOKENS,), causal=True, window=WINDOW)
    whole = structured.Reach((1,), (TOKENS,), causal=True)
    pairs = {
        name: torch.isfinite(structured.reaching_scores(x, x, reach)).sum(-1)[0]
        for name, reach in (("windows", near), ("global", whole))
    }
    values = {paper.SEEN: float(pairs["windows"].max())}
    every, own = (float(pairs[name].sum()) for name in ("global", "windows"))
    values[paper.WINDOWED.format(pattern="windows in every layer")] = own / every
    # global, window, window, twice, as in the published code
    values[paper.WINDOWED.format(pattern="one layer in three global")] = (every + 2 * own) / (3 * every)
    return Found(values, {"tokens": f"{TOKENS:,}", "window": str(WINDOW), "layers": "6"})


MEASURES_OF_GRIDS: dict[str, Callable[[Asked], Found]] = {
    "S2-CHR": chronos,
    "S2-ETT": forecasts,
    "S2-F12": step_time,
    "S2-F5": rates,
    "S2-SWA": windows,
}
"""Measures beside those of regression in context."""
