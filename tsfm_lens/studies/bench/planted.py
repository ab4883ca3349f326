"""Scores of probes and explanations on planted models, and the page that shows them.

``python -m tsfm_lens.studies.bench.planted --out docs/planted.md`` lets every method
answer every mechanism, several times and under every condition, and writes the page,
with everything measured in CSV files beside it. It goes on where it was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from tsfm_lens.core.console import console
from tsfm_lens.core.errors import InputError
from tsfm_lens.studies.bench.models import SealedModel, explained_in, model_in
from tsfm_lens.studies.bench.scoring import score_answer
from tsfm_lens.studies.bench.submission import answer_by, check_names
from tsfm_lens.studies.bench.table import fill_table
from tsfm_lens.studies.method_scores.explanations import EXPLANATIONS
from tsfm_lens.studies.method_scores.methods import METHODS, PARTS, Method
from tsfm_lens.studies.method_scores.page import (
    CONDITIONS,
    PLANTED,
    UNTRAINED,
    ScoreTables,
    write_page,
)
from tsfm_lens.studies.method_scores.scores import (
    find_decoys,
    forecast_error,
    has_answer,
)
from tsfm_lens.training.command import run_command
from tsfm_lens.zoo.planted import mechanisms


def score_methods(sealed: SealedModel, names: Iterable[str]) -> pd.DataFrame:
    """Let methods of the package answer, and score what each says within its scope.

    Args:
        sealed: a model of the benchmark.
        names: of :data:`~tsfm_lens.studies.method_scores.methods.METHODS`.

    Returns:
        A row for each method that applies.
    """
    rows = [score_probe(sealed, METHODS[name]) for name in names]
    return pd.concat(rows, ignore_index=True)


def score_probe(
    sealed: SealedModel, methods: Sequence[Method], decoys: Path | None = None
) -> pd.DataFrame:
    """Let the methods of one name answer, and add what they say of decoys to a file.

    Returns:
        A row for each method that applies.
    """
    card = sealed.case.card
    methods = [
        method
        for method in methods
        if has_answer(card, method.level) and method.applies(sealed.case)
    ]
    if not methods:
        return pd.DataFrame()
    name = methods[0].name
    given = answer_by(sealed, name, methods)
    about: dict[str, Any] = {
        "mechanism": card.mechanism,
        "architecture": card.architecture,
        "condition": sealed.condition,
        "seed": card.seed,
        "error": forecast_error(sealed.case),
        "weight_noise": card.weight_noise,
    }
    # noise changes little in decoys, and twins have none
    if decoys and given.nodes and sealed.condition == PLANTED:
        ranking = given.rankings(sealed, in_scope=True)[PARTS]
        rows = find_decoys(card, name, ranking).assign(**about)
        rows.to_csv(decoys, mode="a", header=not decoys.exists(), index=False)
    return score_answer(given, sealed, in_scope=True).assign(**about)


def list_files(page: Path) -> list[Path]:
    """Return the paths of the tables beside a page.

    They are of methods, of decoys, and of explanations.
    """
    ends = (".csv", ".decoys.csv", ".explanations.csv")
    return [page.with_suffix(end) for end in ends]


def read_scores(page: Path) -> ScoreTables:
    """Read the tables beside a page; of decoys that were met twice the last row.

    Raises:
        InputError: nothing was measured.
    """
    methods, decoys, explanations = (
        pd.read_csv(file) if file.exists() else pd.DataFrame()
        for file in list_files(page)
    )
    if not len(methods) and not len(explanations):
        raise InputError(f"nothing was measured for {page} yet; leave out --read")
    if len(decoys):
        key = ["mechanism", "architecture", "condition", "seed", "method", "component"]
        decoys = decoys.drop_duplicates(key, keep="last")
    return ScoreTables(methods, decoys, explanations)


def main(
    out: Annotated[
        Path, typer.Option(help="the page; everything measured goes beside it as CSV")
    ],
    *,
    seeds: Annotated[
        int, typer.Option(min=1, help="parametrisations of each mechanism")
    ] = 4,
    model: Annotated[
        list[str] | None, typer.Option(help="mechanism-architecture; all if none")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="all if none")] = None,
    condition: Annotated[list[str] | None, typer.Option(help="all if none")] = None,
    since: Annotated[
        str, typer.Option(help="measure what has an earlier date again, YYYY-MM-DD")
    ] = "",
    read: Annotated[
        bool, typer.Option("--read", help="make the page of the CSV that is there")
    ] = False,
) -> None:
    """Score every method on models whose mechanism is known, and write the page."""
    table, decoys, explanations = list_files(out)
    campaigns: list[tuple[Any, ...]] = [
        (table, METHODS, CONDITIONS, model_in),
        (explanations, EXPLANATIONS, (PLANTED, UNTRAINED), explained_in),
    ]
    names = model or ["-".join(pair) for pair in mechanisms()]
    chosen = method or METHODS | EXPLANATIONS
    check_names("method", chosen, METHODS | EXPLANATIONS)
    if read:
        campaigns = []
    for file, known, conditions, build in campaigns:
        fill_table(
            file,
            names,
            range(seeds),
            [name for name in known if name in chosen],
            conditions=[one for one in conditions if one in (condition or conditions)],
            known=known,
            build=build,
            score=partial(score_probe, decoys=decoys),
            since=since,
            log=console(stderr=True).print,
        )
    write_page(read_scores(out), out)


if __name__ == "__main__":
    run_command(main)
