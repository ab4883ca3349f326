"""Score every method of the package on models whose mechanism is known.

``python -m tsfm_lens.studies.method_scores.scores --out docs/planted.md`` plants every mechanism several times, runs
every method on it and on an untrained twin, and writes the table, with everything measured beside it as CSV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
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
    """How a model is planted and what it is shown.

    Attributes:
        name: as the table calls it.
        rotate: see :func:`tsfm_lens.zoo.planted.plant`.
        weight_noises: levels of noise on the weights, of which each model gets the first that it bears; see
            :func:`tsfm_lens.studies.method_scores.noise.as_noisy_as_it_bears`. Those that bear none are left out.
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
"""What is told of a decoy."""


def score(
    lens: Lens, card: Card, *, series: int = 12, noise: float = 0.0, seed: int = 0, methods: Iterable[str] | None = None
) -> Scores:
    """Run methods on one model and hold them against its card.

    Args:
        lens: the planted model, or an untrained twin of it.
        card: what is true of the planted one.
        series: random series that the mechanism forecasts.
        noise: of their values, in standard deviations of a series.
        seed: of the series.
        methods: names of :data:`tsfm_lens.studies.method_scores.methods.METHODS`; all that the model allows if None.

    Raises:
        UnknownNameError: no such method.
    """
    wanted = list(METHODS) if methods is None else list(methods)
    for name in wanted:
        if name not in METHODS:
            raise unknown_name("method", name, list(METHODS))
    on = bench(lens, card, series=series, noise=noise, seed=seed)
    rows, decoys = [], []
    for each in (METHODS[name] for name in wanted):
        if not (has_answer(card, each) and each.applies(on)):
            continue
        try:
            found = each.find(on)
        except InputError:
            # a method that finds nothing to tell apart says so, as circuits do of models that forecast nothing
            rows.append({"method": each.name, "level": each.level, "refused": True})
            continue
        rows.append({"method": each.name, "level": each.level, "refused": False, **marks_of(on, each, found)})
        decoys += _decoys(card, each, found)
    return Scores(pd.DataFrame(rows), pd.DataFrame(decoys, columns=list(DECOY)))


def has_answer(card: Card, method: Method) -> bool:
    """Whether the card says what a method is asked for: a model without a backup has nothing that repairs itself."""
    if method.level in (scores_edges.REPAIRED, scores_edges.PAIRS):
        return bool(card.components("backup"))
    if method.level == scores_edges.EDGES:
        return bool(card.edges)
    # a rule that reads nothing of the past has no tokens of it
    return method.level != scores_inputs.INPUTS or not isinstance(card.rule, CovariateTimes)


def truth(on: Bench, method: Method, names: Sequence[str]) -> tuple[Labels, Labels, int]:
    """What is true of candidates.

    Returns:
        (candidate,) whether it is true; (candidate,) whether it counts, which backups and their edges do not unless
        they are what is looked for; how many are true in the whole model.
    """
    card, counts = on.card, np.ones(len(names), dtype=bool)
    backups = [part for part in card.parts if part.role == "backup"]
    idle = {part.component for part in backups}
    match method.level:
        case scores_inputs.INPUTS:
            known = scores_inputs.true_tokens(on)
            return np.array([known[name] for name in names]), counts, sum(known.values())
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


def marks_of(on: Bench, method: Method, found: Found) -> dict[str, float]:
    """How well what a method says agrees with the card."""
    labels, counts, every = truth(on, method, found.names)
    scope = float(labels.sum() / every) if every else float("nan")
    scores, labels = found.scores[counts], labels[counts]
    names = tuple(name for name, counted in zip(found.names, counts, strict=True) if counted)
    if method.level == scores_inputs.INPUTS:
        by_series = [marks(*pair) for pair in scores_inputs.by_series(names, scores, labels)]
        measured = {key: float(np.nanmean([row[key] for row in by_series])) for key in by_series[0]}
    else:
        measured = marks(scores, labels)
    claims = {} if found.claims is None else claim_marks(found.claims[counts], labels)
    return {"scope": scope, **measured, **claims}


def _decoys(card: Card, method: Method, found: Found) -> list[dict[str, object]]:
    """Which decoys a method that names parts falls for."""
    true = set(card.components("mechanism")) & set(found.names)
    if method.level != PARTS or not true:
        return []
    places = dict(zip(found.names, ranks(found.scores), strict=True))
    claims = dict(zip(found.names, found.claims, strict=True)) if found.claims is not None else {}

    def _fooled(name: str) -> tuple[bool, bool | None]:
        return bool(places[name] <= len(true)), bool(claims[name]) if claims else None

    return [
        dict(zip(DECOY, (method.name, part.component, part.does, *_fooled(part.component)), strict=True))
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
    told: Callable[[str], None] = lambda line: None,
) -> Scores:
    """Score methods on every mechanism, planted anew with every seed and under every condition.

    Args:
        pairs: (mechanism, architecture); all that can be planted if None.
        conditions: see :class:`Condition`.
        seeds: parametrisations of each.
        series: see :func:`score`.
        methods: see :func:`score`.
        planter: what plants a mechanism.
        told: called with a line about each model.

    Returns:
        The tables of :func:`score` with "mechanism", "architecture", "condition", "seed", "weight_noise", and
        "error": how far the model's forecast is from its rule on these series, in mean absolute values of the context.
    """
    names = None if methods is None else list(methods)
    parts: list[Scores] = []
    for mechanism, architecture in mechanisms() if pairs is None else pairs:
        for seed, condition in product(range(seeds), conditions):
            at = partial(_planted, planter, mechanism, architecture, seed, condition.rotate)
            planted = at(0.0)
            if condition.weight_noises:
                borne = as_noisy_as_it_bears(at, condition.weight_noises, series=series, seed=seed)
                if borne is None:
                    told(f"{mechanism} in {architecture}, {condition.name}, seed {seed}: left out, bears no such noise")
                    continue
                planted = borne
            lens = untrained(planted, seed) if condition.twin else planted.lens()
            drawn: dict[str, Any] = {"series": series, "noise": condition.noise, "seed": seed}
            found = score(lens, planted.card, **drawn, methods=names)
            about: dict[str, Any] = {"mechanism": mechanism, "architecture": architecture, "condition": condition.name}
            about |= {"seed": seed, "weight_noise": planted.card.weight_noise}
            about |= {"error": forecast_error(bench(lens, planted.card, **drawn))}
            # noise changes little in decoys, and twins have none
            decoys = found.decoys if condition.name == PLANTED else found.decoys.iloc[:0]
            parts.append(Scores(found.methods.assign(**about), decoys.assign(**about)))
            told(f"{mechanism} in {architecture}, {condition.name}, seed {seed}: {len(found.methods)} methods")
    if not parts:
        raise InputError("no model to score: none bears the noise asked for")
    return _joined(parts)


@lru_cache(maxsize=2)
def _planted(
    planter: Callable[..., Planted], mechanism: str, architecture: str, seed: int, rotate: bool, weight_noise: float
) -> Planted:
    return planter(mechanism, architecture, seed=seed, rotate=rotate, weight_noise=weight_noise)


def _joined(parts: Sequence[Scores]) -> Scores:
    tables = ([getattr(part, name) for part in parts] for name in ("methods", "decoys"))
    # an empty table has no types, and would take those of the others
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
        found = None if read else campaign(*_chosen(only or []), seeds=seeds, told=console(stderr=True).print)
        if (read or only) and files_of(out)[0].exists():
            found = renewed(read_scores(out), found)
        if found is None:
            raise InputError(f"nothing was measured for {out} yet; leave out --read")
        for table, file in zip((found.methods, found.decoys), files_of(out), strict=True):
            table.to_csv(file, index=False, float_format="%.3g")
        write_page(found, out)
    except (LensError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


def files_of(page: Path) -> tuple[Path, Path]:
    """The tables beside a page: of methods, and of decoys."""
    return page.with_suffix(".csv"), page.with_suffix(".decoys.csv")


def read_scores(page: Path) -> Scores:
    """The tables beside a page."""
    return Scores(*(pd.read_csv(file) for file in files_of(page)))


def renewed(before: Scores, now: Scores | None) -> Scores:
    """What was measured before, with all rows of the models and conditions that were measured now in their place."""
    if now is None:
        return before
    keys = ["mechanism", "architecture", "condition"]
    models = set(now.methods[keys].itertuples(index=False, name=None))

    def kept(table: pd.DataFrame) -> pd.DataFrame:
        rows = table[keys].itertuples(index=False, name=None)
        return table[np.array([row not in models for row in rows], dtype=bool)]

    both = _joined([Scores(kept(before.methods), kept(before.decoys)), now])
    order: dict[str, Any] = {"by": keys[:2], "kind": "stable", "ignore_index": True}
    return Scores(both.methods.sort_values(**order), both.decoys.sort_values(**order))


def _chosen(only: Sequence[str]) -> tuple[list[tuple[str, str]], list[Condition]]:
    """Pairs and conditions that are named; of each kind all where none of it is.

    Raises:
        UnknownNameError: nothing has such a name.
    """
    pairs, conditions = list(mechanisms()), list(CONDITIONS)
    known = [{one for one, _ in pairs}, {other for _, other in pairs}, {each.name for each in conditions}]
    for name in only:
        if not any(name in names for names in known):
            raise unknown_name("mechanism, architecture or condition", name, sorted(set().union(*known)))
    first, second, third = (names & set(only) or names for names in known)
    return [pair for pair in pairs if pair[0] in first and pair[1] in second], [
        each for each in conditions if each.name in third
    ]


if __name__ == "__main__":
    run_command(main)
