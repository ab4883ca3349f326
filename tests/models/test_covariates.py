"""Covariates reach the libraries as they take them themselves, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tsfm_lens
from library_forecasts import masked
from refusals import expect_error
from tiny_lenses import fresh, lens_of
from tsfm_lens import explain
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import as_series
from tsfm_lens.models import Lens
from tsfm_lens.testing import assert_close

STEPS = 60
HORIZON = 24


@pytest.fixture(scope="module")
def nano() -> Lens:
    return tsfm_lens.load("chronos2-nano")


def drawn(
    count: int, steps: int = STEPS, horizon: int = HORIZON, *, text: bool = False
) -> list[dict[str, Any]]:
    """Items with a past covariate "a" and known ones, "k" and perhaps "w" (words)."""
    rng = np.random.default_rng(count)
    items = []
    for _ in range(count):
        if text:
            label = {"w": np.resize(["low", "high", "mid"], steps + horizon)}
        else:
            label = {}
        known = {"k": rng.normal(size=steps + horizon), **label}
        past = {"a": rng.normal(size=steps)} | {
            name: item[:steps] for name, item in known.items()
        }
        future = {name: item[steps:] for name, item in known.items()}
        target = 5 + known["k"][:steps] + rng.normal(size=steps)
        items.append(
            {"target": target, "past_covariates": past, "future_covariates": future}
        )
    return items


def test_timesfm_3_covariates_match_the_library() -> None:
    """TimesFM 3 decodes covariates as its library does."""
    lens = fresh("timesfm-3")
    items = drawn(2)
    batch = as_series(items)
    ours = lens.forecast(batch, HORIZON)
    past = {
        name: np.stack([item["past_covariates"][name] for item in items])
        for name in "ak"
    }
    ahead = np.stack([item["future_covariates"]["k"] for item in items])

    def shaped(values: Any) -> torch.Tensor:
        return torch.tensor(np.asarray(values), dtype=torch.float32)[:, None]

    theirs = lens.native.decode(
        shaped([item["target"] for item in items]),
        past_only_covariates=shaped(past["a"]),
        past_future_covariates=shaped(np.concatenate([past["k"], ahead], 1)),
    )
    np.testing.assert_array_equal(
        ours.quantiles[batch.is_target], theirs[:, 0].transpose(1, 2).numpy()
    )
    run = lens.run(batch, HORIZON)
    np.testing.assert_array_equal(run.point, run.forecast.median)


def moirai_input(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Arguments of a uni2ts forecast, (item, time, feature), written down here once
    more.
    """
    past = torch.tensor(np.stack([item["past_covariates"]["a"] for item in items]))
    known = [
        np.r_[item["past_covariates"]["k"], item["future_covariates"]["k"]]
        for item in items
    ]
    values = {
        "past_target": torch.tensor(np.stack([item["target"] for item in items])),
        "feat_dynamic_real": torch.tensor(np.stack(known)),
        "past_feat_dynamic_real": past,
    }
    values = {name: value.float()[..., None] for name, value in values.items()}
    seen = {
        "past_observed_target": "past_target",
        "observed_feat_dynamic_real": "feat_dynamic_real",
        "past_observed_feat_dynamic_real": "past_feat_dynamic_real",
    }
    padding = torch.zeros(len(items), STEPS, dtype=torch.bool)
    return (
        values
        | {name: ~values[of].isnan() for name, of in seen.items()}
        | {"past_is_pad": padding}
    )


@pytest.mark.parametrize("name", ["moirai-1.1", "moirai-2"])
def test_moirai_forecasts_as_its_library_does(name: str) -> None:
    room = pytest.importorskip(
        "uni2ts.model.moirai" if name == "moirai-1.1" else "uni2ts.model.moirai2"
    )
    lens = fresh(name)
    horizon = 8
    items = drawn(2, horizon=horizon)
    batch = as_series(items)
    dims = {
        "target_dim": 1,
        "feat_dynamic_real_dim": 1,
        "past_feat_dynamic_real_dim": 1,
    }
    sizes = {
        "prediction_length": horizon,
        "context_length": STEPS,
        "module": lens.adapter.model,
        **dims,
    }
    ours = lens.forecast(batch, horizon, seed=3)
    with torch.no_grad():
        if name == "moirai-1.1":
            native = room.MoiraiForecast(
                **sizes, patch_size=lens.adapter.patch, num_samples=100
            ).eval()
            torch.manual_seed(3)
            drawn_paths = native(**moirai_input(items))
            assert ours.samples is not None
            np.testing.assert_array_equal(ours.samples[batch.is_target], drawn_paths)
        else:
            np.testing.assert_array_equal(
                ours.quantiles[batch.is_target],
                room.Moirai2Forecast(**sizes).eval()(**moirai_input(items)),
            )
    assert np.isnan(ours.quantiles[~batch.is_target]).all()
    run = lens.run(batch, horizon)
    assert np.isfinite(run.point[batch.is_target]).all()
    positions = run.encoded.spans[""]
    assert set(zip(positions.variate, np.array(positions.start) >= 0, strict=True)) == {
        *((row, ahead) for row in (0, 2) for ahead in (False, True)),
        (1, False),
    }


def test_known_futures_replace_toto_s_forecasts() -> None:
    """Toto puts what is known in the place of its own forecast."""
    room = pytest.importorskip("toto.inference.forecaster")
    lens = fresh("toto-1")
    patch = lens.adapter.prediction_length
    horizon = 2 * patch
    items = drawn(2, 4 * patch, horizon)
    batch = as_series(items)
    ahead = torch.tensor(
        np.array([[item["future_covariates"]["k"]] for item in items]),
        dtype=torch.float32,
    )
    options = {
        "num_samples": 4,
        "samples_per_batch": 4,
        "future_exogenous_variables": ahead,
    }
    ours = lens.forecast(batch, horizon, num_samples=4, seed=5)
    torch.manual_seed(5)
    theirs = room.TotoForecaster(lens.adapter.model).forecast(
        masked(batch, 1), prediction_length=horizon, **options
    )
    assert ours.samples is not None
    np.testing.assert_array_equal(
        ours.samples, theirs.samples.flatten(0, 1).permute(0, 2, 1)
    )
    np.testing.assert_array_equal(
        ours.median[2], np.float32(items[0]["future_covariates"]["k"])
    )


def timestral_input(items: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Covariates as its forecaster takes them, (item, covariate, time)."""
    past = {
        name: np.stack([item["past_covariates"][name] for item in items])[:, None]
        for name in "akw"
    }
    ahead = {
        name: np.stack([item["future_covariates"][name] for item in items])[:, None]
        for name in "kw"
    }
    known = {name: np.concatenate([past[name], ahead[name]], -1) for name in "kw"}
    codes = (
        np.unique(known["w"], return_inverse=True)[1]
        .reshape(known["w"].shape)
        .astype(float)
    )
    return {
        "past_covariates": past["a"],
        "known_covariates": known["k"],
        "categorical_known_covariates": codes,
    }


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(("horizon", "clampsym"), [(7, False), (HORIZON, True)])
def test_timestral_forecasts_as_its_library_does(
    horizon: int, clampsym: bool, several: bool
) -> None:
    lens = fresh("timestral")
    lens.adapter.clampsym = clampsym  # type: ignore[attr-defined]
    items = drawn(3, horizon=horizon, text=True)
    for item in items:
        item["target"][[4, 30, 31]], item["past_covariates"]["a"][20] = np.nan, np.nan
        item["target"] = np.stack([item["target"], item["target"][::-1]][: 1 + several])
    batch = as_series(items)
    ours = lens.forecast(batch, horizon)
    options = {"symmetric_averaging": clampsym, "clip_nonnegative": clampsym}
    theirs = lens.native.forecast(
        np.stack([i["target"] for i in items]),
        horizon,
        **timestral_input(items),
        **options,
    )
    expected = theirs.quantiles.flatten(0, 1).transpose(1, 2).numpy()
    np.testing.assert_array_equal(ours.quantiles[batch.is_target], expected)
    assert np.isnan(ours.quantiles[~batch.is_target]).all()
    if not clampsym:
        run = lens.run(batch.tail(lens.context_length), horizon)
        assert_close(
            run.point[batch.is_target],
            run.forecast.median[batch.is_target],
            depth=100,
            dtype=np.float32,
        )


@pytest.mark.parametrize(
    ("name", "past", "known"),
    [
        ("chronos-2", "forecast", "forecast"),
        ("timesfm-3", "forecast", "forecast"),
        ("toto-1", "forecast", "values"),
        ("moirai-1.1", "NaN", "NaN"),
        ("moirai-2", "NaN", "NaN"),
        ("timestral", "NaN", "NaN"),
    ],
)
def test_rows_of_covariates_hold_what_the_model_emits(
    name: str, past: str, known: str
) -> None:
    """The table of the how-to."""
    # within one pass of every tiny model
    batch = as_series(drawn(1, horizon=8))
    forecast = lens_of(name).forecast(batch, 8)
    future = batch.futures[batch.variates.index("k")]
    emitted = {}
    for variate in ("a", "k"):
        median = forecast.median[batch.variates.index(variate)]
        emitted[variate] = "forecast"
        if np.isnan(median).all():
            emitted[variate] = "NaN"
        elif np.array_equal(median, np.float32(future)):
            emitted[variate] = "values"
    assert emitted == {"a": past, "k": known}


@pytest.mark.parametrize(
    "selection",
    ["series-1/target", ["series-1"], [3], ["series-1/a", "series-1/target"]],
)
def test_selected_targets_keep_their_covariates(nano: Lens, selection: Any) -> None:
    """A selected target keeps its covariates and is explained with them."""
    items = drawn(2)
    one = nano.run(as_series(items), HORIZON).select(selection)
    assert one.batch.variates == ("target", "a", "k")
    found = explain.input_attribution(
        one, method="occlusion", parts={"others": "whole"}
    ).sel(segment="k", quantile=0.5)
    visible = nano.forecast(as_series(items[1:]), HORIZON).median[0]
    mean = items[1]["past_covariates"]["k"].mean()
    items[1]["past_covariates"]["k"][:], items[1]["future_covariates"]["k"][:] = (
        mean,
        mean,
    )
    hidden = nano.forecast(as_series(items[1:]), HORIZON).median[0]
    assert_close(found["forecast"], visible, depth=600, dtype=np.float32)
    assert_close(
        found["attribution"],
        visible - hidden,
        depth=600,
        magnitude=np.abs(visible).max(),
        dtype=np.float32,
    )
    with pytest.raises(InputError, match="off the run's"):
        explain.input_attribution(
            replace(one, batch=one.batch.targets(), _of=(one, [0])),
            method="occlusion",
            parts=1,
        )


def test_models_without_covariates_give_advice() -> None:
    """A model without covariates says so, and what to do."""
    batch = as_series(drawn(1))
    lens = tsfm_lens.load("bolt-nano")
    for ask in (
        lambda: lens.forecast(batch, 4),
        lambda: lens.forward(batch),
        lambda: lens.run(batch, 4).forecast,
    ):
        expect_error(r"takes no past covariates.*targets\(\)", ask)
    assert lens.forecast(batch.targets(), 4).median.shape == (1, 4)


def test_futures_that_end_early_are_refused(nano: Lens) -> None:
    with pytest.raises(
        InputError, match=r"k' ends 24 steps after the context, and the horizon is 25"
    ):
        nano.forecast(as_series(drawn(1)), HORIZON + 1)


@pytest.mark.parametrize("count", [1, 3])
def test_future_categories_match_the_library(
    count: int,
) -> None:
    """A category that only the future has is numbered as in the library."""
    lens = fresh("timestral")
    items = drawn(count, text=True)
    items[0]["future_covariates"]["w"] = np.array(["new", "low"] * (HORIZON // 2))
    batch = as_series(items)
    targets = np.stack([item["target"] for item in items])[:, None]
    theirs = lens.native.forecast(
        targets, HORIZON, **timestral_input(items), symmetric_averaging=False
    )
    np.testing.assert_array_equal(
        lens.forecast(batch, HORIZON).quantiles[batch.is_target],
        theirs.quantiles.flatten(0, 1).transpose(1, 2),
    )


def test_several_targets_refuse_future_categories(nano: Lens) -> None:
    """Beside several targets a category that only the future has is refused."""
    items = drawn(1, text=True)
    items[0]["target"] = np.stack([items[0]["target"]] * 2)
    items[0]["future_covariates"]["w"] = np.array(["new"] * HORIZON)
    expect_error("'new'.*high, low, mid", nano.forecast, as_series(items), HORIZON)
