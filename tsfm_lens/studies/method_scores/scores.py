"""Score every method of the package on models whose mechanism is known.

``python -m tsfm_lens.studies.method_scores.scores --out docs/planted.md`` plants every
mechanism several times, runs every method on it and on an untrained model, and writes
the table, with everything measured in a CSV file of the same name. :func:`score` is one
model, :func:`campaign` all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import compress, product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

from tsfm_lens.core.console import console
from tsfm_lens.core.errors import InputError, LensError, unknown_name
from tsfm_lens.models import Lens
from tsfm_lens.studies.method_scores.marks import (
    Labels,
    Scores,
    claim_marks,
    marks,
    ranks,
)
from tsfm_lens.studies.method_scores.methods import (
    EDGES,
    INPUTS,
    METHODS,
    PAIRS,
    PARTS,
    REPAIRED,
    Method,
    Ranking,
    edge_name,
    pair_name,
    true_tokens,
)
from tsfm_lens.studies.method_scores.page import (
    PLANTED,
    UNTRAINED,
    ScoreTables,
    write_page,
)
from tsfm_lens.studies.method_scores.series import (
    EvaluationCase,
    evaluation_case,
    untrained,
)
from tsfm_lens.training.command import run_command
from tsfm_lens.zoo.planted.card import Card
from tsfm_lens.zoo.planted.planting import Planted, mechanisms, plant
from tsfm_lens.zoo.planted.rules import CovariateTimes

EVENLY = partial(plant, reads=None)
TOLERATED = 0.1
"""Largest tolerated error of a forecast, in mean absolute values of the context."""


def forecast_error(on: EvaluationCase) -> float:
    """Compute the largest distance of the median forecast from the rule.

    It is in mean absolute values of the context.
    """
    return float(_errors(on).max())


def as_noisy_as_it_bears(
    plant: Callable[[float], Planted],
    levels: Sequence[float],
    *,
    series: int,
    seed: int,
) -> Planted | None:
    """Plant with the first level of weight noise that leaves the card true.

    Returns:
        The model; None if no level does.
    """
    clean = plant(0.0)
    valid = (
        _errors(evaluation_case(clean.lens(), clean.card, series=series, seed=seed))
        <= TOLERATED
    )
    for level in levels:
        planted = plant(level)
        on = evaluation_case(planted.lens(), planted.card, series=series, seed=seed)
        if (
            valid.any()
            and _errors(on)[valid].max() <= TOLERATED
            and keeps_its_roles(on, valid)
        ):
            return planted
    return None


def keeps_its_roles(on: EvaluationCase, valid: Labels) -> bool:
    """Check that decoys and backups still act as the card says.

    No decoy moves the forecast, and backups do so only without the part that they stand
    in for.
    """

    def shift(*components: str) -> float:
        return float(_shift(on, components)[valid].max(initial=0.0))

    if any(shift(decoy) > TOLERATED for decoy in on.card.components("decoy")):
        return False
    for part in on.card.parts:
        if part.role == "backup":
            primary = str(part.stands_in_for)
            if shift(part.component) > TOLERATED or shift(
                part.component, primary
            ) < 2 * shift(primary):
                return False
    return True


def _errors(on: EvaluationCase) -> Scores:
    """Compute the distance (series,) of the median forecast from the rule.

    It is in mean absolute values of the context.
    """
    assert on.clean.truth is not None
    return _largest(on, on.clean.forecast.median - on.clean.truth)


def _shift(on: EvaluationCase, components: Sequence[str]) -> Scores:
    """Compute the change (series,) of the median forecast without components.

    It is in mean absolute values of the context.
    """
    run = on.clean
    with on.lens.ablate(*components) as lens:
        without = lens.forecast(
            run.batch, run.horizon, num_samples=run.num_samples, seed=run.seed
        )
    return _largest(on, without.median - run.forecast.median)


def _largest(on: EvaluationCase, difference: Scores) -> Scores:
    scales = np.array([np.abs(on.clean.batch.values[row]).mean() for row in on.targets])
    return np.asarray(np.abs(difference[on.targets]).max(-1) / scales)


@dataclass(frozen=True)
class Condition:
    """Condition of planting, and of the series that the model is run on."""

    name: str
    rotate: bool = True
    weight_noises: tuple[float, ...] = ()
    noise: float = 0.0
    twin: bool = False


CONDITIONS = (
    Condition(PLANTED),
    Condition("noisy-series", noise=0.05),
    Condition("noisy-weights", weight_noises=(0.01, 0.003, 0.001, 0.0003)),
    Condition(UNTRAINED, twin=True),
)


DECOY = ("method", "component", "decoy", "fooled", "claimed")
"""Columns of the table of decoys."""


def score(
    lens: Lens,
    card: Card,
    *,
    series: int = 12,
    noise: float = 0.0,
    seed: int = 0,
    methods: Iterable[str] | None = None,
) -> ScoreTables:
    """Run methods on one model and compare them with its card."""
    if methods is None:
        names = list(METHODS)
    else:
        names = list(methods)
    for name in names:
        if name not in METHODS:
            raise unknown_name("method", name, list(METHODS))
    on = evaluation_case(lens, card, series=series, noise=noise, seed=seed)
    return score_case(on, [METHODS[name] for name in names])


def score_case(on: EvaluationCase, methods: Iterable[Method]) -> ScoreTables:
    """Run methods on one case and compare them with its card.

    Answers that are handed in as files are methods, too, and scored here.
    """
    rows = []
    decoys = []
    for method in methods:
        if not (has_answer(on.card, method) and method.applies(on)):
            continue
        try:
            result = method.rank(on)
        except InputError:
            # a method raises where it cannot discriminate, as circuits do for models
            # that forecast nothing
            rows.append({"method": method.name, "level": method.level, "refused": True})
            continue
        rows.append(
            {
                "method": method.name,
                "level": method.level,
                "refused": False,
                **score_method(on, method, result),
            }
        )
        decoys += _decoys(on.card, method, result)
    return ScoreTables(pd.DataFrame(rows), pd.DataFrame(decoys, columns=list(DECOY)))


def has_answer(card: Card, method: Method) -> bool:
    """Return whether the card has an answer for a method.

    Without a backup, for example, nothing repairs itself.
    """
    if method.level in (REPAIRED, PAIRS):
        return bool(card.components("backup"))
    if method.level == EDGES:
        return bool(card.edges)
    # a rule that reads nothing of the past has no tokens of it
    return method.level != INPUTS or not isinstance(card.rule, CovariateTimes)


def truth(
    on: EvaluationCase, method: Method, names: Sequence[str]
) -> tuple[Labels, Labels, int]:
    """Label candidates by the card.

    Returns:
        Labels; which candidates count, (candidate,) each; and the number of true ones.
    """
    card = on.card
    counts = np.ones(len(names), dtype=bool)
    backups = [part for part in card.parts if part.role == "backup"]
    idle = {part.component for part in backups}
    match method.level:
        case "inputs":
            tokens = true_tokens(on)
            labels = np.array([tokens[name] for name in names])
            return labels, counts, sum(tokens.values())
        case "edges":
            true = {edge_name(*edge) for edge in card.edges}
            counts = np.array([not idle & set(name.split(" > ")) for name in names])
        case "repaired":
            true = {str(part.stands_in_for) for part in backups}
        case "pairs":
            true = {
                pair_name(part.component, str(part.stands_in_for)) for part in backups
            }
        case _:
            true = set(card.components("mechanism"))
            counts = np.array([name not in idle for name in names])
    return np.array([name in true for name in names]), counts, len(true)


def score_method(
    on: EvaluationCase, method: Method, result: Ranking
) -> dict[str, float]:
    """Measure how well a method's result agrees with the card."""
    labels, counts, n_true = truth(on, method, result.names)
    if n_true:
        scope = float(labels.sum() / n_true)
    else:
        scope = float("nan")
    scores = result.scores[counts]
    labels = labels[counts]
    if method.level == INPUTS:
        # tokens are ranked within their series
        rows = np.array(
            [int(name.split(":")[0]) for name in compress(result.names, counts)]
        )
        by_series = [
            marks(scores[rows == row], labels[rows == row]) for row in np.unique(rows)
        ]
        values = {
            key: float(np.nanmean([row[key] for row in by_series]))
            for key in by_series[0]
        }
    else:
        values = marks(scores, labels)
    if result.claims is None:
        statements = {}
    else:
        statements = claim_marks(result.claims[counts], labels)
    return {"scope": scope, **values, **statements}


def _decoys(card: Card, method: Method, result: Ranking) -> list[dict[str, object]]:
    """List the decoys of a method that names parts, and whether it falls for them."""
    true = set(card.components("mechanism")) & set(result.names)
    if method.level != PARTS or not true:
        return []
    rank_of = dict(zip(result.names, ranks(result.scores), strict=True))
    if result.claims is not None:
        statements = dict(zip(result.names, result.claims, strict=True))
    else:
        statements = {}

    rows: list[dict[str, object]] = []
    for part in card.parts:
        if part.role == "decoy" and (name := part.component) in rank_of:
            fooled = bool(rank_of[name] <= len(true))
            claimed = bool(statements[name]) if statements else None
            rows.append(
                dict(
                    zip(
                        DECOY,
                        (method.name, name, part.does, fooled, claimed),
                        strict=True,
                    )
                )
            )
    return rows


def campaign(
    pairs: Sequence[tuple[str, str]] | None = None,
    conditions: Sequence[Condition] = CONDITIONS,
    *,
    seeds: int = 4,
    series: int = 12,
    methods: Iterable[str] | None = None,
    planter: Callable[..., Planted] = EVENLY,
    log: Callable[[str], None] = lambda line: None,
) -> ScoreTables:
    """Score methods on every mechanism, with every seed and under every condition.

    Each is planted anew.
    """
    if methods is None:
        names = None
    else:
        names = list(methods)
    parts: list[ScoreTables] = []
    for mechanism, architecture in mechanisms() if pairs is None else pairs:
        for seed, condition in product(range(seeds), conditions):
            plant_with_noise = partial(
                _plant, planter, mechanism, architecture, seed, condition.rotate
            )
            planted = plant_with_noise(0.0)
            if condition.weight_noises:
                noisy = as_noisy_as_it_bears(
                    plant_with_noise, condition.weight_noises, series=series, seed=seed
                )
                if noisy is None:
                    log(
                        f"{mechanism} in {architecture}, {condition.name}, seed {seed}:"
                        " left out, bears no such noise"
                    )
                    continue
                planted = noisy
            if condition.twin:
                lens = untrained(planted, seed)
            else:
                lens = planted.lens()
            draw: dict[str, Any] = {
                "series": series,
                "noise": condition.noise,
                "seed": seed,
            }
            scores = score(lens, planted.card, **draw, methods=names)
            columns: dict[str, Any] = {
                "mechanism": mechanism,
                "architecture": architecture,
                "condition": condition.name,
            }
            columns |= {"seed": seed, "weight_noise": planted.card.weight_noise}
            columns |= {
                "error": forecast_error(evaluation_case(lens, planted.card, **draw))
            }
            # noise changes little in decoys, and twins have none
            if condition.name == PLANTED:
                decoys = scores.decoys
            else:
                decoys = scores.decoys.iloc[:0]
            parts.append(
                ScoreTables(scores.methods.assign(**columns), decoys.assign(**columns))
            )
            log(
                f"{mechanism} in {architecture}, {condition.name}, seed {seed}:"
                f" {len(scores.methods)} methods"
            )
    if not parts:
        raise InputError("no model to score: none bears the noise asked for")
    return _concat(parts)


@lru_cache(maxsize=2)
def _plant(
    planter: Callable[..., Planted],
    mechanism: str,
    architecture: str,
    seed: int,
    rotate: bool,
    weight_noise: float,
) -> Planted:
    return planter(
        mechanism, architecture, seed=seed, rotate=rotate, weight_noise=weight_noise
    )


def _concat(parts: Sequence[ScoreTables]) -> ScoreTables:
    tables = ([getattr(part, name) for part in parts] for name in ("methods", "decoys"))
    # an empty table has no types, and would change those of the others
    return ScoreTables(
        *(
            pd.concat(
                [table for table in same_tables if len(table)] or same_tables[:1],
                ignore_index=True,
            )
            for same_tables in tables
        )
    )


def main(
    out: Annotated[
        Path, typer.Option(help="the page; everything measured goes beside it as CSV")
    ],
    *,
    seeds: Annotated[
        int, typer.Option(min=1, help="parametrisations of each mechanism")
    ] = 4,
    only: Annotated[
        list[str] | None,
        typer.Option(help="mechanism, architecture or condition; all if none"),
    ] = None,
    read: Annotated[
        bool, typer.Option("--read", help="make the page of the CSV that is there")
    ] = False,
) -> None:
    """Score every method on models whose mechanism is known, and write the page."""
    try:
        if read:
            scores = None
        else:
            scores = campaign(
                *_select(only or []), seeds=seeds, log=console(stderr=True).print
            )
        if (read or only) and list_files(out)[0].exists():
            scores = renewed(read_scores(out), scores)
        if scores is None:
            raise InputError(f"nothing was measured for {out} yet; leave out --read")
        for table, file in zip(
            (scores.methods, scores.decoys), list_files(out), strict=True
        ):
            table.to_csv(file, index=False, float_format="%.3g")
        write_page(scores, out)
    except (LensError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


def list_files(page: Path) -> tuple[Path, Path]:
    """Return the paths of the tables beside a page: of methods, and of decoys."""
    return page.with_suffix(".csv"), page.with_suffix(".decoys.csv")


def read_scores(page: Path) -> ScoreTables:
    """Read the tables beside a page."""
    return ScoreTables(*(pd.read_csv(file) for file in list_files(page)))


def renewed(before: ScoreTables, now: ScoreTables | None) -> ScoreTables:
    """Replace the rows of models and conditions that were measured again.

    All other rows stay.
    """
    if now is None:
        return before
    keys = ["mechanism", "architecture", "condition"]
    models = set(now.methods[keys].itertuples(index=False, name=None))

    unchanged = []
    for table in (before.methods, before.decoys):
        rows = table[keys].itertuples(index=False, name=None)
        unchanged.append(
            table[np.array([row not in models for row in rows], dtype=bool)]
        )
    merged = _concat([ScoreTables(*unchanged), now])
    order: dict[str, Any] = {"by": keys[:2], "kind": "stable", "ignore_index": True}
    return ScoreTables(
        merged.methods.sort_values(**order), merged.decoys.sort_values(**order)
    )


def _select(only: Sequence[str]) -> tuple[list[tuple[str, str]], list[Condition]]:
    """Select pairs and conditions by name; of each kind all where none is named."""
    pairs = list(mechanisms())
    conditions = list(CONDITIONS)
    groups = [
        {mechanism for mechanism, _ in pairs},
        {architecture for _, architecture in pairs},
        {condition.name for condition in conditions},
    ]
    for name in only:
        if not any(name in names for names in groups):
            raise unknown_name(
                "mechanism, architecture or condition",
                name,
                sorted(set().union(*groups)),
            )
    first, second, third = (names & set(only) or names for names in groups)
    return [pair for pair in pairs if pair[0] in first and pair[1] in second], [
        condition for condition in conditions if condition.name in third
    ]


if __name__ == "__main__":
    run_command(main)
