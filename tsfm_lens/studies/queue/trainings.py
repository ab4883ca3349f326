"""Cells that train a configuration: small records, benchmarks, regression in context.

Read :func:`training_cells` first, which lists the runs of some arms;
:func:`training_run` is one of them. Arms are in
:mod:`tsfm_lens.studies.experiments.grids`, seeds in the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import xarray as xr

from tsfm_lens.studies.experiments import grids
from tsfm_lens.studies.experiments.records import gathered, measured
from tsfm_lens.studies.experiments.running import RESULT, train
from tsfm_lens.studies.queue.driver import PLAN, QueueCell, Workplace
from tsfm_lens.studies.samformer.models import oracle_loss
from tsfm_lens.studies.train_config import FileData, TrainConfig
from tsfm_lens.training.state import STATE

Gather = Callable[[Path, str], xr.Dataset]
"""Collects a run by its folder and its arm."""
BENCHMARKS: Mapping[str, Any] = PLAN["samformer"]
RUNS = "samformer_runs"
RADII = "samformer_radii"
RATES = "transfer_rates"
SINGLE = "in_context_single"
ENCODERS = "encoder_runs"
IDS = {
    "toy": "S1-F1 S1-F2 S1-F3",
    "optimizers": "S1-F15",
    "radii": "S1-F14",
    "benchmarks": "S1-T1 S1-T6 S1-F8",
    "in_context": "S2-F2 S2-F3 S2-F6",
    "in_context_widths": "S2-F11",
    "encoders": "S2-ETT S2-F14",
    RUNS: (
        "S1-T1 S1-T6 S1-T7 S1-T9 S1-T10 S1-F5 S1-F6 S1-F7 S1-F8 S1-F9 S1-F10 S1-F12"
        " S1-F13"
    ),
    RADII: "S1-F14",
    RATES: "S2-F5 S2-MUPX",
    SINGLE: "S2-ICL S2-F2 S2-F3 S2-F6 S2-F11",
    ENCODERS: "S2-ETT S2-F14",
}


def training_run(
    arm: str,
    config: TrainConfig,
    gather: Gather,
    attrs: Mapping[str, Any],
    workplace: Workplace,
) -> xr.Dataset | None:
    """Train one run and gather it; None if it was stopped."""
    folder = workplace.folder
    if not (folder / RESULT).exists():
        resume = (folder / STATE).exists()
        if not train(config, folder, resume=resume, quiet=True)["ended"]:
            return None
    return gather(folder, arm).assign_attrs(attrs)


def training_cells(
    order: int,
    record: str,
    arms: Mapping[str, TrainConfig],
    plan: Mapping[str, Any],
    *,
    gather: Gather = gathered,
    **attrs: Any,
) -> Iterator[QueueCell]:
    """List the runs of arms, seed by seed, so that finished ones can be compared.

    Args:
        order: number of the subject in the queue.
        record: name of the record.
        arms: configurations by the name of the arm.
        plan: ``seeds`` of every arm, and ``seconds`` that a run should take.
        gather: collects a finished run.
        attrs: attributes of the record.
    """
    attrs["ids"] = IDS.get(record, "")
    for seed, (arm, config) in product(plan["seeds"], arms.items()):
        files: tuple[Path, ...] = ()
        if isinstance(config.data, FileData):
            files = (Path(config.data.file),)
        seeded = config.model_copy(update={"seed": seed})
        run = partial(training_run, arm, seeded, gather, attrs)
        more = {"seconds": plan["seconds"], "files": files}
        yield QueueCell.seeded(order, record, arm, seed, run, **more)


def small_cells(data: Path) -> Iterator[QueueCell]:
    """List the runs of the small records; ``data`` is the folder of benchmark files."""
    oracle = oracle_loss(512, 70_000)
    prompts = grids.in_context_results
    widths = grids.in_context_arms(grids.WIDTH_ARMS, widths=grids.WIDTHS)
    file = data / BENCHMARKS["files"]["ETTh1"]
    lists: dict[str, tuple[Mapping[str, TrainConfig], Mapping[str, Any]]] = {
        "toy": (grids.toy_arms(epochs=20, watch=True), {"oracle": oracle}),
        "optimizers": (
            grids.toy_arms(grids.TOY_OPTIMIZERS, epochs=20),
            {"oracle": oracle},
        ),
        "in_context": (grids.in_context_arms(), {"gather": prompts}),
        "in_context_widths": (widths, {"gather": prompts}),
        "encoders": (grids.encoder_arms(file, horizons=[96]), {}),
    }
    for record, (arms, more) in lists.items():
        for part in PLAN["small"][record]:
            chosen = {arm: arms[arm] for arm in part.get("arms", arms)}
            attrs = {**more, **part.get("attrs", {})}
            yield from training_cells(0, record, chosen, part, **attrs)


def benchmark_cells(data: Path) -> Iterator[QueueCell]:
    """List the runs on benchmarks; ``data`` is the folder of their files."""
    for part in BENCHMARKS["runs"]:
        arms: dict[str, TrainConfig] = {}
        for name, horizon in product(part["data"], part["horizons"]):
            file = data / BENCHMARKS["files"][name]
            known = grids.benchmark_arms(file, name, horizon)
            titles = [f"{name} {horizon} {arm}" for arm in part["arms"]]
            arms |= {title: known[title] for title in titles}
        order, record = part["order"], part["record"]
        yield from training_cells(order, record, arms, part, gather=measured)


def rate_cells() -> Iterator[QueueCell]:
    """List the runs of the learning rates across widths (S2-F5, S2-MUPX)."""
    plan = PLAN["rates"]
    return training_cells(4, RATES, grids.transfer_arms(epochs=plan["epochs"]), plan)


def single_token_arms() -> dict[str, TrainConfig]:
    """Return the configurations of regression in context with the paper's tokens."""
    plan = PLAN["last"][SINGLE]
    subset = {name: grids.IN_CONTEXT_ARMS[name] for name in plan["arms"]}
    return grids.in_context_arms(subset, epochs=plan["epochs"], tokens="single")


def last_cells(data: Path) -> Iterator[QueueCell]:
    """List regression in context with single tokens, and encoders of ETTh1."""
    single, encoders = (PLAN["last"][name] for name in (SINGLE, ENCODERS))
    yield from training_cells(6, SINGLE, single_token_arms(), single)
    file = data / encoders["file"]
    for horizon, seconds in encoders["seconds"].items():
        arms = grids.encoder_arms(file, horizons=[horizon], epochs=encoders["epochs"])
        plan = {**encoders, "seconds": seconds}
        yield from training_cells(6, ENCODERS, arms, plan)
