"""Measures of the numbers of the paper on SAMformer, from shipped runs and by formulas.

The runs are records of the lab (:mod:`tsfm_lens.studies.experiments`); nothing is
trained here. One function an item, in three parts: the toy problem, benchmarks, and
printed numbers with propositions. Read :func:`toy` first for the first part and
:func:`pairs` for the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import xarray as xr

from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.experiments.records import record
from tsfm_lens.studies.papers.context import (
    Context,
    MeasuredValues,
    describe_seeds,
    from_record,
    measure,
)
from tsfm_lens.studies.papers.items import BY_ID, PAPERS
from tsfm_lens.studies.papers.measures.planned import open_data
from tsfm_lens.studies.papers.over_seeds import compare, improvement
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

DRAWS = 500
NEAR_ORACLE = 1.01
NEAR_ADAM = 1.05
SAME_ERROR = 1.01
TINY = 1e-12
RADIUS = 0.5
CHANNELS = 7
HORIZONS = (96, 192, 336, 720)
SEEDS = 5
REPARAM = "sigma reparam"
BOTH = "SAMformer sigma reparam"
INPUTS = "sigma reparam inputs"
MAIN = ("Transformer", "SAMformer", REPARAM, BOTH)
NAMES = {"exchange": "Exchange"}
"""Names of benchmarks in the paper, by their names here."""
TRAINING = "Adam at 1e-3, batch 32, patience 5"

Cell = tuple[str, int]
"""Dataset and horizon."""


class Printed(NamedTuple):
    """Mean over seeds and its standard deviation, NaN where the paper prints none."""

    mean: float
    std: float = math.nan


def _table(text: str) -> dict[str, dict[Cell, Printed]]:
    """Parse a printed table by model and cell; a dash stands for no number."""
    (_, _, *models), *rows = (line.split() for line in text.splitlines())
    table: dict[str, dict[Cell, Printed]] = {model: {} for model in models}
    for dataset, horizon, *numbers in rows:
        for model, number in zip(models, numbers, strict=True):
            if number != "-":
                table[model][dataset, int(horizon)] = Printed(
                    *map(float, number.split("±"))
                )
    return table


TABLES = {name: _table(text) for name, text in PAPERS["samformer"]["tables"].items()}
"""Printed errors and radii, by table, model and cell."""


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


def by_arm(data: xr.Dataset, name: str) -> dict[str, np.ndarray]:
    """Split a variable by arm, over the seeds that have a value."""
    return {
        str(arm): data[name].sel(arm=arm).dropna("seed").values
        for arm in data["arm"].values
    }


# by measure of attention, the most that it can be with a number of channels
HIGHEST: dict[str, Callable[[int], float]] = {
    "diagonal mass": lambda channels: 1.0,
    "numerical rank": float,
    "nuclear norm": float,
    "entropy": math.log,
}


def _add_means(
    result: MeasuredValues, values: Mapping[str, np.ndarray], quantity: str
) -> None:
    """Add the mean over seeds of every arm, with its interval in the range."""
    highest = next(
        (HIGHEST[name] for name in HIGHEST if name in quantity), lambda _: math.inf
    )
    for arm, of_seeds in values.items():
        data = arm.split(" ", 1)[0]
        features = PAPERS["samformer"]["datasets"].get(NAMES.get(data, data), {})
        bounds = (0.0, highest(features.get("features", CHANNELS)))
        result.mean(quantity.format(arm=arm), of_seeds, bounds=bounds)


# --- the toy problem ------------------------------------------------------------------


def _over_seeds(*parts: tuple[str, np.ndarray, str]) -> Verdict:
    """Test a claim by its parts: text, margins by seed, and what the margins are."""
    return judge_parts("seed", *(ClaimPart(*part) for part in parts))


def _toy_settings(data: xr.Dataset) -> dict[str, str]:
    return {
        "training pairs": "10,000",
        "optimiser": "Adam at 1e-2, falling by a half cosine",
        "epochs": str(data.attrs["epochs"]),
        "seeds": describe_seeds(data, int(data["seconds"].notnull().sum("seed").min())),
        "intervals over": "seeds",
    }


@from_record("S1-F1")
def toy() -> MeasuredValues:
    """Measure figures 1 and 2: errors at the end, and the oracle's expected one."""
    data = record("toy")
    errors = by_arm(data, "validation_mse")
    oracle = oracle_loss(512, 70_000)
    plain, sam, random = (
        errors[name]
        for name in ("transformer", "transformer + SAM", "random transformer")
    )
    both = min(len(plain), len(random))
    limit = NEAR_ORACLE * oracle
    better = plain[:both] - random[:both]
    statements = {
        "stuck": _over_seeds(("", plain - limit, "error, less the oracle's and 1 %")),
        "reaches": _over_seeds(
            ("", limit - sam, "the oracle's error and 1 %, less the error")
        ),
        "random_better": _over_seeds(
            ("", better, "error of the transformer, less the other's")
        ),
    }
    result = MeasuredValues({"oracle": oracle}, _toy_settings(data), claims=statements)
    _add_means(result, errors, "error of {arm}")
    return result


@from_record("S1-F3")
def toy_sharpness() -> MeasuredValues:
    """Measure figure 3: sharpness and attention at the last look."""
    data = record("toy")
    last = data.isel(look=-1)
    lambda_max = by_arm(last, "sharpness")
    entropy = by_arm(last, "entropy")
    both = min(len(lambda_max["transformer"]), len(lambda_max["transformer + SAM"]))
    sharper = np.log(lambda_max["transformer"][:both]) - np.log(
        lambda_max["transformer + SAM"][:both]
    )
    fewest = min(map(len, entropy.values()))
    highest = [
        (
            f"than {arm}",
            entropy[REPARAM][:fewest] - entropy[arm][:fewest],
            "entropy in nats, less the other's",
        )
        for arm in ("transformer", "transformer + SAM")
    ]
    statements = {
        "sharper": _over_seeds(("", sharper, "logarithm of the ratio of λ_max")),
        "lower_entropy": _over_seeds(*highest),
    }
    entropy_values = {"entropy of even attention": float(np.log(CHANNELS))}
    result = MeasuredValues(entropy_values, _toy_settings(data), claims=statements)
    _add_means(result, lambda_max, "λ_max, {arm}")
    for name in ("entropy", "diagonal mass", "numerical rank"):
        _add_means(
            result, by_arm(last, name.replace(" ", "_")), name + " of attention, {arm}"
        )
    return result


@from_record("S1-F15")
def optimizers() -> MeasuredValues:
    """Measure figure 15."""
    data = record("optimizers")
    errors = by_arm(data, "validation_mse")
    count = min(map(len, errors.values()))
    over = {
        arm: np.log(of_seeds[:count]) - np.log(errors["adam"][:count])
        for arm, of_seeds in errors.items()
    }
    worse = [
        (arm, over[arm], "logarithm of its error over Adam's")
        for arm in ("adamw 1e-3", "sgd")
    ]
    margin = "logarithm of 1.05, less that of the ratio to Adam's error"
    near = [
        (arm, np.log(NEAR_ADAM) - np.abs(over[arm]), margin)
        for arm in ("adamw 1e-5", "adamw 1e-4")
    ]
    statements = {"unstable": _over_seeds(*worse), "same": _over_seeds(*near)}
    result = MeasuredValues(settings=_toy_settings(data), claims=statements)
    _add_means(result, errors, "error of {arm}")
    return result


# --- benchmarks -----------------------------------------------------------------------


def benchmark_runs() -> xr.Dataset:
    """Load the runs of the queue, and further models of the record made before it."""
    runs = record("samformer_runs")
    earlier = record("benchmarks")
    models = {str(arm).split(" ", 2)[2] for arm in runs["arm"].values}
    more = [
        arm for arm in earlier["arm"].values if str(arm).split(" ", 2)[2] not in models
    ]
    if not more:
        return runs
    # a seed that both have is the same training
    return xr.concat(
        [runs, earlier.sel(arm=more)],
        "arm",
        data_vars="all",
        join="outer",
        combine_attrs="override",
    )


def list_cells(data: xr.Dataset, *models: str) -> list[Cell]:
    """List data and horizons that all of these models were trained on."""
    arms = [str(arm).split(" ", 2) for arm in data["arm"].values]
    available = {tuple(arm) for arm in arms}
    cells = dict.fromkeys((name, horizon) for name, horizon, _ in arms)
    return [
        (name, int(steps))
        for name, steps in cells
        if {(name, steps, model) for model in models} <= available
    ]


def pairs(
    data: xr.Dataset,
    name: str,
    first: str,
    second: str,
    cells: Iterable[Cell] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Pair a variable of two models by runs of the same data, horizon and seed.

    Only runs that both models finished are paired.
    """
    # an empty column, because a record may have no cell of both models
    columns = [np.zeros((2, 0), data[name].dtype)]
    for dataset, steps in list_cells(data, first, second) if cells is None else cells:
        both = np.array(
            [
                data[name].sel(arm=f"{dataset} {steps} {model}").values
                for model in (first, second)
            ]
        )
        columns.append(both[:, np.isfinite(both).all(axis=0)])
    one, other = np.concatenate(columns, axis=1)
    return one, other


def _by_data(
    data: xr.Dataset,
    name: str,
    models: tuple[str, str],
    margin: Callable[[np.ndarray, np.ndarray], np.ndarray],
    of: str,
    equal_within: float = 0.0,
) -> Verdict:
    """Test a claim about two models run by run, on each data set that both have.

    ``margin`` takes the values of both models, and is positive where it is true. A data
    set of which planned runs are open is a part without an outcome.
    """
    cells = list_cells(data, *models)
    waiting = open_data(*models)
    parts = []
    for dataset in dict.fromkeys([*(dataset for dataset, _ in cells), *waiting]):
        of_data = [cell for cell in cells if cell[0] == dataset]
        margins = margin(*pairs(data, name, *models, of_data))
        if dataset in waiting:
            # it is a test among the others, without a result
            margins = np.zeros(1)
        label = NAMES.get(dataset, dataset)
        parts.append(ClaimPart("", margins, of, data=label, equal_within=equal_within))
    verdict = judge_parts("run", *parts or [ClaimPart("", np.empty(0), of)])
    why = {NAMES.get(dataset, dataset): text for dataset, text in waiting.items()}
    tests = [
        Tested("", of, UNDECIDED, why=why[test.data], data=test.data)
        if test.data in why
        else test
        for test in verdict.parts
    ]
    return replace(verdict, parts=tuple(tests))


def _log_ratio(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the logarithm of the ratio of values; a flat λ_max may be 0 or less."""
    return np.log(np.maximum(one, TINY)) - np.log(np.maximum(other, TINY))


def _name(quantity: str, cell: Cell) -> str:
    """Name a quantity of a cell, by the dataset's name in the paper."""
    return f"{quantity}, {NAMES.get(cell[0], cell[0])}, H = {cell[1]}"


def _result(
    cells: Iterable[Cell], claims: dict[str, Verdict] | None = None, **settings: str
) -> MeasuredValues:
    data = ", ".join(f"{NAMES.get(name, name)} at {steps}" for name, steps in cells)
    settings = {
        "data": data,
        "training": TRAINING,
        "intervals over": "seeds",
        **settings,
    }
    return MeasuredValues(settings=settings, claims=claims or {})


def _of_seeds(data: xr.Dataset, name: str, cell: Cell, model: str) -> np.ndarray:
    """Return the values of a model's runs that ended."""
    return data[name].sel(arm=f"{cell[0]} {cell[1]} {model}").dropna("seed").values


def _main_arms(data: xr.Dataset, name: str) -> dict[str, np.ndarray]:
    return {
        arm: values
        for arm, values in by_arm(data, name).items()
        if arm.split(" ", 2)[2] in MAIN
    }


@from_record("S1-F5")
def sharpness() -> MeasuredValues:
    """Measure figures 5, 9 and 10: λ_max at the end, and errors' spread over seeds."""
    data = benchmark_runs()
    cells = list_cells(data, "Transformer", "SAMformer")
    models = ("Transformer", "SAMformer")
    # distances of errors from their mean over seeds
    deviations = abs(data["test_mse"] - data["test_mse"].mean("seed"))
    statements = {
        "sharper_trained": _by_data(
            data, "end_sharpness", models, _log_ratio, "logarithm of the ratio of λ_max"
        ),
        "steadier": _by_data(
            data.assign(deviation=deviations),
            "deviation",
            models,
            np.subtract,
            "distance from the mean over seeds, less SAMformer's",
        ),
    }
    result = _result(cells, statements, weights="of the lowest validation error")
    for cell in cells:
        for model in ("SAMformer", "Transformer"):
            values = _of_seeds(data, "test_mse", cell, model)
            text = _name(f"deviation of the test MSE over seeds, {model}", cell)
            result.add(text, values.std(ddof=1) if len(values) > 1 else np.nan)
    _add_means(result, _main_arms(data, "end_sharpness"), "λ_max, {arm}")
    return result


@from_record("S1-F6")
def attention() -> MeasuredValues:
    """Measure figures 6 and 12."""
    data = benchmark_runs().mean("window")
    statements = {
        "diagonal": _by_data(
            data,
            "end_diagonal_mass",
            ("SAMformer", "Transformer"),
            np.subtract,
            "diagonal mass of attention, less the transformer's",
        ),
        "lower_rank": _by_data(
            data,
            "end_numerical_rank",
            ("Transformer", REPARAM),
            np.subtract,
            "numerical rank of attention, less σReparam's",
        ),
    }
    cells = list_cells(data, "Transformer", "SAMformer")
    result = _result(cells, statements, weights="of the lowest validation error")
    for name in ("diagonal mass", "numerical rank", "entropy"):
        _add_means(
            result,
            _main_arms(data, f"end_{name.replace(' ', '_')}"),
            name + " of attention, {arm}",
        )
    return result


@from_record("S1-F7")
def nuclear_norms() -> MeasuredValues:
    """Measure figure 7."""
    data = benchmark_runs()
    data = data.assign(middle=data["end_nuclear_norm"].median("window"))
    margin = "median nuclear norm over windows, less the other's"
    statements = {
        claim: _by_data(data, "middle", models, np.subtract, margin)
        for claim, models in (
            ("norm_lowered", ("Transformer", REPARAM)),
            ("norm_kept", ("SAMformer", "Transformer")),
        )
    }
    cells = list_cells(data, "Transformer", "SAMformer")
    result = _result(cells, statements, weights="of the lowest validation error")
    _add_means(result, _main_arms(data, "middle"), "median nuclear norm, {arm}")
    return result


@from_record("S1-F8")
def reparam_errors() -> MeasuredValues:
    """Measure figure 8."""
    data = benchmark_runs()
    cells = list_cells(data, "SAMformer", REPARAM, BOTH)
    statements = {
        "reparam_worse": _by_data(
            data,
            "test_mse",
            (REPARAM, "SAMformer"),
            np.subtract,
            "error, less SAMformer's",
        ),
        "no_gain": _by_data(
            data,
            "test_mse",
            (BOTH, "SAMformer"),
            lambda both, alone: _log_ratio(both, alone) + np.log(SAME_ERROR),
            "logarithm of the ratio of errors, and of 1.01",
        ),
    }
    result = _result(cells, statements)
    arms = {
        f"{name} {steps} {model}" for name, steps in cells for model in (*MAIN, INPUTS)
    }
    _add_means(
        result,
        {arm: v for arm, v in by_arm(data, "test_mse").items() if arm in arms},
        "MSE of {arm}",
    )
    return result


@from_record("S1-F11")
def epoch_times() -> MeasuredValues:
    """Measure figure 11 by the processor time of runs, over their epochs."""
    data = record("samformer_runs")
    seconds = xr.full_like(data["epochs"], np.nan)
    for cell, of_run in data["processor_seconds"].to_series().items():
        arm, _, seed = str(cell).rpartition(", seed ")
        seconds.loc[{"arm": arm, "seed": int(seed)}] = of_run
    data = data.assign(epoch_seconds=seconds / data["epochs"])
    models = (BOTH, "SAMformer")
    claim = _by_data(
        data, "epoch_seconds", models, _log_ratio, "logarithm of the ratio of times"
    )
    cells = list_cells(data, *models)
    result = _result(cells, {"slower": claim}, device="CPU, one thread")
    for cell in cells:
        for model in models:
            result.mean(
                _name(f"processor seconds of an epoch, {model}", cell),
                _of_seeds(data, "epoch_seconds", cell, model),
                bounds=POSITIVE,
            )
    return result


@from_record("S1-F13")
def by_horizon() -> MeasuredValues:
    """Measure figure 13."""
    data = benchmark_runs()
    cells = list_cells(data, "SAMformer")
    result = _result(cells)
    for cell in cells:
        result.mean(
            _name("MSE of SAMformer", cell),
            _of_seeds(data, "test_mse", cell, "SAMformer"),
            bounds=POSITIVE,
        )
    return result


@from_record("S1-F14")
def radii() -> MeasuredValues:
    """Measure figure 14."""
    parts = []
    cells = []
    seeds = []
    errors: dict[str, np.ndarray] = {}
    for data in (record("samformer_radii"), record("radii")):
        errors |= by_arm(data, "test_mse")
        arms = {str(arm): str(arm).split(" ")[0] for arm in data["arm"].values}
        for name in dict.fromkeys(arms.values()):
            of_data = data.sel(arm=[arm for arm in arms if arms[arm] == name])
            rho = of_data["rho"]
            test = of_data["test_mse"]
            # of the radii that a seed was trained with
            wide = test.where(rho >= RADIUS).mean("arm")
            margins = (test.where(rho == 0).mean("arm") - wide).dropna("seed").values
            label = NAMES.get(name, name)
            of = f"error of Adam, less the mean over radii from {RADIUS:g} on"
            parts.append(ClaimPart("", margins, of, data=label))
            cells.append((name, HORIZONS[0]))
            seeds.append(f"{label}: {describe_seeds(data, len(margins))}")
    result = _result(
        cells,
        {"sam_helps": judge_parts("seed", *parts)},
        models="SAMformer",
        seeds="; ".join(seeds),
    )
    _add_means(result, errors, "MSE, {arm}")
    return result


@from_record(
    "S1-T9", model="temporal attention", beside="Transformer", equal_within=0.0
)
@from_record(
    "S1-T10",
    model="identity attention",
    beside="SAMformer",
    equal_within=PLAN["samformer"]["equal_within"],
)
def ablation(*, model: str, beside: str, equal_within: float) -> MeasuredValues:
    """Measure errors of an ablation, and whether the complete model is better."""
    data = benchmark_runs()
    cells = list_cells(data, model, beside)
    claim = _by_data(
        data,
        "test_mse",
        (model, beside),
        _log_ratio,
        f"logarithm of the ratio to the error of {beside}",
        equal_within,
    )
    result = _result(cells, {"better": claim})
    for cell in cells:
        for error in ("MSE", "MAE"):
            result.mean(
                _name(f"{error} of {model}", cell),
                _of_seeds(data, f"test_{error.lower()}", cell, model),
                bounds=POSITIVE,
            )
    result.settings["seeds"] = describe_seeds(
        data, *(len(_of_seeds(data, "test_mse", cell, model)) for cell in cells)
    )
    return result


@from_record("S1-T1", error="MSE")
@from_record("S1-T6", error="MAE")
def benchmark_errors(*, error: str) -> MeasuredValues:
    """Measure tables 1 and 6, and compare with the printed errors by Welch's test."""
    result = MeasuredValues(settings={"training": TRAINING, "intervals over": "seeds"})
    seeds = set()
    data = benchmark_runs()
    for arm, values in by_arm(data, f"test_{error.lower()}").items():
        name, horizon, model = arm.split(" ", 2)
        cell = NAMES.get(name, name), int(horizon)
        text = _name(f"{error} of {model}", cell)
        result.mean(text, values, bounds=POSITIVE)
        seeds.add(len(values))
        # arms with fixed RevIN or released draws are compared with the printed errors
        # of the model itself
        theirs = (
            TABLES[error]
            .get(model.removesuffix(" fixed RevIN").removesuffix(" released draws"), {})
            .get(cell)
        )
        if theirs is None or len(values) < 2 or not np.isfinite(theirs.std):
            continue
        ours = float(values.mean()), float(values.std(ddof=1))
        comparison = compare(ours, theirs, n=len(values), n_second=SEEDS)
        deviations = comparison.difference / np.hypot(ours[1], theirs.std)
        result.add(f"difference in standard deviations of both: {text}", deviations)
        result.add(f"p of Welch's test: {text}", comparison.welch)
    result.settings["seeds"] = describe_seeds(data, *seeds)
    for claim, models in (
        ("better", ("Transformer", "SAMformer")),
        ("better_mixer", ("TSMixer", "SAMformer")),
        ("better_mixer_sam", ("TSMixer+SAM", "SAMformer")),
        ("mixer_sam_helps", ("TSMixer", "TSMixer+SAM")),
    ):
        result.claims[claim] = _by_data(
            data,
            f"test_{error.lower()}",
            models,
            _log_ratio,
            "logarithm of the ratio of errors",
        )
    for value in BY_ID["S1-T1" if error == "MSE" else "S1-T6"].values:
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
    values = {
        "cells where neither is": float(sum(test.pooled >= LEVEL for test in tests)),
        "cells where neither is, by Welch's test": float(
            sum(test.welch >= LEVEL for test in tests)
        ),
    }
    return MeasuredValues(
        values, {"test": f"pooled, p below {LEVEL:g}; Welch's beside it"}
    )


@measure("S1-T8")
def parameters(context: Context) -> MeasuredValues:
    """Count parameters by the stated sizes."""
    counts = {
        f"parameters of SAMformer, H = {h}": float(parameter_count(512, h, CHANNELS))
        for h in HORIZONS
    }
    return MeasuredValues(counts, {"sizes": "L = 512, D = 7, d_m = 16, no biases"})


@measure("S1-P4")
def readouts(context: Context) -> MeasuredValues:
    """Check proposition 4 against the residual of the best readout."""
    rng = np.random.default_rng(context.seed)
    misses = 0
    of_rank = 0
    for draw in range(context.draws(DRAWS)):
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
    values = {"missed": float(misses), "draws of full rank": float(of_rank)}
    return MeasuredValues(values, {"draws": str(context.draws(DRAWS))})


@measure("S1-P5")
def nuclear_bound(context: Context) -> MeasuredValues:
    """Check proposition 5 on symmetric positive forms."""
    rng = np.random.default_rng(context.seed)
    shares = []
    for _ in range(context.draws(DRAWS)):
        x = rng.normal(size=(7, 20))
        queries = rng.normal(size=(20, 4))
        bound = rank_theory.nuclear_norm_bound(x, queries, queries)
        shares.append(rank_theory.nuclear_norm(x @ queries @ queries.T @ x.T) / bound)
    values = {
        "violations": float(np.sum(np.array(shares) > 1 + 1e-12)),
        "largest share of the bound": max(shares),
    }
    return MeasuredValues(values, {"draws": str(context.draws(DRAWS))})


@measure("S1-P9")
def revin(context: Context) -> MeasuredValues:
    """Check proposition 9 against the pipeline."""
    rng = np.random.default_rng(context.seed)
    largest = 0.0
    for _ in range(context.draws(100)):
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
    values = {
        "apart": 0.0 if largest < 1e-12 else largest,
        "the same, as it is": largest,
    }
    return MeasuredValues(values, {"draws": str(context.draws(100))})
