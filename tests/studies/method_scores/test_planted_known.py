"""Probes on planted models and their untrained twins, noise that cards bear, and the
planted covariate's rule.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest

from planted.model import ALIVE, stub
from tsfm_lens import probes
from tsfm_lens.core.errors import InputError
from tsfm_lens.models import Lens
from tsfm_lens.studies.bench.models import WEIGHT_NOISES, model_in, seal_model
from tsfm_lens.studies.bench.planted import score_methods
from tsfm_lens.studies.method_scores.methods import worth_naming
from tsfm_lens.studies.method_scores.page import NOISY_WEIGHTS, PLANTED
from tsfm_lens.studies.method_scores.scores import (
    as_noisy_as_it_bears,
    forecast_error,
    keeps_its_roles,
)
from tsfm_lens.studies.method_scores.series import (
    EvaluationCase,
    evaluation_case,
    untrained,
)
from tsfm_lens.zoo.planted import CovariateTimes, Planted, PlantedPart, plant
from tsfm_lens.zoo.planted.chronos2 import HORIZON, NAME

CAUSAL = [
    "zero ablation, of the range",
    "activation patching, noise",
    "attribution patching, noise",
    "circuit, effects, zeroed",
    "path patching",
]


PERFECT = ["auroc", "precision", "claim_precision", "claim_recall"]


def score(
    planted: Planted, methods: list[str], lens: Lens | None = None, series: int = 12
) -> pd.DataFrame:
    """Score methods on a planted model, or on another with its card."""
    case = evaluation_case(lens or planted.lens(), planted.card, series=series)
    return score_methods(seal_model("a model", case, PLANTED), methods)


@pytest.fixture(scope="module")
def circuit() -> Planted:
    """Two heads that copy a season, through the heads behind them."""
    return plant("seasonal-copy", "chronos-bolt")


def test_only_the_planted_circuit_is_found(circuit: Planted) -> None:
    found = score(circuit, CAUSAL)
    assert (found[PERFECT] == 1).all(axis=None)


def test_untrained_twins_hold_no_planted_circuit(circuit: Planted) -> None:
    twins = [
        score(circuit, CAUSAL, untrained(circuit, seed), series=6) for seed in range(2)
    ]
    found = pd.concat(twins).groupby("method")
    # edges into the output are large under any weights
    assert (found["precision"].mean() <= 0.5).all()
    assert (found["claim_precision"].mean().fillna(0.0) < 0.2).all()


def test_only_planted_induction_heads_are_named() -> None:
    induction = plant("seasonal-copy", "chronos")
    methods = ["induction: repeated tokens, copy"]
    (row,) = score(induction, methods).to_dict("records")
    # of two cross-attention heads at work, one copies
    assert row["claim_precision"] == 1
    assert row["claim_recall"] == 0.5
    lens = untrained(induction)
    assert lens.model_id.endswith("(weights drawn anew, seed 0)")
    control = score(induction, methods, lens)
    assert (control["claimed"] == 0).all()


@pytest.mark.parametrize("architecture", ["chronos", "chronos-bolt"])
def test_self_repair_finds_heads_with_backups(
    architecture: str,
) -> None:
    """Self-repair names the head that has a backup; ablation does not."""
    planted = plant("backup", architecture)
    primary = next(
        str(part.stands_in_for) for part in planted.card.parts if part.role == "backup"
    )
    on = evaluation_case(planted.lens(), planted.card, series=6)
    found = probes.causal_effects(on.clean, components=on.components)
    named = (
        found["component"].values[worth_naming(found, "self_repair").values].tolist()
    )
    assert named == [primary]
    one = found.sel(component=primary)
    # the backup of the one makes up for all, that of the other for two thirds
    assert float(one["total_share"].mean()) < 0.4 * float(one["direct_share"].mean())


LEVELS = (1.0, 0.01, 0.0001)
TOLD = np.ones(4, dtype=bool)


def _at(mechanism: str, seed: int, level: float) -> Planted:
    return plant(mechanism, "chronos-bolt", seed=seed, weight_noise=level)


def test_a_copy_bears_more_noise() -> None:
    """A planted copy bears noise in its weights, a planted gate hardly any."""
    borne = as_noisy_as_it_bears(
        partial(_at, "seasonal-copy", 0), LEVELS, series=4, seed=0
    )
    assert borne is not None
    assert borne.card.weight_noise == 0.01
    assert forecast_error(evaluation_case(borne.lens(), borne.card, series=4)) < 0.1
    assert (
        as_noisy_as_it_bears(partial(_at, "gate", 0), LEVELS, series=4, seed=0) is None
    )


def test_a_backup_acts_only_after_ablation() -> None:
    """Noise under which the backup acts by itself is too much."""
    clean, noisy = (_at("backup", 1, level) for level in (0.0, 0.01))
    series = [
        evaluation_case(one.lens(), one.card, series=4, seed=1)
        for one in (clean, noisy)
    ]
    assert forecast_error(series[1]) < 0.1
    assert [keeps_its_roles(on, TOLD) for on in series] == [True, False]
    borne = as_noisy_as_it_bears(partial(_at, "backup", 1), LEVELS, series=4, seed=1)
    assert borne is not None
    assert borne.card.weight_noise == 0.0001


def test_models_get_the_noise_they_bear() -> None:
    """A model of the benchmark gets as much weight noise as it bears, or none."""
    copying = model_in("seasonal-copy-chronos-bolt", 0, NOISY_WEIGHTS)
    assert copying is not None
    assert copying.condition == NOISY_WEIGHTS
    assert copying.case.card.weight_noise in WEIGHT_NOISES
    assert model_in("gate-chronos-bolt", 0, NOISY_WEIGHTS) is None


@pytest.fixture(scope="module", params=["recent", "spread"])
def planted(request: pytest.FixtureRequest) -> Planted:
    """Turned."""
    return plant("covariate", NAME, seed=3, reads=request.param)


def find_rule(planted: Planted) -> CovariateTimes:
    """The rule."""
    rule = planted.card.rule
    assert isinstance(rule, CovariateTimes)
    return rule


def test_methods_of_intervention_find_the_head(planted: Planted) -> None:
    """Methods that change parts of the model find the planted head."""
    on = evaluation_case(planted.lens(), planted.card, series=4, noise=0.05)
    clean = on.clean.batch
    corrupted = on.corrupted.batch
    assert [clean.roles[row] for row in on.targets] == 4 * ["target"]
    assert len(clean) == 12
    # the twins differ in what is read of the known covariate alone
    one, other = (
        np.hstack([np.stack(item.values), item.known_future(HORIZON)])
        for item in (clean, corrupted)
    )
    for ago in find_rule(planted).ago:
        stretch = slice(
            len(clean.values[0]) - ago, len(clean.values[0]) - ago + HORIZON
        )
        known = [row for row, role in enumerate(clean.roles) if role == "known"]
        np.testing.assert_array_equal(
            one[known, stretch], other[known, stretch][:, ::-1]
        )
        other[known, stretch] = one[known, stretch]
    np.testing.assert_array_equal(one, other)
    assert forecast_error(on) <= 0.01
    right = [
        "zero ablation, of the range",
        "activation patching, denoise",
        "circuit, effects, patched",
    ]
    # of its past the rule reads no single value
    methods = [*right, "activation patching of tokens"]
    rows = score(planted, methods, series=4)
    assert list(rows["method"]) == right
    assert (rows[PERFECT] == 1).all(axis=None)
    with pytest.raises(InputError):
        score(planted, ["edge attribution"], series=4)


def test_decoys_do_not_move_the_forecast() -> None:
    """A head that moves the forecast is no decoy."""
    planted = stub()
    on = evaluation_case(planted.lens(), planted.card, series=4)
    assert keeps_its_roles(on, TOLD)
    for name, retained in ((ALIVE[0], False), ("decoder.0.mlp", True)):
        decoy = PlantedPart(component=name, role="decoy", does="writes loudly")
        card = on.card.model_copy(update={"parts": (decoy,)})
        assert (
            keeps_its_roles(EvaluationCase(on.lens, card, on.clean, on.corrupted), TOLD)
            == retained
        )
