"""Measures of the numbers of the paper on SAMformer, on runs of the lab whose results ship and by formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import xarray as xr

from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.experiments import record
from tsfm_lens.studies.papers import items_samformer as paper
from tsfm_lens.studies.papers import values_samformer as tables
from tsfm_lens.studies.papers.measures_samformer_trained import MEASURES_OF_TRAINED, by_arm, means
from tsfm_lens.studies.papers.measuring import Asked, Found
from tsfm_lens.studies.papers.over_seeds import compare, improvement
from tsfm_lens.studies.papers.verdicts import LEVEL, Part, Verdict, judged
from tsfm_lens.studies.samformer import oracle_loss

DRAWS = 500
NEAR_ORACLE, NEAR_ADAM = 1.01, 1.05
CHANNELS = 7


def _judge(*parts: tuple[str, np.ndarray, str]) -> Verdict:
    """Test a claim by its parts: words, margins by seed, and what these are."""
    return judged([Part(*part) for part in parts], range(len(parts[0][1])), "seed")


def _settings(data: xr.Dataset) -> dict[str, str]:
    seeds = int(data["seconds"].notnull().sum("seed").min())
    return {
        "training pairs": "10,000",
        "optimiser": "Adam at 1e-2, falling by a half cosine",
        "epochs": str(data.attrs["epochs"]),
        "seeds": str(seeds),
        "intervals over": "seeds",
    }


def toy(request: Asked) -> Found:
    """Measure figures 1 and 2: errors at the end, beside the oracle's expected one."""
    data = record("toy")
    errors, oracle = by_arm(data, "validation_mse"), oracle_loss(512, 70_000)
    plain, sam, random = (errors[name] for name in ("transformer", "transformer + SAM", "random transformer"))
    both, limit = min(len(plain), len(random)), NEAR_ORACLE * oracle
    claims = {
        paper.STUCK: _judge(("", plain - limit, "error, less the oracle's and 1 %")),
        paper.REACHES: _judge(("", limit - sam, "the oracle's error and 1 %, less the error")),
        paper.RANDOM_BETTER: _judge(("", plain[:both] - random[:both], "error of the transformer, less the other's")),
    }
    result = Found({paper.ORACLE: oracle}, _settings(data), claims=claims)
    means(result, errors, "error of {arm}")
    return result


def sharpness(request: Asked) -> Found:
    """Measure figure 3: sharpness and attention at the last look."""
    data = record("toy")
    last = data.isel(look=-1)
    words = {
        "sharpness": "λ_max, {arm}",
        "entropy": "entropy of attention, {arm}",
        "diagonal_mass": "diagonal mass of attention, {arm}",
        "numerical_rank": "numerical rank of attention, {arm}",
    }
    lambda_max, entropy = by_arm(last, "sharpness"), by_arm(last, "entropy")
    both = min(len(lambda_max["transformer"]), len(lambda_max["transformer + SAM"]))
    sharper = np.log(lambda_max["transformer"][:both]) - np.log(lambda_max["transformer + SAM"][:both])
    fewest = min(map(len, entropy.values()))
    of = "entropy in nats, less the other's"
    highest = [
        (f"than {arm}", entropy["sigma reparam"][:fewest] - entropy[arm][:fewest], of)
        for arm in ("transformer", "transformer + SAM")
    ]
    claims = {
        paper.SHARPER: _judge(("", sharper, "logarithm of the ratio of λ_max")),
        paper.LOWER_ENTROPY: _judge(*highest),
    }
    result = Found({"entropy of even attention": float(np.log(CHANNELS))}, _settings(data), claims=claims)
    for name, text in words.items():
        means(result, by_arm(last, name), text)
    return result


def optimizers(request: Asked) -> Found:
    """Measure figure 15."""
    data = record("optimizers")
    errors = by_arm(data, "validation_mse")
    count = min(map(len, errors.values()))
    logs = {arm: np.log(of_seeds[:count]) for arm, of_seeds in errors.items()}
    over = {arm: of_seeds - logs["adam"] for arm, of_seeds in logs.items()}
    worse = [(arm, over[arm], "logarithm of its error over Adam's") for arm in ("adamw 1e-3", "sgd")]
    of = "logarithm of 1.05, less that of the ratio to Adam's error"
    near = [(arm, np.log(NEAR_ADAM) - np.abs(over[arm]), of) for arm in ("adamw 1e-5", "adamw 1e-4")]
    claims = {paper.UNSTABLE: _judge(*worse), paper.SAME: _judge(*near)}
    result = Found({}, _settings(data), claims=claims)
    means(result, errors, "error of {arm}")
    return result


def _errors(error: str, table: Mapping[str, Mapping[tables.Cell, tables.Printed]]) -> Callable[[Asked], Found]:
    def measure(request: Asked) -> Found:
        data = record("benchmarks")
        result = Found({}, {"training": "Adam at 1e-3, batch 32, patience 5", "intervals over": "seeds"})
        seeds = set()
        for arm, values in by_arm(data, f"test_{error.lower()}").items():
            name, horizon, model = arm.split(" ", 2)
            place = paper.NAMES.get(name, name), int(horizon)
            words = paper.cell(error, model, *place)
            means(result, {words: values}, "{arm}")
            seeds.add(len(values))
            # the arm with fixed RevIN is compared with the printed errors of the model itself
            theirs = table.get(model.removesuffix(" fixed RevIN"), {}).get(place)
            if theirs is None or len(values) < 2 or not np.isfinite(theirs.std):
                continue
            ours = float(values.mean()), float(values.std(ddof=1))
            beside = compare(ours, (theirs.mean, theirs.std), n=len(values), n_second=tables.SEEDS)
            both = np.hypot(values.std(ddof=1), theirs.std)
            result.values[f"difference in standard deviations of both: {words}"] = beside.difference / both
            result.values[f"p of Welch's test: {words}"] = beside.welch
        result.settings["seeds"] = " to ".join(map(str, sorted({min(seeds), max(seeds)})))
        for words in _cell_names(error):
            result.values.setdefault(words, np.nan)
        return result

    return measure


def _cell_names(error: str) -> list[str]:
    return [paper.cell(error, model, *place) for place in paper.TRAINED for model in paper.TRAINED_MODELS]


def improvements(request: Asked) -> Found:
    """Recompute overall improvements from the printed cells."""
    values = {}
    for error, table in (("MSE", tables.MSE), ("MAE", tables.MAE)):
        ours = {place: cell.mean for place, cell in table["SAMformer"].items()}
        for model in tables.IMPROVEMENT:
            theirs = {place: cell.mean for place, cell in table[model].items()}
            values[paper.IMPROVES.format(model=model, error=error)] = improvement(ours, theirs)
    return Found(values, {"formula": "100 (1 − Σ / Σ) over common cells"})


def significant(request: Asked) -> Found:
    """Test table 7 by both t-tests on the printed means and deviations."""
    cells = [
        [(table[place].mean, table[place].std) for table in (tables.MSE["SAMformer"], tables.MSE["TSMixer+SAM"])]
        for place in tables.MSE["SAMformer"]
    ]
    pairs = [compare(*pair) for pair in cells]
    values = {
        "cells where neither is": float(sum(each.pooled >= LEVEL for each in pairs)),
        "cells where neither is, by Welch's test": float(sum(each.welch >= LEVEL for each in pairs)),
    }
    return Found(values, {"test": f"pooled, p below {LEVEL:g}; Welch's beside it"})


def parameters(request: Asked) -> Found:
    """Count parameters by the stated sizes."""
    return Found(
        {
            paper.COUNT.format(model="SAMformer", horizon=horizon): float(tables.parameter_count(512, horizon, 7))
            for horizon in tables.HORIZONS
        },
        {"sizes": "L = 512, D = 7, d_m = 16, no biases"},
    )


def readouts(request: Asked) -> Found:
    """Check proposition 4 against the residual of the best readout."""
    rng, misses, of_rank = np.random.default_rng(request.seed), 0, 0
    for draw in range(request.seeds or DRAWS):
        channels, rank = 5, 5 if draw % 2 else int(rng.integers(1, 5))
        tokens = rng.normal(size=(channels, rank)) @ rng.normal(size=(rank, 12))
        target = rng.normal(size=(channels, 3)) if draw % 3 else tokens @ rng.normal(size=(12, 3))
        residual = np.linalg.norm(tokens @ rank_theory.optimal_readout(tokens, target) - target) / np.linalg.norm(
            target
        )
        misses += rank_theory.readout_exists(tokens, target) != (residual < 1e-8)
        of_rank += rank == channels
    return Found(
        {paper.MISSED: float(misses), "draws of full rank": float(of_rank)}, {"draws": str(request.seeds or DRAWS)}
    )


def nuclear(request: Asked) -> Found:
    """Check proposition 5 on symmetric positive forms."""
    rng, above, nearest = np.random.default_rng(request.seed), 0, 0.0
    for _ in range(request.seeds or DRAWS):
        x, queries = rng.normal(size=(7, 20)), rng.normal(size=(20, 4))
        share = rank_theory.nuclear_norm(x @ queries @ queries.T @ x.T) / rank_theory.nuclear_norm_bound(
            x, queries, queries
        )
        above, nearest = above + (share > 1 + 1e-12), max(nearest, share)
    return Found(
        {paper.VIOLATIONS: float(above), "largest share of the bound": nearest}, {"draws": str(request.seeds or DRAWS)}
    )


def revin(request: Asked) -> Found:
    """Check proposition 9 against the pipeline."""
    rng, apart = np.random.default_rng(request.seed), 0.0
    for _ in range(request.seeds or 100):
        x, weight = rng.normal(size=(3, 16)) + 5, rng.normal(size=(16, 4))
        gamma, beta = rng.uniform(0.5, 2, 3), rng.normal(size=3)
        mean, spread = x.mean(1, keepdims=True), np.sqrt(x.var(1, keepdims=True) + 1e-5)
        normal = gamma[:, None] * (x - mean) / spread + beta[:, None]
        whole = (normal @ weight - beta[:, None]) / gamma[:, None] * spread + mean
        apart = max(
            apart, float(np.abs(rank_theory.revin_linear(x, weight, gamma, beta) - whole).max() / np.abs(whole).max())
        )
    return Found(
        {paper.APART: 0.0 if apart < 1e-12 else apart, "the same, as it is": apart},
        {"draws": str(request.seeds or 100)},
    )


MEASURES_OF_SAMFORMER: dict[str, Callable[[Asked], Found]] = {
    "S1-F1": toy,
    "S1-F3": sharpness,
    "S1-F15": optimizers,
    "S1-IMP": improvements,
    "S1-P4": readouts,
    "S1-P5": nuclear,
    "S1-P9": revin,
    "S1-T1": _errors("MSE", tables.MSE),
    "S1-T6": _errors("MAE", tables.MAE),
    "S1-T7": significant,
    "S1-T8": parameters,
    **MEASURES_OF_TRAINED,
}
