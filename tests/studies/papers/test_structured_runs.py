"""Numbers of the other experiments with structured scores: on planted runs, by counting, and the shipped results."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from tsfm_lens import registry
from tsfm_lens.studies import experiments
from tsfm_lens.studies.experiments import figures
from tsfm_lens.studies.papers import items_structured as said
from tsfm_lens.studies.papers import measures_structured_runs
from tsfm_lens.studies.papers.reproduce import reproduce
from tsfm_lens.studies.recipes.levels import LEVELS, level_runs
from tsfm_lens.testing import assert_close

SEEDS = 7
DRAW = np.random.default_rng(0)


def planted(monkeypatch: pytest.MonkeyPatch, data: xr.Dataset) -> None:
    monkeypatch.setattr(measures_structured_runs, "record", lambda name: data)


def value(found: xr.Dataset, quantity: str) -> float:
    return float(found["ours"].sel(quantity=quantity))


@pytest.mark.parametrize(("share", "outcome"), [(0.95, "holds"), (1.05, "does not hold")])
def test_errors_of_forecasts_are_relative_to_standard_attention(
    share: float, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = 0.5 + 0.01 * DRAW.random(SEEDS)
    errors = np.stack([base, share * base])
    arms = ["standard, T = 96", "MLR attention 6+2, T = 96"]
    planted(monkeypatch, xr.Dataset({"test_mae": (("arm", "seed"), errors)}, {"arm": arms, "seed": range(SEEDS)}))
    found = reproduce("S2-F14")
    assert_close(value(found, said.RELATIVE.format(arm=arms[1])), share - 1, depth=2**8)
    assert str(found["verdict"].sel(quantity=said.BETTER).values) == outcome


def test_losses_are_less_that_of_standard_attention_with_the_same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    base = 4 + DRAW.random(SEEDS)
    data = xr.Dataset(
        {"loss": (("arm", "seed"), np.stack([base, base - 0.25]))},
        {"arm": ["standard", f"MLR {said.CHRONOS_RANKS}"], "seed": range(SEEDS), "score_share": ("arm", [1.0, 0.6])},
        {"kind": "level_training", "steps": 480, "rows": 16, "context": 48, "horizon": 8},
    )
    planted(monkeypatch, data)
    found = reproduce("S2-CHR")
    excess = said.EXCESS.format(arm=f"MLR {said.CHRONOS_RANKS}")
    assert_close(value(found, excess), -0.25, depth=2**8)
    # seeds differ by one, their differences do not
    assert float(found["high"].sel(quantity=excess) - found["low"].sel(quantity=excess)) < 1e-6
    fig = figures.losses_by_cost(data)
    means = [trace for trace in fig.data if trace.marker.size == 9]
    assert [trace.x[0] for trace in means] == [1.0, 0.6]
    assert means[1].y[0] == (base - 0.25).mean()
    (plate,) = registry.find("level_training").draw_panels(data)
    assert len(plate.sentences) == 2


def transfer(best: dict[str, list[int]]) -> xr.Dataset:
    """Errors with one lowest place in every row, by parametrisation the place for every width."""
    places = np.arange(6)
    errors = np.stack([[0.3 + 0.05 * (places - at) ** 2 for at in of_kind] for of_kind in best.values()])
    table = errors[..., None] + 1e-3 * DRAW.random(SEEDS)
    return xr.Dataset(
        {"mse": (("parametrisation", "width", "rate", "seed"), table)},
        {
            "parametrisation": list(best),
            "width": [16, 32, 64],
            "rate": list(experiments.grids.RATES),
            "seed": range(SEEDS),
        },
        {"kind": "transfer_runs", "steps": 4, "inputs": 6},
    )


def test_the_best_rate_carries_over_where_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    data = transfer({"standard parametrisation": [4, 3, 2], "μP": [3, 3, 3], "μP, MLR attention": [3, 3, 4]})
    planted(monkeypatch, data)
    found = reproduce("s2-mupx")
    ratios = {kind: value(found, said.CARRIED.format(kind=kind)) for kind in data["parametrisation"].values}
    assert ratios == {"standard parametrisation": 0.25, "μP": 1.0, "μP, MLR attention": 2.0}
    fig = figures.learning_rates(data)
    diamonds = [trace.x[0] for trace in fig.data if trace.marker.symbol == "diamond"]
    rates = experiments.grids.RATES
    assert diamonds == [rates[place] for place in (4, 3, 2, 3, 3, 3, 3, 3, 4)]
    (plate,) = registry.find("transfer_runs").draw_panels(data)
    assert "0.008 at width 16" in plate.sentences[1]
    # a seed that lacks a rate is left out, and so is a parametrisation without a whole one
    data["mse"][0, :, :, 1:] = np.nan
    data["mse"][2, 0] = np.nan
    found = reproduce("S2-F5")
    assert value(found, said.CARRIED.format(kind="standard parametrisation")) == 0.25
    assert not [name for name in found["quantity"].values if str(name).startswith("lowest error, μP, MLR")]


def test_windows_are_counted_in_whole_scores() -> None:
    found = reproduce("S2-SWA")
    assert value(found, said.SEEN) == 129
    pairs = sum(min(token + 1, 129) for token in range(1024)) / (1024 * 1025 / 2)
    assert value(found, said.WINDOWED.format(pattern="windows in every layer")) == pairs
    assert_close(value(found, said.WINDOWED.format(pattern="one layer in three global")), (1 + 2 * pairs) / 3, depth=8)


def test_a_step_of_either_form_is_taken_in_turn() -> None:
    found = reproduce("S2-F12", seeds=1)
    low, high = (float(found[end].sel(quantity=said.SLOWER)) for end in ("low", "high"))
    assert 0 < low <= value(found, said.SLOWER) <= high


def test_shipped_runs_are_of_the_stated_grids() -> None:
    encoders, levels, rates = (experiments.record(name) for name in ("encoders", "chronos_levels", "transfer"))
    assert set(map(str, encoders["arm"].values)) <= set(experiments.encoder_arms("ETTh1.csv"))
    assert np.isfinite(encoders["test_mae"].sel(arm="standard, T = 96")).any()
    assert set(map(str, levels["arm"].values)) <= set(LEVELS)
    assert levels.attrs["steps"] == level_runs(seeds=1)[0].recipe.steps
    assert np.isfinite(levels["loss"].sel(arm="standard")).all()
    named = experiments.transfer_arms()
    for kind in map(str, rates["parametrisation"].values):
        for width in rates["width"].values.tolist():
            assert all(f"{kind}, D = {width}, {rate:g}" in named for rate in rates["rate"].values)
