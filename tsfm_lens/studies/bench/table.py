"""Table of methods and mechanisms: which mechanism defeats which method.

:func:`fill_table` lets every rival answer every model, and writes the scores into a
table, which a later call goes on with; :func:`summarise` makes AUROC by method and
mechanism of it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path

import pandas as pd

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.io import write_atomically
from tsfm_lens.studies.bench.models import ARCHITECTURES, SIZES, SealedModel, model_in
from tsfm_lens.studies.bench.rivals import RIVALS
from tsfm_lens.studies.bench.scoring import score_submission
from tsfm_lens.studies.bench.submission import answer_by, check_names
from tsfm_lens.studies.method_scores.methods import PARTS, Method
from tsfm_lens.studies.method_scores.page import PLANTED

CELL = ["model", "seed", "condition", "method"]
"""Columns that name a cell."""
CHANCE = 0.5
"""AUROC of a method that refuses a model: it tells nothing apart."""


def score_rival(sealed: SealedModel, methods: Sequence[Method]) -> pd.DataFrame:
    """Let the methods of one name answer, and score the answer."""
    given = answer_by(sealed, methods[0].name, methods)
    return score_submission(given, sealed)


def fill_table(
    file: str | Path,
    names: Iterable[str],
    seeds: Iterable[int],
    methods: Iterable[str] | None = None,
    *,
    conditions: Sequence[str] = (PLANTED,),
    known: Mapping[str, Sequence[Method]] = RIVALS,
    build: Callable[[str, int, str], SealedModel | None] = model_in,
    score: Callable[[SealedModel, Sequence[Method]], pd.DataFrame] = score_rival,
    since: str = "",
    log: Callable[[str], None] = lambda line: None,
) -> pd.DataFrame:
    """Let methods answer models, and add their scores to a table.

    Cells that the table has already are kept. The file is written after each cell.

    Args:
        file: the table, as CSV; it is made if there is none.
        names: models of the benchmark.
        seeds: of the models.
        methods: some of the known ones; all if None.
        conditions: of the models, see :func:`~tsfm_lens.studies.bench.models.model_in`.
        build: makes a model of its name, seed and condition; None if there is none.
        known: methods by name, one for each level that a name scores.
        score: makes the rows of a cell; an InputError means that they refuse.
        since: cells with an earlier date, "YYYY-MM-DD", are made again.
        log: called with a line for each cell.

    Returns:
        The whole table: the columns of the scores, with ``seed``, ``refused`` and
        ``date``.

    Raises:
        UnknownNameError: no such method, or no such model.
        InputError: the file is another table, or ``since`` is no date.
    """
    chosen = list(known if methods is None else methods)
    check_names("method", chosen, known)
    # dates are compared as texts, and any text would do
    if not re.fullmatch(r"(\d{4}-\d{2}-\d{2})?", since):
        raise InputError(
            f"since is {since!r}, expected a date YYYY-MM-DD, such as 2026-12-01"
        )
    path = Path(file)
    table = _read_table(path)
    recent = table[table["date"] >= since]
    done = set(recent[CELL].itertuples(index=False, name=None))
    for cell in product(names, seeds, conditions, chosen):
        if cell in done:
            continue
        model, seed, condition, method = cell
        sealed = build(model, seed, condition)
        if sealed is None:
            continue
        try:
            rows = score(sealed, known[method]).assign(refused=False)
        except InputError:
            # as circuits do where nothing is forecast
            rows = pd.DataFrame([{"level": known[method][0].level, "refused": True}])
        if not len(rows):
            continue
        rows = rows.assign(date=str(dt.date.today()))
        rows[CELL] = cell
        others = table[(table[CELL] != list(cell)).any(axis=1)]
        if len(others):
            rows = pd.concat([others, rows], ignore_index=True)
        table = rows
        text = table.to_csv(index=False, float_format="%.4g")
        write_atomically(path, text.encode())
        log(f"{model}, seed {seed}, {condition}: {method}")
    return table


def _read_table(path: Path) -> pd.DataFrame:
    """Return the table of a file, without rows if there is none."""
    needed = [*CELL, "date"]
    if not path.exists():
        return pd.DataFrame(columns=needed)
    try:
        table = pd.read_csv(path)
    except ValueError:
        # of an empty file, or one that is no table
        table = pd.DataFrame()
    if not set(needed) <= set(table):
        raise InputError(
            f"{str(path)!r} is another table, without {', '.join(needed)}; give a new"
            " file, or one that was made here"
        )
    return table


def mechanism_of(model: str) -> str:
    """Return the mechanism of a model, without architecture and size."""
    return re.sub(f"-({'|'.join(ARCHITECTURES)})({SIZES[1]})?$", "", model)


def summarise(
    table: pd.DataFrame,
    level: str = PARTS,
    measure: str = "auroc",
    condition: str = PLANTED,
) -> pd.DataFrame:
    """Average a measure by method and mechanism.

    Args:
        table: of :func:`fill_table`, of models of one size.
        level: "nodes", "edges" or "inputs".
        measure: a column of the scores, such as "claimed".
        condition: of the models, such as "untrained".

    Returns:
        A row for each method, the best first, with a column for each mechanism and
        "all", the mean over mechanisms. Architectures have equal weight, whatever the
        number of their models. Where a method refuses, AUROC is that of chance. A
        method without the measure has no row.
    """
    rows = table[(table["level"] == level) & (table["condition"] == condition)]
    rows = rows.assign(mechanism=rows["model"].map(mechanism_of))
    if measure == "auroc":
        rows[measure] = rows[measure].fillna(CHANCE)
    # seeds first, so that the models that are left are one of each architecture
    models = rows.groupby(["method", "mechanism", "model"])[measure].mean()
    wide = models.dropna().groupby(["method", "mechanism"]).mean().unstack("mechanism")
    wide["all"] = wide.mean(axis=1)
    return wide.sort_values("all", ascending=False)
