"""The main probes on models whose mechanism was planted: right there, and noise on their untrained twins."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tsfm_lens import probes
from tsfm_lens.studies.method_scores.scores import score
from tsfm_lens.studies.method_scores.series import evaluation_case, untrained
from tsfm_lens.zoo.planted import Planted, plant

CAUSAL = [
    "zero ablation, of the range",
    "activation patching, noise",
    "attribution patching, noise",
    "circuit, effects, zeroed",
    "path patching",
]


@pytest.fixture(scope="module")
def circuit() -> Planted:
    """Two heads that copy a season, through the heads behind them."""
    return plant("seasonal-copy", "chronos-bolt")


@pytest.fixture(scope="module")
def induction() -> Planted:
    """An induction head that is found by content."""
    return plant("seasonal-copy", "chronos")


def by_method(table: pd.DataFrame) -> pd.DataFrame:
    return table.set_index("method")


def test_a_planted_circuit_is_found_and_nothing_else(circuit: Planted) -> None:
    found = by_method(score(circuit.lens(), circuit.card, methods=CAUSAL).methods)
    assert (found[["auroc", "precision", "claim_precision", "claim_recall"]] == 1).all(axis=None)


def test_its_untrained_twins_hold_no_such_circuit(circuit: Planted) -> None:
    twins = [score(untrained(circuit, seed), circuit.card, series=6, methods=CAUSAL).methods for seed in range(2)]
    found = pd.concat(twins).groupby("method")
    # edges into the output are large under any weights
    assert (found["precision"].mean() <= 0.5).all()
    assert (found["claim_precision"].mean().fillna(0.0) < 0.2).all()


def test_a_planted_induction_head_is_named_and_no_other(induction: Planted) -> None:
    found = by_method(score(induction.lens(), induction.card, methods=["induction: repeated tokens, copy"]).methods)
    row = found.loc["induction: repeated tokens, copy"]
    # of two cross-attention heads at work, one copies
    assert row["claim_precision"] == 1
    assert row["claim_recall"] == 0.5
    lens = untrained(induction)
    assert lens.model_id.endswith("(weights drawn anew, seed 0)")
    twin = score(lens, induction.card, methods=["induction: repeated tokens, copy"]).methods
    assert (twin["claimed"] == 0).all()


def test_attribution_is_complete_where_a_partial_stream_is_sure_of_no_value(induction: Planted) -> None:
    run = evaluation_case(induction.lens(), induction.card, series=2).clean
    found = probes.attribute(run)
    assert np.isfinite(found["attribution"]).all()
    assert (found["completeness_error"] < 1e-3).all()


@pytest.mark.parametrize("architecture", ["chronos", "chronos-bolt"])
def test_self_repair_names_the_head_that_has_a_backup_and_ablation_does_not(architecture: str) -> None:
    """In a decoder, and in an encoder."""
    planted = plant("backup", architecture)
    primary = next(str(part.stands_in_for) for part in planted.card.parts if part.role == "backup")
    on = evaluation_case(planted.lens(), planted.card, series=6)
    found = probes.causal_effects(on.clean, components=on.components)
    named = found["component"].values[found["self_repair_stands_out"].values].tolist()
    assert named == [primary]
    one = found.sel(component=primary)
    # the backup of the one makes up for all, that of the other for two thirds
    assert float(one["total_share"].mean()) < 0.4 * float(one["direct_share"].mean())
