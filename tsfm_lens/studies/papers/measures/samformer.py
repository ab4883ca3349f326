"""Measures of the numbers of the paper on SAMformer, from shipped runs and by formulas.

The runs are records of the lab (:mod:`tsfm_lens.studies.experiments`); nothing is
trained here. One function an item, in three parts: the toy problem, benchmarks, and
printed numbers with propositions. Read :func:`toy` first for the first part and
:func:`pairs` for the second.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from io import StringIO
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.experiments.records import record
from tsfm_lens.studies.papers.context import (
    Context,
    MeasuredValues,
    describe_distance,
    describe_seeds,
    from_record,
    measure,
)
from tsfm_lens.studies.papers.items import PAPERS, find_item
from tsfm_lens.studies.papers.measures.planned import open_data
from tsfm_lens.studies.papers.over_seeds import compare, improvement
from tsfm_lens.studies.papers.values import by_name
from tsfm_lens.studies.papers.verdicts import (
    LEVEL,
    POSITIVE,
    UNDECIDED,
    ClaimPart,
    Tested,
    Verdict,
    judge_parts,
)
from tsfm_lens.studies.queue.driver import PLAN
from tsfm_lens.studies.samformer.models import oracle_loss

NEAR_ORACLE = 1.01
NEAR_ADAM = 1.05
TINY = 1e-12
RADIUS = 0.5
CHANNELS = 7
HORIZONS = (96, 192, 336, 720)
SEEDS = 5
REPARAM = "sigma reparam"
MAIN = ("Transformer", "SAMformer", REPARAM, "SAMformer sigma reparam")
NAMES = {"exchange": "Exchange"}
"""Names of benchmarks in the paper, by their names here."""
TRAINING = "Adam at 1e-3, batch 32, patience 5"

Cell = tuple[str, int]
"""Dataset, by its name in the paper, and horizon."""
Runs = dict[Cell, np.ndarray]
"""Values of a model's runs (seed,) by cell."""


class Printed(NamedTuple):
    """Mean over seeds and its standard deviation, NaN where the paper prints none."""

    mean: float
    std: float = math.nan


def _table(text: str) -> dict[str, dict[Any, Printed]]:
    """Parse a printed table by model and cell; a dash stands for no number."""
    table = pd.read_csv(StringIO(text), sep=" ", index_col=[0, 1], na_values="-")
    return {
        str(model): {
            cell: Printed(*map(float, str(number).split("±")))
            for cell, number in table[model].dropna().items()
        }
        for model in table
    }


TABLES = {name: _table(text) for name, text in PAPERS["samformer"]["tables"].items()}
"""Printed errors and radii, by table, model and cell."""
RUNS: dict[str, dict[str, Any]] = PAPERS["samformer"]["runs"]
"""How items are answered from runs on benchmarks."""


def parameter_count(
    length: int, horizon: int, channels: int, *, width: int = 16, bias: bool = False
) -> int:
    """Count trained numbers of SAMformer by the stated shapes.

    They are 4·L·d_m + L·H + 2·D, and the biases if ``bias``.
    """
    return (
        4 * length * width
        + length * horizon
        + 2 * channels
        + bias * (3 * width + length + horizon)
    )


def _add_means(result: MeasuredValues, quantity: str, values: xr.DataArray) -> None:
    """Add the mean over seeds of every arm, with its interval in the range."""
    for arm, of_seeds in by_name(values).items():
        data = arm.partition(" ")[0]
        features = PAPERS["samformer"]["datasets"].get(NAMES.get(data, data), {})
        channels = features.get("features", CHANNELS)
        # the most that a measure of attention can be
        highest = {
            "diagonal mass": 1.0,
            "numerical rank": channels,
            "nuclear norm": channels,
            "entropy": math.log(channels),
        }
        of_measure = (highest[name] for name in highest if name in quantity)
        bounds = (0.0, next(of_measure, math.inf))
        result.mean(quantity.format(arm), of_seeds, bounds)


# --- the toy problem ------------------------------------------------------------------


def _toy_result(data: xr.Dataset) -> MeasuredValues:
    settings = {
        "training pairs": "10,000",
        "optimiser": "Adam at 1e-2, falling by a half cosine",
        "epochs": data.attrs["epochs"],
        "seeds": describe_seeds(data, data["seconds"].notnull().sum("seed").min()),
        "intervals over": "seeds",
    }
    return MeasuredValues(settings=settings)


@from_record("S1-F1")
def toy() -> MeasuredValues:
    """Measure figures 1 and 2: errors at the end, and the oracle's expected one."""
    data = record("toy")
    result = _toy_result(data)
    errors = by_name(data["validation_mse"])
    oracle = oracle_loss(512, 70_000)
    limit = NEAR_ORACLE * oracle
    plain = errors["transformer"]
    result.add("oracle", oracle)
    result.judge("stuck", plain - limit, "error, less the oracle's and 1 %")
    reached = limit - errors["transformer + SAM"]
    result.judge("reaches", reached, "the oracle's error and 1 %, less the error")
    better = plain - errors["random transformer"]
    result.judge("random_better", better, "error of the transformer, less the other's")
    _add_means(result, "error of {}", data["validation_mse"])
    return result


@from_record("S1-F3")
def toy_sharpness() -> MeasuredValues:
    """Measure figure 3: sharpness and attention at the last look."""
    data = record("toy")
    result = _toy_result(data)
    last = data.isel(look=-1)
    sharpness = by_name(last["sharpness"])
    entropy = by_name(last["entropy"])
    compared = ("transformer", "transformer + SAM")
    plain, sam = (np.log(sharpness[arm]) for arm in compared)
    result.judge("sharper", plain - sam, "logarithm of the ratio of λ_max")
    of = "entropy in nats, less the other's"
    for arm in compared:
        result.judge(
            "lower_entropy", entropy[REPARAM] - entropy[arm], of, f"than {arm}"
        )
    result.add("entropy of even attention", np.log(CHANNELS))
    _add_means(result, "λ_max, {}", last["sharpness"])
    for name in ("entropy", "diagonal mass", "numerical rank"):
        _add_means(result, f"{name} of attention, {{}}", last[name.replace(" ", "_")])
    return result


@from_record("S1-F15")
def optimizers() -> MeasuredValues:
    """Measure figure 15."""
    data = record("optimizers")
    result = _toy_result(data)
    errors = by_name(data["validation_mse"])
    adam = np.log(errors["adam"])
    over = {arm: np.log(of_arm) - adam for arm, of_arm in errors.items()}
    for arm in ("adamw 1e-3", "sgd"):
        result.judge("unstable", over[arm], "logarithm of its error over Adam's", arm)
    of = "logarithm of 1.05, less that of the ratio to Adam's error"
    for arm in ("adamw 1e-5", "adamw 1e-4"):
        result.judge("same", np.log(NEAR_ADAM) - abs(over[arm]), of, arm)
    _add_means(result, "error of {}", data["validation_mse"])
    return result


# --- benchmarks -----------------------------------------------------------------------


def _split(arm: str) -> tuple[Cell, str]:
    """Return the cell and the model of an arm."""
    name, steps, model = arm.split(" ", 2)
    return (NAMES.get(name, name), int(steps)), model


def benchmark_runs() -> xr.Dataset:
    """Load the runs of the paper's models, and those of further ones."""
    return xr.concat(
        [record("samformer_runs"), record("benchmarks")],
        "arm",
        data_vars="all",
        join="outer",
        combine_attrs="override",
    )


def list_cells(data: xr.Dataset, *models: str) -> list[Cell]:
    """List data and horizons that all of these models were trained on."""
    arms = list(map(_split, data["arm"].values))
    cells = dict.fromkeys(cell for cell, _ in arms)
    return [cell for cell in cells if {*product([cell], models)} <= {*arms}]


def runs_of(values: xr.DataArray, model: str) -> Runs:
    """Return the values (seed,) of a model's runs by cell, NaN of those not ended."""
    arms = {_split(arm): of_arm for arm, of_arm in by_name(values).items()}
    return {cell: of_arm for (cell, of), of_arm in arms.items() if of == model}


def margins_by_data(
    data: xr.Dataset, name: str, models: tuple[str, str], margin: str
) -> dict[str, np.ndarray]:
    """Compare two models run by run, on each data set that both have.

    A margin is NaN where a run of either model did not end.
    """
    one, other = (runs_of(data[name], model) for model in models)
    margins: defaultdict[str, list[np.ndarray]] = defaultdict(list)
    for cell in list_cells(data, *models):
        margins[cell[0]].append(MARGINS[margin](one[cell], other[cell]))
    return {dataset: np.concatenate(of_data) for dataset, of_data in margins.items()}


def _by_data(
    data: xr.Dataset,
    name: str,
    models: tuple[str, str],
    of: str,
    margin: str = "logarithmic ratio",
    *,
    may_be_equal: bool = False,
) -> Verdict:
    """Test a claim about two models run by run, on each data set that both have.

    ``margin`` names the function of both models that is positive where the claim is
    true. A data set of which planned runs are open is a part without an outcome.
    """
    equal_within = may_be_equal * PLAN["samformer"]["equal_within"]
    waiting = open_data(*models)
    waiting = {NAMES.get(name, name): why for name, why in waiting.items()}
    margins = margins_by_data(data, name, models, margin)
    # what is open is a test among the others, without a result
    margins |= dict.fromkeys(waiting, np.zeros(1))
    parts = [
        ClaimPart("", of_data, of, data=dataset, equal_within=equal_within)
        for dataset, of_data in margins.items()
    ]
    verdict = judge_parts("run", *parts)
    tests = [
        Tested("", of, UNDECIDED, why=waiting[test.data], data=test.data)
        if test.data in waiting
        else test
        for test in verdict.parts
    ]
    return replace(verdict, parts=tuple(tests))


def _log_ratio(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the logarithm of the ratio of values; a flat λ_max may be 0 or less."""
    return np.log(np.maximum(one, TINY)) - np.log(np.maximum(other, TINY))


MARGINS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "difference": np.subtract,
    "logarithmic ratio": _log_ratio,
    "logarithmic ratio and that of 1.01": lambda one, other: (
        _log_ratio(one, other) + np.log(1.01)
    ),
}


def _name(quantity: str, cell: Cell) -> str:
    """Name a quantity of a cell."""
    return f"{quantity}, {cell[0]}, H = {cell[1]}"


def _result(cells: Iterable[Cell], **settings: str) -> MeasuredValues:
    return MeasuredValues(
        settings={
            "data": [f"{name} at {steps}" for name, steps in cells],
            "training": TRAINING,
            "intervals over": "seeds",
            **settings,
        }
    )


def answer(item: str, data: xr.Dataset) -> MeasuredValues:
    """Answer an item from runs as its entry in the paper's file says."""
    entry = {"claims": {}, "by_arm": {}, "by_cell": {}, "settings": {}, **RUNS[item]}
    cells = list_cells(data, *entry["cells"])
    result = _result(cells, **entry["settings"])
    result.claims = {
        claim: _by_data(data, **test) for claim, test in entry["claims"].items()
    }
    shown = select(data, cells, entry.get("shown", MAIN))
    for quantity, name in entry["by_arm"].items():
        _add_means(result, quantity, shown[name])
    runs = {
        quantity: runs_of(data[name], model)
        for quantity, (name, model) in entry["by_cell"].items()
    }
    for cell, (quantity, of_cells) in product(cells, runs.items()):
        result.mean(_name(quantity, cell), of_cells[cell], POSITIVE)
    return result


def select(
    data: xr.Dataset, cells: Iterable[Cell], models: Iterable[str]
) -> xr.Dataset:
    """Select the arms of these models in these cells."""
    wanted = {*product(cells, models)}
    arms = data["arm"].values
    return data.sel(arm=[arm for arm in arms if _split(arm) in wanted])


@from_record("S1-F5")
def sharpness() -> MeasuredValues:
    """Measure figures 5, 9 and 10: λ_max at the end, and errors' spread over seeds."""
    data = benchmark_runs()
    errors = data["test_mse"]
    # distances of errors from their mean over seeds
    deviation = abs(errors - errors.mean("seed"))
    result = answer("S1-F5", data.assign(deviation=deviation))
    models = ("SAMformer", "Transformer")
    deviations = {
        _name(f"deviation of the test MSE over seeds, {model}", cell): float(
            pd.Series(runs_of(errors, model)[cell]).std()
        )
        for cell, model in product(list_cells(data, *models), models)
    }
    result.values = deviations | result.values
    return result


@from_record("S1-F6", item="S1-F6", reduce=xr.Dataset.mean)
@from_record("S1-F7", item="S1-F7", reduce=xr.Dataset.median)
def attention(*, item: str, reduce: Callable[..., xr.Dataset]) -> MeasuredValues:
    """Measure figures 6, 7 and 12: attention at the end, reduced over windows."""
    return answer(item, reduce(benchmark_runs(), "window"))


@from_record("S1-F11")
def epoch_times() -> MeasuredValues:
    """Measure figure 11 by the processor time of runs, over their epochs."""
    data = record("samformer_runs")
    epochs = data["epochs"]
    cells = [
        f"{arm}, seed {seed}"
        for arm, seed in product(data["arm"].values, data["seed"].values)
    ]
    seconds = data["processor_seconds"].reindex(cell=cells).values
    times = seconds.reshape(epochs.shape) / epochs
    return answer("S1-F11", data.assign(epoch_seconds=times))


@from_record("S1-F8", item="S1-F8")
@from_record("S1-F13", item="S1-F13")
def errors_of(*, item: str) -> MeasuredValues:
    """Measure figures 8 and 13, errors of models."""
    return answer(item, benchmark_runs())


@from_record("S1-T9", item="S1-T9")
@from_record("S1-T10", item="S1-T10")
def ablation(*, item: str) -> MeasuredValues:
    """Measure errors of an ablation, and whether the complete model is better."""
    data = benchmark_runs()
    result = answer(item, data)
    entry = RUNS[item]
    shown = select(data, list_cells(data, *entry["cells"]), entry["shown"])
    counts = shown["test_mse"].notnull().sum("seed")
    result.settings["seeds"] = describe_seeds(data, counts)
    return result


@from_record("S1-F14")
def radii() -> MeasuredValues:
    """Measure figure 14."""
    cells = []
    seeds = []
    result = MeasuredValues()
    of = f"error of Adam, less the mean over radii from {RADIUS:g} on"
    for data in (record("samformer_radii"), record("radii")):
        _add_means(result, "MSE, {}", data["test_mse"])
        names = [_split(arm)[0][0] for arm in data["arm"].values]
        data = data.assign_coords(dataset=("arm", names))
        for name, of_data in data.groupby("dataset"):
            rho = of_data["rho"]
            test = of_data["test_mse"]
            # of the radii that a seed was trained with
            wide = test.where(rho >= RADIUS).mean("arm")
            margins = test.where(rho == 0).mean("arm") - wide
            cells.append((name, HORIZONS[0]))
            result.claim("sam_helps", ClaimPart("", margins.values, of, data=name))
            seeds.append(f"{name}: {describe_seeds(data, margins.notnull().sum())}")
    settings = _result(cells, models="SAMformer", seeds="; ".join(seeds)).settings
    return replace(result, settings=settings)


@from_record("S1-T1", error="MSE")
@from_record("S1-T6", error="MAE")
def benchmark_errors(*, error: str) -> MeasuredValues:
    """Measure tables 1 and 6, and compare with the printed errors by Welch's test."""
    data = benchmark_runs()
    name = f"test_{error.lower()}"
    settings = {
        "training": TRAINING,
        "intervals over": "seeds",
        "seeds": describe_seeds(data, data[name].notnull().sum("seed")),
    }
    result = MeasuredValues(settings=settings)
    for arm, of_seeds in by_name(data[name]).items():
        cell, model = _split(arm)
        text = _name(f"{error} of {model}", cell)
        values = of_seeds[np.isfinite(of_seeds)]
        result.mean(text, values, POSITIVE)
        # arms with fixed RevIN or released draws are compared with the printed errors
        # of the model itself
        model = model.removesuffix(" fixed RevIN").removesuffix(" released draws")
        theirs = TABLES[error].get(model, {}).get(cell)
        if theirs is None or len(values) < 2 or not np.isfinite(theirs.std):
            continue
        ours = float(values.mean()), float(values.std(ddof=1))
        comparison = compare(ours, theirs, n=len(values), n_second=SEEDS)
        deviations = comparison.difference / np.hypot(ours[1], theirs.std)
        result.add(f"difference in standard deviations of both: {text}", deviations)
        result.add(f"p of Welch's test: {text}", comparison.welch)
    item = find_item("S1-T1" if error == "MSE" else "S1-T6")
    result.claims = {
        claim: _by_data(data, **test) for claim, test in RUNS[item.id]["claims"].items()
    }
    for value in item.values:
        if value.key not in result.claims:
            # a cell that was not trained
            result.values.setdefault(value.quantity, np.nan)
    return result


# --- printed numbers and propositions -------------------------------------------------


@measure("S1-IMP")
def improvements(context: Context) -> MeasuredValues:
    """Recompute overall improvements from the printed cells."""
    result = MeasuredValues(settings={"formula": "100 (1 − Σ / Σ) over common cells"})
    for error in ("MSE", "MAE"):
        means = {
            model: {cell: printed.mean for cell, printed in cells.items()}
            for model, cells in TABLES[error].items()
        }
        for model in list(means)[1:]:
            result.add(
                f"improvement over {model}, {error}",
                improvement(means["SAMformer"], means[model]),
            )
    return result


@measure("S1-T7")
def significant(context: Context) -> MeasuredValues:
    """Test table 7 by both t-tests on the printed means and deviations."""
    ours, theirs = (TABLES["MSE"][model] for model in ("SAMformer", "TSMixer+SAM"))
    tests = [compare(ours[cell], theirs[cell]) for cell in ours]
    text = "cells where neither is"
    values = {
        text: sum(test.pooled >= LEVEL for test in tests),
        f"{text}, by Welch's test": sum(test.welch >= LEVEL for test in tests),
    }
    return MeasuredValues(
        values, {"test": f"pooled, p below {LEVEL:g}; Welch's beside it"}
    )


@measure("S1-T8")
def parameters(context: Context) -> MeasuredValues:
    """Count parameters by the stated sizes."""
    counts = {
        f"parameters of SAMformer, H = {h}": parameter_count(512, h, CHANNELS)
        for h in HORIZONS
    }
    return MeasuredValues(counts, {"sizes": "L = 512, D = 7, d_m = 16, no biases"})


@measure("S1-P4", draws=500)
def readouts(context: Context) -> MeasuredValues:
    """Check proposition 4 against the residual of the best readout."""
    rng = np.random.default_rng(context.seed)
    misses = 0
    of_rank = 0
    for draw in range(context.draws):
        channels = 5
        rank = 5 if draw % 2 else int(rng.integers(1, 5))
        tokens = rng.normal(size=(channels, rank)) @ rng.normal(size=(rank, 12))
        if draw % 3:
            target = rng.normal(size=(channels, 3))
        else:
            target = tokens @ rng.normal(size=(12, 3))
        residual = np.linalg.norm(
            tokens @ rank_theory.optimal_readout(tokens, target) - target
        )
        misses += rank_theory.readout_exists(tokens, target) != (
            residual / np.linalg.norm(target) < 1e-8
        )
        of_rank += rank == channels
    values = {"missed": misses, "draws of full rank": of_rank}
    return MeasuredValues(values, {"draws": context.draws})


@measure("S1-P5", draws=500)
def nuclear_bound(context: Context) -> MeasuredValues:
    """Check proposition 5 on symmetric positive forms."""
    rng = np.random.default_rng(context.seed)
    shares = []
    for _ in range(context.draws):
        x = rng.normal(size=(7, 20))
        queries = rng.normal(size=(20, 4))
        bound = rank_theory.nuclear_norm_bound(x, queries, queries)
        shares.append(rank_theory.nuclear_norm(x @ queries @ queries.T @ x.T) / bound)
    values = {
        "violations": np.sum(np.array(shares) > 1 + 1e-12),
        "largest share of the bound": max(shares),
    }
    return MeasuredValues(values, {"draws": context.draws})


@measure("S1-P9", draws=100)
def revin(context: Context) -> MeasuredValues:
    """Check proposition 9 against the pipeline."""
    rng = np.random.default_rng(context.seed)
    largest = 0.0
    for _ in range(context.draws):
        x = rng.normal(size=(3, 16)) + 5
        weight = rng.normal(size=(16, 4))
        gamma = rng.uniform(0.5, 2, 3)
        beta = rng.normal(size=3)
        mean = x.mean(1, keepdims=True)
        spread = np.sqrt(x.var(1, keepdims=True) + 1e-5)
        normal = gamma[:, None] * (x - mean) / spread + beta[:, None]
        full = (normal @ weight - beta[:, None]) / gamma[:, None] * spread + mean
        closed = rank_theory.revin_linear(x, weight, gamma, beta)
        largest = max(largest, float(np.abs(closed - full).max() / np.abs(full).max()))
    return describe_distance(context, largest, 1e-12)
