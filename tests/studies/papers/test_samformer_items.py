"""Numbers of the paper on SAMformer: claims on planted runs, formulas, and the shipped results."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from tsfm_lens.studies import experiments
from tsfm_lens.studies.papers import items_samformer as said
from tsfm_lens.studies.papers import measures_samformer, measures_samformer_trained
from tsfm_lens.studies.papers import values_samformer as printed
from tsfm_lens.studies.papers.reproduce import reproduce
from tsfm_lens.studies.samformer import ChannelTransformer, oracle_loss
from tsfm_lens.testing import assert_close

ORACLE = oracle_loss(512, 70_000)
SEEDS = 8


def toy(errors: dict[str, float], **looks: dict[str, float]) -> xr.Dataset:
    """Runs whose values are planted, the same of every seed but for a little."""
    spread = 1 + 1e-4 * np.random.default_rng(0).standard_normal(SEEDS)
    table = {name: [value * spread for value in errors.values()] for name in ("validation_mse", "seconds")}
    data = xr.Dataset(
        {name: (("arm", "seed"), np.array(values)) for name, values in table.items()},
        coords={"arm": list(errors), "seed": range(SEEDS)},
        attrs={"kind": "lab_runs", "epochs": 3},
    )
    for name, values in looks.items():
        data[name] = (("arm", "seed", "look"), np.array([values[arm] * spread for arm in errors])[..., None])
    return data


def planted(monkeypatch: pytest.MonkeyPatch, data: xr.Dataset) -> None:
    for module in (measures_samformer, measures_samformer_trained):
        monkeypatch.setattr(module, "record", lambda name: data)


def verdict(found: xr.Dataset, claim: str) -> str:
    return str(found["verdict"].sel(quantity=claim).values)


@pytest.mark.parametrize("true", [True, False])
def test_claims_on_the_toy_problem_follow_the_runs(true: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {
        "transformer": 1.2 if true else ORACLE,
        "random transformer": 1.1 if true else 3.0,
        "sigma reparam": 2.0,
        "transformer + SAM": ORACLE if true else 1.1,
    }
    planted(monkeypatch, toy(errors))
    found = reproduce("S1-F1")
    for claim in (said.STUCK, said.REACHES, said.RANDOM_BETTER):
        assert verdict(found, claim) == ("holds" if true else "does not hold"), claim
    assert_close(float(found["ours"].sel(quantity=said.ORACLE)), 1 + 512 / (70_000 - 513), depth=4)
    assert_close(float(found["ours"].sel(quantity="error of sigma reparam")), 2.0, depth=2**40, dtype="float64")
    again = reproduce("s1-f2")
    assert again["quantity"].values.tolist() == found["quantity"].values.tolist()


@pytest.mark.parametrize("true", [True, False])
def test_claims_on_sharpness_and_entropy(true: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    arms = ("transformer", "random transformer", "sigma reparam", "transformer + SAM")
    looks = {
        "sharpness": dict(zip(arms, (30.0 if true else 0.5, 0.1, 5.0, 1.0), strict=True)),
        "entropy": dict(zip(arms, (0.1, 1.2, 0.5 if true else 0.01, 0.2), strict=True)),
        "diagonal_mass": dict.fromkeys(arms, 0.9),
        "numerical_rank": dict.fromkeys(arms, 7.0),
    }
    planted(monkeypatch, toy(dict.fromkeys(arms, 1.1), **looks))
    found = reproduce("S1-F3")
    for claim in (said.SHARPER, said.LOWER_ENTROPY):
        assert verdict(found, claim) == ("holds" if true else "does not hold"), claim


@pytest.mark.parametrize("true", [True, False])
def test_claims_on_optimisers(true: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, near = (9.0, 1.01) if true else (0.9, 1.3)
    errors = {"adam": 1.0, "adamw 1e-5": near, "adamw 1e-4": near, "adamw 1e-3": bad, "sgd": bad}
    planted(monkeypatch, toy(errors))
    found = reproduce("S1-F15")
    for claim in (said.UNSTABLE, said.SAME):
        assert verdict(found, claim) == ("holds" if true else "does not hold"), claim


ARMS = ("SAMformer", "Transformer", "sigma reparam", "SAMformer sigma reparam", said.IDENTITY, said.TEMPORAL)
# by arm: error, how far it goes from seed to seed, λ_max, diagonal mass, numerical rank, nuclear norm
TRUE = ((1.0, 0.01, 1, 0.9, 6, 6), (1.5, 0.1, 9, 0.4, 5, 4), (1.4, 0.1, 4, 0.2, 2, 2), *[(1.1, 0.1, 1, 0.9, 6, 6)] * 2)
FALSE = ((1.5, 0.1, 9, 0.2, 5, 3), (1.2, 0.01, 1, 0.6, 3, 4), (1.0, 0.1, 4, 0.9, 6, 6), *[(1.0, 0.1, 1, 1, 6, 6)] * 2)


def trained(rows: tuple[tuple[float, ...], ...]) -> xr.Dataset:
    """Runs of two benchmarks with planted ends."""
    rng = np.random.default_rng(1)
    names = [f"{data} 96 {arm}" for data in ("ETTh1", "exchange") for arm in ARMS]
    planted = np.array([*rows, (2.0 if rows is TRUE else 1.0, *rows[-1][1:])] * 2, dtype=float)
    # alternating, so that every seed lies off its arm's mean
    off = planted[:, 1:2] * np.resize([1.0, -1.0], (1, 8))
    beside = 1 + 1e-4 * rng.standard_normal((len(names), 8))
    by_window = {"end_diagonal_mass": 3, "end_nuclear_norm": 5}
    of_run = {"end_sharpness": 2, "end_numerical_rank": 4, "end_entropy": 4}
    variables = {name: (("arm", "seed"), planted[:, [column]] * beside) for name, column in of_run.items()}
    errors = {f"test_{name}": (("arm", "seed"), planted[:, :1] + off) for name in ("mse", "mae")}
    windows = {
        name: (("arm", "seed", "window"), (planted[:, [column]] * beside)[..., None] * [0.9, 1.0, 1.1])
        for name, column in by_window.items()
    }
    coords = {"arm": names, "seed": range(8)}
    return xr.Dataset({**variables, **errors, **windows}, coords=coords, attrs={"kind": "lab_runs"})


CLAIMS = {
    "S1-F5": (said.SHARPER_TRAINED, said.STEADIER),
    "S1-F6": (said.DIAGONAL, said.LOWER_RANK),
    "S1-F7": (said.NORM_LOWERED, said.NORM_KEPT),
    "S1-F8": (said.REPARAM_WORSE, said.NO_GAIN),
    "S1-T9": (said.CHANNELS_BETTER,),
    "S1-T10": (said.ATTENTION_BETTER,),
}


@pytest.mark.parametrize("true", [True, False])
@pytest.mark.parametrize("item", CLAIMS)
def test_claims_on_trained_models_follow_the_runs(item: str, true: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, trained(TRUE if true else FALSE))
    found = reproduce(item)
    for claim in CLAIMS[item]:
        assert verdict(found, claim) == ("holds" if true else "does not hold"), claim
    assert "ETTh1 at 96, Exchange at 96" in found["our_setting"].values.tolist()


def test_runs_are_compared_with_those_of_their_seed_where_both_ended() -> None:
    data = trained(TRUE)
    data["test_mse"][1, 3] = np.nan
    first, second = measures_samformer_trained.pairs(data, "test_mse", "Transformer", "SAMformer")
    table = data["test_mse"].values
    kept = [0, 1, 2, 4, 5, 6, 7]
    np.testing.assert_array_equal(first, [*table[1, kept], *table[7]])
    np.testing.assert_array_equal(second, [*table[0, kept], *table[6]])
    # a benchmark on which one of them was not trained is left out
    assert measures_samformer_trained.cells_of(data.isel(arm=slice(0, 7)), "Transformer") == [("ETTh1", 96)]


@pytest.mark.parametrize("true", [True, False])
def test_the_claim_on_radii_follows_the_runs(true: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rhos = [0.5, 0.0, 0.1, 0.9]
    errors = np.array([1.0, 1.2 if true else 0.9, 5.0, 1.1])[:, None] * np.linspace(1, 1.01, SEEDS)
    data = xr.Dataset(
        {"test_mse": (("arm", "seed"), errors)},
        coords={"arm": [f"exchange 96 rho {rho:g}" for rho in rhos], "seed": range(SEEDS), "rho": ("arm", rhos)},
    )
    planted(monkeypatch, data)
    found = reproduce("S1-F14")
    assert verdict(found, said.SAM_HELPS) == ("holds" if true else "does not hold")
    claim = found.sel(quantity=said.SAM_HELPS)
    # the median over seeds of what Adam is above the mean of both wide radii
    assert_close(float(claim["estimate"]), ((1.2 if true else 0.9) - 1.05) * 1.005, depth=100, magnitude=1.2)


def test_errors_by_horizon_stand_beside_the_printed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, trained(TRUE))
    found = reproduce("S1-F13")
    cell = said.cell("MSE", "SAMformer", "Exchange", 96)
    assert float(found["paper"].sel(quantity=cell)) == 0.161
    assert_close(float(found["ours"].sel(quantity=cell)), 1.0, depth=8)


def test_with_fixed_revin_errors_are_compared_with_those_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.array([[0.427, 0.431, 0.429, 0.428, 0.430]])
    arms = {"arm": ["ETTh1 720 SAMformer fixed RevIN"], "seed": range(5)}
    planted(monkeypatch, xr.Dataset({"test_mse": (("arm", "seed"), values)}, coords=arms, attrs={"kind": "lab_runs"}))
    cell = said.cell("MSE", "SAMformer fixed RevIN", "ETTh1", 720)
    off = measures_samformer.MEASURES_OF_SAMFORMER["S1-T1"](None).values  # type: ignore[arg-type]
    both = np.hypot(values.std(ddof=1), 0.002)
    assert_close(off[f"difference in standard deviations of both: {cell}"], 0.002 / both, depth=100, magnitude=10.0)


def test_cells_stand_beside_the_printed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.array([0.37, 0.38, 0.39, 0.38, 0.38])
    data = xr.Dataset(
        {"test_mse": (("arm", "seed"), values[None])},
        coords={"arm": ["ETTh1 96 SAMformer"], "seed": range(5)},
        attrs={"kind": "lab_runs"},
    )
    planted(monkeypatch, data)
    found = reproduce("S1-T1")
    cell = said.cell("MSE", "SAMformer", "ETTh1", 96)
    assert float(found["paper"].sel(quantity=cell)) == 0.381
    assert_close(float(found["ours"].sel(quantity=cell)), 0.38, depth=8)
    off = float(found["ours"].sel(quantity=f"difference in standard deviations of both: {cell}"))
    assert_close(off, -0.001 / np.hypot(values.std(ddof=1), 0.003), depth=100, magnitude=10.0)
    # what was not trained is told as missing
    assert np.isnan(float(found["ours"].sel(quantity=said.cell("MSE", "Transformer", "Exchange", 720))))


def test_formulas_give_the_printed_numbers_or_say_where_not() -> None:
    found = reproduce("S1-IMP")
    wrong = found["quantity"].values[np.abs(found["difference"].values) > 0.005]
    assert {str(name).split(",")[0].split("over ")[1] for name in wrong} == {"iTransformer", "PatchTST"}
    table_7 = reproduce("S1-T7")
    assert float(table_7["difference"].sel(quantity="cells where neither is")) == 0
    counts = reproduce("S1-T8")
    for horizon in printed.HORIZONS:
        model = ChannelTransformer(512, horizon, 7, normalise=True)
        name = said.COUNT.format(model="SAMformer", horizon=horizon)
        assert float(counts["ours"].sel(quantity=name)) == sum(part.numel() for part in model.parameters())


@pytest.mark.parametrize(("name", "quantity"), [("S1-P4", said.MISSED), ("S1-P5", said.VIOLATIONS)])
def test_propositions_hold_in_every_draw(name: str, quantity: str) -> None:
    found = reproduce(name, seeds=60, seed=3)
    assert float(found["ours"].sel(quantity=quantity)) == 0


def test_the_closed_form_is_the_pipeline() -> None:
    assert float(reproduce("S1-P9", seeds=20)["ours"].sel(quantity=said.APART)) < 1e-12


def test_shipped_results_are_complete() -> None:
    data = experiments.record("toy")
    assert {"sharpness", "entropy", "pattern", "curve"} <= set(data)
    assert data["validation_mse"].notnull().all()
    # the curve ends where the run does
    assert_close(data["curve"].isel(epoch=-1), data["validation_mse"], depth=4000, dtype="float32")
    card = (Path(experiments.__file__).parent / "results" / "README.md").read_text()
    assert all(f"`{name}.nc`" in card for name in experiments.record_names())


def test_the_docs_have_a_line_for_every_item() -> None:
    text = (Path(experiments.__file__).parents[3] / "docs" / "papers.md").read_text()
    assert set(re.findall(r"`reproduce (S1-\w+)`", text)) == {item.id for item in said.ITEMS_OF_SAMFORMER}
    listed = set(re.findall(r"S1-\w+|\bF\d+\w?|\bT\d+", text.split("## SAMformer")[1]))
    figures = {f"F{number}" for number in range(1, 16)} - {"F5"} | {"F5a", "F5b"}
    assert figures <= {name.removeprefix("S1-") for name in listed}
