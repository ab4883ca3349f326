"""Table of methods and mechanisms: which mechanism defeats which method.

:func:`fill_table` lets every rival answer every model, and writes the scores into a
table, which a later call goes on with; :func:`summarise` makes AUROC by method and
mechanism of it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path

import pandas as pd

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.studies.bench.models import ARCHITECTURES, SIZES, sealed_models
from tsfm_lens.studies.bench.rivals import RIVALS
from tsfm_lens.studies.bench.scoring import COLUMNS, score_submission
from tsfm_lens.studies.bench.submission import answer_by

CELL = ["model", "seed", "method", "condition"]
"""Columns that name a cell."""
NODES = "nodes"
CHANCE = 0.5
"""AUROC of a method that refuses a model: it tells nothing apart."""


def fill_table(
    file: str | Path,
    names: Iterable[str],
    seeds: Iterable[int],
    methods: Iterable[str] | None = None,
    *,
    twins: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> pd.DataFrame:
    """Let rivals answer models, and add their scores to a table.

    Cells that the table has already are kept. The file is written after each cell.

    Args:
        file: the table, as CSV; it is made if there is none.
        names: models of the benchmark.
        seeds: of the models.
        methods: rivals; all if None.
        twins: whether the untrained twins are answered, too.
        log: called with a line for each cell.

    Returns:
        The whole table: the columns of the scores, with ``seed``, ``refused`` and
        ``date``.

    Raises:
        UnknownNameError: no such rival, or no such model.
    """
    chosen = list(RIVALS if methods is None else methods)
    for name in chosen:
        if name not in RIVALS:
            raise unknown_name("rival", name, RIVALS)
    path = Path(file)
    table = pd.DataFrame(columns=[*CELL, *COLUMNS])
    if path.exists():
        table = pd.read_csv(path)
    done = set(table[CELL].itertuples(index=False, name=None))
    for seed, name in product(seeds, names):
        for is_twin, method in product((False, True)[: 1 + twins], chosen):
            condition = "untrained" if is_twin else "planted"
            if (name, seed, method, condition) in done:
                continue
            rows = _fill_cell(name, seed, method, is_twin)
            rows = rows.assign(model=name, seed=seed, method=method)
            rows = rows.assign(condition=condition, date=str(dt.date.today()))
            table = pd.concat([table, rows], ignore_index=True) if len(table) else rows
            table.drop(columns="file", errors="ignore").to_csv(
                path, index=False, float_format="%.4g"
            )
            log(f"{name}, seed {seed}, {condition}: {method}")
    return table


def _fill_cell(name: str, seed: int, method: str, is_twin: bool) -> pd.DataFrame:
    sealed = sealed_models(name, seed)[is_twin]
    try:
        given = answer_by(sealed, method, RIVALS[method])
        return score_submission(given, sealed).assign(refused=False)
    except InputError:
        # as circuits do where nothing is forecast
        return pd.DataFrame([{"level": NODES, "refused": True}])


def mechanism_of(model: str) -> str:
    """Return the mechanism of a model, without architecture and size."""
    for size, architecture in product(reversed(SIZES), reversed(ARCHITECTURES)):
        end = f"-{architecture}{size}"
        if model.endswith(end):
            return model.removesuffix(end)
    return model


def summarise(table: pd.DataFrame, level: str = NODES) -> pd.DataFrame:
    """Average AUROC by method and mechanism.

    Args:
        table: of :func:`fill_table`.
        level: "nodes", "edges" or "inputs".

    Returns:
        A row for each method, the best first, with a column for each mechanism and
        "all", the mean over mechanisms. Where a method refuses, AUROC is that of
        chance.
    """
    rows = table[(table["level"] == level) & (table["condition"] == "planted")]
    rows = rows.assign(
        mechanism=rows["model"].map(mechanism_of), auroc=rows["auroc"].fillna(CHANCE)
    )
    wide = rows.pivot_table(index="method", columns="mechanism", values="auroc")
    wide["all"] = wide.mean(axis=1)
    return wide.sort_values("all", ascending=False)
