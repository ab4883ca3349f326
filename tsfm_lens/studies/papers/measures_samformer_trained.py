"""Measures of SAMformer's figures 5 to 14 and its ablations, on trainings whose results ship."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import xarray as xr

from tsfm_lens.studies.experiments import record
from tsfm_lens.studies.papers import items_samformer as paper
from tsfm_lens.studies.papers.measuring import Asked, Found
from tsfm_lens.studies.papers.verdicts import Part, Verdict, interval, judged

SAME_ERROR = 1.01
RADIUS = 0.5
REPARAM, BOTH = "sigma reparam", "SAMformer sigma reparam"
Cells = Iterable[tuple[str, int]]


def by_arm(data: xr.Dataset, name: str) -> dict[str, np.ndarray]:
    """Split a variable by arm, over the seeds that have a value."""
    return {str(arm): data[name].sel(arm=arm).dropna("seed").values for arm in data["arm"].values}


def means(result: Found, values: Mapping[str, np.ndarray], words: str) -> None:
    """Add the mean over seeds of every arm, with its interval."""
    for arm, of_seeds in values.items():
        mean = interval(of_seeds, range(len(of_seeds)))
        result.values[words.format(arm=arm)] = mean.estimate
        if np.isfinite(mean.low):
            result.intervals[words.format(arm=arm)] = (mean.low, mean.high)


def cells_of(data: xr.Dataset, *models: str) -> list[tuple[str, int]]:
    """List data and horizons that all of these models were trained on."""
    arms = [str(arm).split(" ", 2) for arm in data["arm"].values]
    places = dict.fromkeys((name, int(horizon)) for name, horizon, _ in arms)
    available = {tuple(arm) for arm in arms}
    return [(name, steps) for name, steps in places if {(name, str(steps), model) for model in models} <= available]


def pairs(
    data: xr.Dataset, name: str, first: str, second: str, cells: Cells | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Pair a variable of two models, by runs of the same data, horizon and seed that both ended."""
    sides: list[list[np.ndarray]] = [[], []]
    for place, steps in cells_of(data, first, second) if cells is None else cells:
        two = [data[name].sel(arm=f"{place} {steps} {model}").values for model in (first, second)]
        both = np.isfinite(two[0]) & np.isfinite(two[1])
        for side, values in zip(sides, two, strict=True):
            side.append(values[both])
    arrays = [np.concatenate(side) if side else np.zeros(0) for side in sides]
    return arrays[0], arrays[1]


def over_runs(margins: np.ndarray, of: str) -> Verdict:
    """Test a claim by its margins, run by run."""
    return judged([Part("", margins, of)], range(len(margins)), "run")


def _settings(cells: Cells, **more: str) -> dict[str, str]:
    data = ", ".join(f"{paper.NAMES.get(name, name)} at {steps}" for name, steps in cells)
    return {"data": data, "training": "Adam at 1e-3, batch 32, patience 5", "intervals over": "seeds", **more}


def sharpness(request: Asked) -> Found:
    """Measure figures 5, 9 and 10: λ_max at the end, and the spread of errors over seeds."""
    data = record("benchmarks")
    cells = cells_of(data, "Transformer", "SAMformer")
    plain, sam = pairs(data, "end_sharpness", "Transformer", "SAMformer")
    sharper = np.log(np.maximum(plain, 1e-12)) - np.log(np.maximum(sam, 1e-12))
    off = [np.concatenate(values) for values in zip(*(_apart(data, cell) for cell in cells), strict=True)]
    claims = {
        paper.SHARPER_TRAINED: over_runs(sharper, "logarithm of the ratio of λ_max"),
        paper.STEADIER: over_runs(off[0] - off[1], "distance from the mean over seeds, less SAMformer's"),
    }
    result = Found({}, _settings(cells, weights="of the lowest validation error"), claims=claims)
    for name, steps in cells:
        for model in ("SAMformer", "Transformer"):
            values = data["test_mse"].sel(arm=f"{name} {steps} {model}").dropna("seed").values
            words = paper.SPREAD.format(model=model, data=paper.NAMES.get(name, name), horizon=steps)
            result.values[words] = float(values.std(ddof=1)) if len(values) > 1 else np.nan
    means(result, {arm: v for arm, v in by_arm(data, "end_sharpness").items() if _main(arm)}, "λ_max, {arm}")
    return result


def _apart(data: xr.Dataset, cell: tuple[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Compute distances of errors from their mean over seeds: of the transformer, and of SAMformer."""
    two = pairs(data, "test_mse", "Transformer", "SAMformer", [cell])
    first, second = (np.abs(values - values.mean()) for values in two)
    return first, second


def _main(arm: str) -> bool:
    return arm.split(" ", 2)[2] in ("Transformer", "SAMformer", REPARAM, BOTH)


def attention(request: Asked) -> Found:
    """Measure figures 6 and 12."""
    data = record("benchmarks").mean("window")
    cells = cells_of(data, "Transformer", "SAMformer")
    plain, sam = pairs(data, "end_diagonal_mass", "Transformer", "SAMformer")
    full, with_reparam = pairs(data, "end_numerical_rank", "Transformer", REPARAM)
    claims = {
        paper.DIAGONAL: over_runs(sam - plain, "diagonal mass of attention, less the transformer's"),
        paper.LOWER_RANK: over_runs(full - with_reparam, "numerical rank of attention, less σReparam's"),
    }
    result = Found({}, _settings(cells, weights="of the lowest validation error"), claims=claims)
    for name, words in (
        ("diagonal_mass", "diagonal mass of attention, {arm}"),
        ("numerical_rank", "numerical rank of attention, {arm}"),
        ("entropy", "entropy of attention, {arm}"),
    ):
        means(result, {arm: values for arm, values in by_arm(data, f"end_{name}").items() if _main(arm)}, words)
    return result


def nuclear_norms(request: Asked) -> Found:
    """Measure figure 7."""
    data = record("benchmarks")
    medians = data.assign(middle=data["end_nuclear_norm"].median("window"))
    cells = cells_of(data, "Transformer", "SAMformer")
    plain, with_reparam = pairs(medians, "middle", "Transformer", REPARAM)
    without, sam = pairs(medians, "middle", "Transformer", "SAMformer")
    of = "median nuclear norm over windows, less the other's"
    claims = {paper.NORM_LOWERED: over_runs(plain - with_reparam, of), paper.NORM_KEPT: over_runs(sam - without, of)}
    result = Found({}, _settings(cells, weights="of the lowest validation error"), claims=claims)
    means(result, {arm: v for arm, v in by_arm(medians, "middle").items() if _main(arm)}, "median nuclear norm, {arm}")
    return result


def reparam(request: Asked) -> Found:
    """Measure figure 8."""
    data = record("benchmarks")
    cells = cells_of(data, "SAMformer", REPARAM, BOTH)
    worse, sam = pairs(data, "test_mse", REPARAM, "SAMformer", cells)
    both, alone = pairs(data, "test_mse", BOTH, "SAMformer", cells)
    gain = np.log(both) - np.log(alone) + np.log(SAME_ERROR)
    claims = {
        paper.REPARAM_WORSE: over_runs(worse - sam, "error, less SAMformer's"),
        paper.NO_GAIN: over_runs(gain, "logarithm of the ratio of errors, and of 1.01"),
    }
    result = Found({}, _settings(cells), claims=claims)
    arms = {f"{name} {steps} {model}" for name, steps in cells for model in ("SAMformer", "Transformer", REPARAM, BOTH)}
    means(result, {arm: v for arm, v in by_arm(data, "test_mse").items() if arm in arms}, "MSE of {arm}")
    return result


def by_horizon(request: Asked) -> Found:
    """Measure figure 13."""
    data = record("benchmarks")
    cells = cells_of(data, "SAMformer")
    result = Found({}, _settings(cells))
    for name, steps in cells:
        words = paper.cell("MSE", "SAMformer", paper.NAMES.get(name, name), steps)
        means(result, {words: data["test_mse"].sel(arm=f"{name} {steps} SAMformer").dropna("seed").values}, "{arm}")
    return result


def radii(request: Asked) -> Found:
    """Measure figure 14."""
    data = record("radii")
    rho, errors = data["rho"].values, data["test_mse"]
    plain = errors.isel(arm=int(np.argmin(rho)))
    wide = errors.isel(arm=np.flatnonzero(rho >= RADIUS)).mean("arm", skipna=False)
    margins = (plain - wide).dropna("seed").values
    words = f"error of Adam, less the mean over radii from {RADIUS:g} on"
    verdict = judged([Part("", margins, words)], range(len(margins)), "seed")
    name, steps = str(data["arm"].values[0]).split(" ")[:2]
    models = {"models": "SAMformer", "seeds": str(len(margins))}
    result = Found({}, _settings([(name, int(steps))], **models), claims={paper.SAM_HELPS: verdict})
    means(result, by_arm(data, "test_mse"), "MSE, {arm}")
    return result


def ablation(model: str, beside: str, claim: str) -> Callable[[Asked], Found]:
    """Build the measure of table 9 or 10: errors of an ablation, and whether the complete model is better."""

    def measure(request: Asked) -> Found:
        data = record("benchmarks")
        cells = cells_of(data, model, beside)
        worse, whole = pairs(data, "test_mse", model, beside, cells)
        of = f"error, less that of {beside}"
        result = Found({}, _settings(cells), claims={claim: over_runs(worse - whole, of)})
        for name, steps in cells:
            for error in ("MSE", "MAE"):
                values = data[f"test_{error.lower()}"].sel(arm=f"{name} {steps} {model}").dropna("seed").values
                means(result, {paper.cell(error, model, paper.NAMES.get(name, name), steps): values}, "{arm}")
        result.settings["seeds"] = str(len(worse) // max(len(cells), 1))
        return result

    return measure


MEASURES_OF_TRAINED: dict[str, Callable[[Asked], Found]] = {
    "S1-F5": sharpness,
    "S1-F6": attention,
    "S1-F7": nuclear_norms,
    "S1-F8": reparam,
    "S1-F13": by_horizon,
    "S1-F14": radii,
    "S1-T9": ablation(paper.TEMPORAL, "Transformer", paper.CHANNELS_BETTER),
    "S1-T10": ablation(paper.IDENTITY, "SAMformer", paper.ATTENTION_BETTER),
}
