"""Score every method of the package on models whose mechanism is known.

``python -m tsfm_lens.studies.method_scores.scores --out docs/planted.md`` plants every mechanism several times, runs
every method on it and on an untrained twin, and writes the table, with everything measured beside it as CSV.
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

from tsfm_lens.console import console
from tsfm_lens.errors import InputError, LensError, unknown_name
from tsfm_lens.models import Lens
from tsfm_lens.studies.method_scores import edges as scores_edges
from tsfm_lens.studies.method_scores import inputs as scores_inputs
from tsfm_lens.studies.method_scores.marks import Labels, claim_marks, marks, ranks
from tsfm_lens.studies.method_scores.methods import METHODS, PARTS, Found, Method
from tsfm_lens.studies.method_scores.noise import as_noisy_as_it_bears, forecast_error
from tsfm_lens.studies.method_scores.page import PLANTED, UNTRAINED, Scores, write_page
from tsfm_lens.studies.method_scores.series import Bench, bench
from tsfm_lens.studies.method_scores.twins import untrained
from tsfm_lens.training.command import run_command
from tsfm_lens.zoo.planted.card import Card
from tsfm_lens.zoo.planted.planting import Planted, mechanisms, plant
from tsfm_lens.zoo.planted.rules import CovariateTimes

__all__ = ["Condition", "Scores", "campaign", "score"]


@dataclass(frozen=True)
class Condition:
    """Condition of planting, and of the series that the model is run on.

    Attributes:
        name: in the table.
        rotate: see :func:`tsfm_lens.zoo.planted.plant`.
        weight_noises: levels of noise on the weights. Each model gets the first that it bears, see
            :func:`tsfm_lens.studies.method_scores.noise.as_noisy_as_it_bears`; those that bear none are left out.
        noise: of observed values, in standard deviations of their series.
        twin: whether the methods look at an untrained twin instead.
    """

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
    lens: Lens, card: Card, *, series: int = 12, noise: float = 0.0, seed: int = 0, methods: Iterable[str] | None = None
) -> Scores:
    """Run methods on one model and hold them against its card.

    Args:
        lens: the planted model, or an untrained twin of it.
        card: of the planted one.
        series: random series that the mechanism forecasts.
        noise: of their values, in standard deviations of a series.
        seed: of the series.
        methods: names of :data:`tsfm_lens.studies.method_scores.methods.METHODS`; all that the model allows if None.

    Raises:
        UnknownNameError: no such method.
    """
    names = list(METHODS) if methods is None else list(methods)
    for name in names:
        if name not in METHODS:
            raise unknown_name("method", name, list(METHODS))
    on = bench(lens, card, series=series, noise=noise, seed=seed)
    rows, decoys = [], []
    for each in (METHODS[name] for name in names):
        if not (has_answer(card, each) and each.applies(on)):
            continue
        try:
            result = each.find(on)
        except InputError:
            # a method raises where it cannot discriminate, as circuits do for models that forecast nothing
            rows.append({"method": each.name, "level": each.level, "refused": True})
            continue
        rows.append({"method": each.name, "level": each.level, "refused": False, **marks_of(on, each, result)})
        decoys += _decoys(card, each, result)
    return Scores(pd.DataFrame(rows), pd.DataFrame(decoys, columns=list(DECOY)))


def has_answer(card: Card, method: Method) -> bool:
    """Return whether the card has an answer for a method: without a backup nothing repairs itself."""
    if method.level in (scores_edges.REPAIRED, scores_edges.PAIRS):
        return bool(card.components("backup"))
    if method.level == scores_edges.EDGES:
        return bool(card.edges)
    # a rule that reads nothing of the past has no tokens of it
    return method.level != scores_inputs.INPUTS or not isinstance(card.rule, CovariateTimes)


def truth(on: Bench, method: Method, names: Sequence[str]) -> tuple[Labels, Labels, int]:
    """Label candidates by the card.

    Returns:
        (candidate,) whether it is true; (candidate,) whether it counts; number of true ones in the whole model. Backups
        and their edges count only for methods that look for them.
    """
    card, counts = on.card, np.ones(len(names), dtype=bool)
    backups = [part for part in card.parts if part.role == "backup"]
    idle = {part.component for part in backups}
    match method.level:
        case scores_inputs.INPUTS:
            tokens = scores_inputs.true_tokens(on)
            return np.array([tokens[name] for name in names]), counts, sum(tokens.values())
        case scores_edges.EDGES:
            true = {scores_edges.edge_name(*edge) for edge in card.edges}
            counts = np.array([not idle & set(scores_edges.ends_of(name)) for name in names])
        case scores_edges.REPAIRED:
            true = {str(part.stands_in_for) for part in backups}
        case scores_edges.PAIRS:
            true = {scores_edges.pair_name(part.component, str(part.stands_in_for)) for part in backups}
        case _:
            true = set(card.components("mechanism"))
            counts = np.array([name not in idle for name in names])
    return np.array([name in true for name in names]), counts, len(true)


def marks_of(on: Bench, method: Method, result: Found) -> dict[str, float]:
    """Measure how well a method's result agrees with the card."""
    labels, counts, every = truth(on, method, result.names)
    scope = float(labels.sum() / every) if every else float("nan")
    scores, labels = result.scores[counts], labels[counts]
    names = tuple(compress(result.names, counts))
    if method.level == scores_inputs.INPUTS:
        by_series = [marks(*pair) for pair in scores_inputs.by_series(names, scores, labels)]
        values = {key: float(np.nanmean([row[key] for row in by_series])) for key in by_series[0]}
    else:
        values = marks(scores, labels)
    claims = {} if result.claims is None else claim_marks(result.claims[counts], labels)
    return {"scope": scope, **values, **claims}


def _decoys(card: Card, method: Method, result: Found) -> list[dict[str, object]]:
    """List the decoys of a method that names parts, and whether it falls for them."""
    true = set(card.components("mechanism")) & set(result.names)
    if method.level != PARTS or not true:
        return []
    places = dict(zip(result.names, ranks(result.scores), strict=True))
    claims = dict(zip(result.names, result.claims, strict=True)) if result.claims is not None else {}

    def outcome(name: str) -> tuple[bool, bool | None]:
        return bool(places[name] <= len(true)), bool(claims[name]) if claims else None

    return [
        dict(zip(DECOY, (method.name, part.component, part.does, *outcome(part.component)), strict=True))
        for part in card.parts
        if part.role == "decoy" and part.component in places
    ]


def campaign(
    pairs: Sequence[tuple[str, str]] | None = None,
    conditions: Sequence[Condition] = CONDITIONS,
    *,
    seeds: int = 3,
    series: int = 12,
    methods: Iterable[str] | None = None,
    planter: Callable[..., Planted] = plant,
    log: Callable[[str], None] = lambda line: None,
) -> Scores:
    """Score methods on every mechanism, planted anew with every seed and under every condition.

    Args:
        pairs: (mechanism, architecture); all that can be planted if None.
        conditions: see :class:`Condition`.
        seeds: parametrisations of each.
        series: see :func:`score`.
        methods: see :func:`score`.
        planter: function that plants a mechanism.
        log: called with a line about each model.

    Returns:
        The tables of :func:`score` with "mechanism", "architecture", "condition", "seed", "weight_noise", and
        "error": how far the model's forecast is from its rule on these series, in mean absolute values of the context.
    """
    names = None if methods is None else list(methods)
    parts: list[Scores] = []
    for mechanism, architecture in mechanisms() if pairs is None else pairs:
        for seed, condition in product(range(seeds), conditions):
            at = partial(_plant, planter, mechanism, architecture, seed, condition.rotate)
            planted = at(0.0)
            if condition.weight_noises:
                noisy = as_noisy_as_it_bears(at, condition.weight_noises, series=series, seed=seed)
                if noisy is None:
                    log(f"{mechanism} in {architecture}, {condition.name}, seed {seed}: left out, bears no such noise")
                    continue
                planted = noisy
            lens = untrained(planted, seed) if condition.twin else planted.lens()
            draw: dict[str, Any] = {"series": series, "noise": condition.noise, "seed": seed}
            scores = score(lens, planted.card, **draw, methods=names)
            about: dict[str, Any] = {"mechanism": mechanism, "architecture": architecture, "condition": condition.name}
            about |= {"seed": seed, "weight_noise": planted.card.weight_noise}
            about |= {"error": forecast_error(bench(lens, planted.card, **draw))}
            # noise changes little in decoys, and twins have none
            decoys = scores.decoys if condition.name == PLANTED else scores.decoys.iloc[:0]
            parts.append(Scores(scores.methods.assign(**about), decoys.assign(**about)))
            log(f"{mechanism} in {architecture}, {condition.name}, seed {seed}: {len(scores.methods)} methods")
    if not parts:
        raise InputError("no model to score: none bears the noise asked for")
    return _concat(parts)


@lru_cache(maxsize=2)
def _plant(
    planter: Callable[..., Planted], mechanism: str, architecture: str, seed: int, rotate: bool, weight_noise: float
) -> Planted:
    return planter(mechanism, architecture, seed=seed, rotate=rotate, weight_noise=weight_noise)


def _concat(parts: Sequence[Scores]) -> Scores:
    tables = ([getattr(part, name) for part in parts] for name in ("methods", "decoys"))
    # an empty table has no types, and would change those of the others
    return Scores(*(pd.concat([each for each in of if len(each)] or of[:1], ignore_index=True) for of in tables))


def main(
    out: Annotated[Path, typer.Option(help="the page; everything measured goes beside it as CSV")],
    *,
    seeds: Annotated[int, typer.Option(min=1, help="parametrisations of each mechanism")] = 3,
    only: Annotated[list[str] | None, typer.Option(help="mechanism, architecture or condition; all if none")] = None,
    read: Annotated[bool, typer.Option("--read", help="make the page of the CSV that is there")] = False,
) -> None:
    """Score every method on models whose mechanism is known, and write the page.

    With ``--only``, what was measured of other models before stays.
    """
    try:
        scores = None if read else campaign(*_select(only or []), seeds=seeds, log=console(stderr=True).print)
        if (read or only) and files_of(out)[0].exists():
            scores = renewed(read_scores(out), scores)
        if scores is None:
            raise InputError(f"nothing was measured for {out} yet; leave out --read")
        for table, file in zip((scores.methods, scores.decoys), files_of(out), strict=True):
            table.to_csv(file, index=False, float_format="%.3g")
        write_page(scores, out)
    except (LensError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


def files_of(page: Path) -> tuple[Path, Path]:
    """Return the paths of the tables beside a page: of methods, and of decoys."""
    return page.with_suffix(".csv"), page.with_suffix(".decoys.csv")


def read_scores(page: Path) -> Scores:
    """Read the tables beside a page."""
    return Scores(*(pd.read_csv(file) for file in files_of(page)))


def renewed(before: Scores, now: Scores | None) -> Scores:
    """Replace the rows of models and conditions that were measured again; keep all others."""
    if now is None:
        return before
    keys = ["mechanism", "architecture", "condition"]
    models = set(now.methods[keys].itertuples(index=False, name=None))

    def others(table: pd.DataFrame) -> pd.DataFrame:
        rows = table[keys].itertuples(index=False, name=None)
        return table[np.array([row not in models for row in rows], dtype=bool)]

    both = _concat([Scores(others(before.methods), others(before.decoys)), now])
    order: dict[str, Any] = {"by": keys[:2], "kind": "stable", "ignore_index": True}
    return Scores(both.methods.sort_values(**order), both.decoys.sort_values(**order))


def _select(only: Sequence[str]) -> tuple[list[tuple[str, str]], list[Condition]]:
    """Select pairs and conditions by name; of each kind all where none is named.

    Raises:
        UnknownNameError: nothing has such a name.
    """
    pairs, conditions = list(mechanisms()), list(CONDITIONS)
    groups = [{one for one, _ in pairs}, {other for _, other in pairs}, {each.name for each in conditions}]
    for name in only:
        if not any(name in names for names in groups):
            raise unknown_name("mechanism, architecture or condition", name, sorted(set().union(*groups)))
    first, second, third = (names & set(only) or names for names in groups)
    return [pair for pair in pairs if pair[0] in first and pair[1] in second], [
        each for each in conditions if each.name in third
    ]


if __name__ == "__main__":
    run_command(main)
