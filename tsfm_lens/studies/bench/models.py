"""Models of the benchmark, and the folders that hold them without their truth.

:func:`bench_names` lists the models, :func:`sealed_models` builds one with its
untrained twin, and :func:`fetch` writes both. The seal of a model is a digest of its
public card and its weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.core.io import write_atomically
from tsfm_lens.models import Lens
from tsfm_lens.probes.given import check_seed
from tsfm_lens.probes.sites import later_branches
from tsfm_lens.studies.method_scores.methods import (
    EDGES,
    INPUTS,
    PAIRS,
    PARTS,
    REPAIRED,
    ROUTES,
    SEGMENTS,
    cut_forecasts,
    edge_name,
    find_tokens,
    list_segments,
    pair_names,
    token_names,
)
from tsfm_lens.studies.method_scores.page import (
    NOISY_SERIES,
    PLANTED,
    UNTRAINED,
)
from tsfm_lens.studies.method_scores.scores import as_noisy_as_it_bears
from tsfm_lens.studies.method_scores.series import (
    EvaluationCase,
    compare,
    evaluation_case,
    untrained,
)
from tsfm_lens.zoo.planted import (
    Planted,
    add_cancelling_pair,
    add_second_way,
    enlarge,
    mechanisms,
    plant,
    read_period_before,
    split_head,
)
from tsfm_lens.zoo.planted.card import Card, seal_of
from tsfm_lens.zoo.planted.planting import SEPARATING, save_weights
from tsfm_lens.zoo.planted.rules import CovariateTimes, Reads

FORMAT = 1
"""Version of the public card and of the answers."""
PUBLIC_CARD = "bench.json"
CONFIG = "config.json"
SERIES = "series.npz"
TWIN = "untrained"
"""Folder of the untrained twin, in that of the model."""
N_SERIES = 12
OUTPUT = "output"

WEIGHT_NOISES = (0.01, 0.003, 0.001, 0.0003)
"""Noise of the weights, of which a model gets the first that it bears."""
SERIES_NOISE = 0.05
FORECASTS = 8
"""Forecasts of a model whose single forecasts are explained."""

Planter = Callable[..., Planted]


def _plant(
    mechanism: str,
    architecture: str,
    *edits: Callable[[Planted], Planted],
    seed: int,
    reads: Reads | None = None,
    weight_noise: float = 0.0,
) -> Planted:
    planted = plant(
        mechanism, architecture, reads=reads, seed=seed, weight_noise=weight_noise
    )
    for edit in edits:
        planted = edit(planted)
    return planted


SIZES = ("", "-large")
"""What names of models end with: some 33 parts, or 304."""
ARCHITECTURES = ("chronos", "chronos-bolt")
"""Those that hold every mechanism that tells methods apart."""


@cache
def _planters() -> dict[str, Planter]:
    """Return the function of a seed that builds each model, by name."""
    planters: dict[str, Planter] = {
        "-".join(pair): partial(_plant, *pair) for pair in mechanisms()
    }
    for name, planter in _separating().items():
        planters[name] = planter
        planters[f"{name}{SIZES[1]}"] = partial(planter, enlarge)
    return dict(sorted(planters.items()))


def _separating() -> dict[str, Planter]:
    """Return the planters of the small models that tell methods apart, by name."""
    copy = "seasonal-copy"
    either = {"chronos": copy, "chronos-bolt": "gate"}
    found: dict[str, Planter] = {}
    for architecture in ARCHITECTURES:
        planters = {
            "cancelling": partial(_plant, "trend", architecture, add_cancelling_pair),
            "dead": partial(_plant, "gate", architecture),
            "either": partial(
                _plant, either[architecture], architecture, add_second_way
            ),
            "shortcut": partial(
                _plant, copy, architecture, read_period_before, reads="old"
            ),
            "split": partial(_plant, copy, architecture, split_head),
        }
        for mechanism in SEPARATING:
            planters[mechanism] = partial(_plant, mechanism, architecture)
        for mechanism, planter in planters.items():
            found[f"{mechanism}-{architecture}"] = planter
    return found


def separating_names(*, large: bool) -> tuple[str, ...]:
    """Return the names of the models that tell methods apart, of one size, sorted."""
    return tuple(sorted(f"{name}{SIZES[large]}" for name in _separating()))


def bench_names() -> tuple[str, ...]:
    """Return the names of all models that can be fetched, sorted.

    Without the mechanism of covariates, since answers name tokens of the target.
    """
    return tuple(name for name in _planters() if not name.startswith("covariate-"))


@dataclass(frozen=True, eq=False)
class SealedModel:
    """Model of the benchmark, with what is public of it and what is not.

    Attributes:
        card: public card: names of the parts and tokens, and the seal.
        case: runs on both sets of series, with the true card.
        condition: one of
            :data:`~tsfm_lens.studies.method_scores.page.CONDITIONS`; "untrained" if its
            weights are drawn anew, so that nothing is planted.
    """

    card: dict[str, Any]
    case: EvaluationCase
    condition: str

    @property
    def seal(self) -> str:
        """Digest of the public card and the weights."""
        return str(self.card["seal"])


def list_edges(case: EvaluationCase) -> tuple[str, ...]:
    """Name every edge from a head or MLP to a later one or to the output."""
    names = []
    for sender in case.components:
        later = set(later_branches(case.lens.wiring, sender))
        receivers = [
            str(receiver)
            for receiver in case.components
            if replace(receiver, head=None) in later
        ]
        names += [edge_name(str(sender), name) for name in (*receivers, OUTPUT)]
    return tuple(names)


CANDIDATES: dict[str, Callable[[EvaluationCase], tuple[str, ...]]] = {
    PARTS: attrgetter("nodes"),
    EDGES: list_edges,
    INPUTS: token_names,
    REPAIRED: attrgetter("nodes"),
    PAIRS: pair_names,
    SEGMENTS: list_segments,
    ROUTES: attrgetter("nodes"),
}
"""What can be scored of a case, by the field of an answer."""


# a file is scored on the models of its name; several files of one name follow
@lru_cache(maxsize=2)
def sealed_models(name: str, seed: int) -> tuple[SealedModel, SealedModel]:
    """Build a model of the benchmark and its untrained twin.

    Args:
        name: one of :func:`bench_names`.
        seed: draws the model and its series.

    Returns:
        The model, and the twin.

    Raises:
        UnknownNameError: no such model.
    """
    planters = _planters()
    if name not in planters:
        hint = "`tsfm-lens bench list` lists all"
        raise unknown_name("model of the benchmark", name, planters, hint=hint)
    planted = planters[name](seed=seed)
    first = _run_planted(name, planted, PLANTED)
    return first, _run_planted(name, planted, UNTRAINED)


def _run_planted(
    name: str, planted: Planted, condition: str, **options: Any
) -> SealedModel:
    """Run a planted model, or its twin, with ``options`` of the evaluation case."""
    card = planted.card
    lens = planted.lens()
    if condition == UNTRAINED:
        lens = untrained(planted, card.seed)
    case = _draw_case(name, lens, card, seed=card.seed, **options)
    return seal_model(name, case, condition)


def _draw_case(
    name: str, lens: Lens, card: Card, *, series: int = N_SERIES, **options: Any
) -> EvaluationCase:
    case = evaluation_case(lens, card, series=series, **options)
    if name.startswith("dead-"):
        case = _with_dead_units(case)
    return case


# of a model and its twin, like sealed_models
@lru_cache(maxsize=2)
def draw_again(sealed: SealedModel, draw: int) -> EvaluationCase:
    """Run a model on series of another seed than those that were fetched with it."""
    case = sealed.case
    return _draw_case(sealed.card["model"], case.lens, case.card, seed=draw)


@lru_cache(maxsize=1)
def model_in(name: str, seed: int, condition: str) -> SealedModel | None:
    """Build a model under a condition; None if it bears no noise.

    Only mechanisms that were planted once, and not changed, have noisy weights.
    """
    if condition in (PLANTED, UNTRAINED):
        return sealed_models(name, seed)[condition == UNTRAINED]
    planter = partial(_planters()[name], seed=seed)
    if condition == NOISY_SERIES:
        return _run_planted(name, planter(), condition, noise=SERIES_NOISE)
    planted = as_noisy_as_it_bears(
        lambda level: planter(weight_noise=level),
        WEIGHT_NOISES,
        series=N_SERIES,
        seed=seed,
    )
    if planted is None:
        return None
    return _run_planted(name, planted, condition)


@lru_cache(maxsize=1)
def explained_in(name: str, seed: int, condition: str) -> SealedModel:
    """Build a model whose single forecasts, of noisy series, are explained.

    The condition is "planted" or "untrained".
    """
    planted = _planters()[name](seed=seed)
    noise = SERIES_NOISE
    if isinstance(planted.card.rule, CovariateTimes):
        # its series are random walks and white noise already
        noise = 0.0
    return _run_planted(name, planted, condition, series=FORECASTS, noise=noise)


def seal_model(name: str, case: EvaluationCase, condition: str) -> SealedModel:
    """Make the public card of a case, with the seal."""
    ((_, parts),) = cut_forecasts(case, 1)
    content = {
        "format": FORMAT,
        "model": name,
        "horizon": case.card.horizon,
        "nodes": list(case.nodes),
        "tokens": {
            str(token): [steps.start, steps.stop]
            for token, steps in find_tokens(case).items()
        },
        "segments": {part.name: [part.start, part.stop] for part in parts},
    }
    with TemporaryDirectory() as folder:
        save_weights(case.lens.adapter.model, folder)
        seal = seal_of(content, Path(folder))
    return SealedModel({**content, "seal": seal}, case, condition)


def _with_dead_units(case: EvaluationCase) -> EvaluationCase:
    """Swap series so that the units that decide on a gate are 0 in every clean run.

    In Chronos they say that a series is no season, elsewhere that it is one.
    """
    rule: Any = case.card.rule
    live_if_shut = case.card.architecture == "chronos"
    pairs = zip(case.clean.batch.values, case.corrupted.batch.values, strict=True)
    # the margin is positive where the gate is open
    ordered = [
        sorted(map(np.asarray, pair), key=rule.margin, reverse=live_if_shut)
        for pair in pairs
    ]
    return compare(case.lens, case.card, *zip(*ordered, strict=True))


def fetch(name: str, seed: int, folder: str | Path) -> Path:
    """Write a model of the benchmark, its twin and their series, without the truth.

    Args:
        name: one of :func:`bench_names`.
        seed: draws the model and its series; it is not written.
        folder: gets the checkpoint, the series (``clean`` and ``altered``, (series,
            time) each) and the public card; its folder "untrained" gets those of a
            model of the same kind whose weights are drawn anew.

    Returns:
        The folder.

    Raises:
        UnknownNameError: no such model.
        InputError: the folder holds another model, or the seed is none.
    """
    check_seed(seed)
    folder = Path(folder)
    if (folder / CONFIG).exists() and not (folder / PUBLIC_CARD).exists():
        raise InputError(
            f"{str(folder)!r} holds another model, or one that was not written to its"
            " end; give a new folder"
        )
    model, twin = sealed_models(name, seed)
    # cards are written last, so that a folder that has one is whole
    (folder / PUBLIC_CARD).unlink(missing_ok=True)
    for sealed, place in ((twin, folder / TWIN), (model, folder)):
        (place / PUBLIC_CARD).unlink(missing_ok=True)
        case = sealed.case
        save_weights(case.lens.adapter.model, place)
        clean, altered = (
            np.stack(run.batch.values) for run in (case.clean, case.corrupted)
        )
        np.savez(place / SERIES, clean=clean, altered=altered)
        text = json.dumps(sealed.card, indent=2)
        write_atomically(place / PUBLIC_CARD, text.encode())
    return folder
