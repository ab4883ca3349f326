"""Series without variation are left out of every statistic over series, and counted;
nothing else changes. A flat forecast of a context that varies is left out of distances
of shapes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

import tsfm_lens
from refusals import expect_error
from tiny_lenses import lens_of, tiny
from tsfm_lens.core.estimates import add_estimates, estimated_effects, with_twins
from tsfm_lens.models import Run
from tsfm_lens.models.noise import (
    cached_flat_contexts,
    flat_forecasts,
    forecast_rounding,
    ranges,
)
from tsfm_lens.probes import (
    ablation_effects,
    ablation_recipes,
    activation_patching,
    attention_sinks,
    attribution,
    causal_effects,
    context_parroting,
    head_parroting,
    layer_gain,
    logit_lens,
    seasonality_bias,
    stream_shares,
)
from tsfm_lens.report.cards import make_cards
from tsfm_lens.studies.bench.models import sealed_models
from tsfm_lens.studies.bench.planted import score_methods
from tsfm_lens.sweep.statistics.scores import forecast_distances
from tsfm_lens.testing import assert_close
from tsfm_lens.viz import ablation_forecasts
from tsfm_lens.viz.zero_ablation import read_ablation

STEPS = 96
NOISE = np.random.default_rng(3).normal(size=STEPS)
FLAT = {
    "constant": np.full(STEPS, 5.0),
    "zero": np.zeros(STEPS),
    "negative and large": np.full(STEPS, -3e6),
    "tiny": np.full(STEPS, 1e-9),
    "noise below the float step": 5 + 1e-9 * NOISE,
    "unit noise at 1e9": 1e9 + NOISE,
}
PARTS = ("acts", "size", "low", "high", "p", "significant", "leads", "lead_share")
# the rows of a batch are computed together in float32
NEAR = 2e-3


def varied() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    time = np.arange(STEPS)
    return [
        50 + 10 * np.sin(2 * np.pi * time / 12 + i) + rng.normal(size=STEPS)
        for i in range(3)
    ]


@cache
def make_run(name: str, case: str) -> Run:
    """A run of a model on series that vary, with flat ones nowhere, before or between
    them, or on flat ones alone.
    """
    if name.endswith("nano"):
        lens = tsfm_lens.load(name)
    else:
        lens = lens_of(name)
    rows = varied()
    flat = list(FLAT.values())
    orders = {
        "nowhere": rows,
        "before": [*flat, *rows],
        "between": [rows[0], *flat[:3], rows[1], *flat[3:], rows[2]],
        "alone": flat,
    }
    return lens.run(
        orders[case], 6, holdout=True, num_samples=4 if lens.emits == "token" else None
    )


def gain(run: Run) -> xr.Dataset:
    return layer_gain(logit_lens(run))


def recipes(run: Run) -> xr.Dataset:
    last = run.lens.wiring.output_stack
    return ablation_recipes(
        run, {"last layer": [f"{last.name}.{last.n_layers - 1}".lstrip(".")]}
    )


PROBES = (ablation_effects, attribution, stream_shares, gain, causal_effects)
ROLLING = (context_parroting, seasonality_bias, recipes)
MODELS = ("bolt-nano", "chronos-nano", "chronos2-nano")
# where forecasts are drawn, the draws of a series depend on its place in the batch
CASES = [
    *(("bolt-nano", probe) for probe in (*PROBES, *ROLLING)),
    *(("chronos-nano", probe) for probe in PROBES),
    *(("chronos2-nano", probe) for probe in (attribution, seasonality_bias)),
    *((name, ablation_effects) for name in ("chronos2-nano", "tirex", "ttm")),
]


@pytest.mark.parametrize(
    ("name", "probe"), CASES, ids=lambda item: getattr(item, "__name__", item)
)
def test_flat_series_change_no_statement(
    name: str, probe: Callable[[Run], xr.Dataset]
) -> None:
    """Flat series among others change no statement, and they are counted."""
    plain = probe(make_run(name, "nowhere"))
    assert estimated_effects(plain)
    for case in ("before", "between"):
        found = probe(make_run(name, case))
        for effect in estimated_effects(plain):
            for part in PARTS:
                one = plain[f"{effect}_{part}"]
                other = found[f"{effect}_{part}"]
                assert_allclose(
                    other, one, rtol=NEAR, atol=NEAR, err_msg=f"{effect}_{part}"
                )
            metadata = found[f"{effect}_p"].attrs
            before = plain[f"{effect}_p"].attrs
            assert metadata["flat"] == len(FLAT)
            assert before["flat"] == 0
            for fact in ("units", "entries", "family", "needed", "target"):
                assert metadata[fact] == before[fact], fact


@pytest.mark.parametrize("name", MODELS)
def test_flat_series_alone_give_no_statement(name: str) -> None:
    """Of flat series alone nothing is told but that they are flat."""
    run = make_run(name, "alone")
    assert flat_forecasts(run).all()
    for probe in (ablation_effects, attribution, gain):
        found = probe(run)
        for effect in estimated_effects(found):
            assert found[f"{effect}_size"].isnull().all()
            assert not found[f"{effect}_acts"].any()
            assert not found[f"{effect}_significant"].any()
            assert found[f"{effect}_p"].attrs["flat"] == len(FLAT)
    found = ablation_effects(run)
    text = " ".join(read_ablation(found, "spearman_distance"))
    assert str(len(FLAT)) in text
    assert "flat" in text
    assert not make_cards({"ablation_effects": found}, {"ablation_effects": "s1"})
    expect_error("flat", ablation_forecasts, found)


def test_flatness_depends_on_the_model() -> None:
    """The bins of chronos-nano are about half a percent of the level wide."""
    bolt, chronos = map(tsfm_lens.load, ("bolt-nano", "chronos-nano"))
    rows = [*varied(), *list(FLAT.values())[:4]]
    for factor, level in ((1e3, 0.0), (1e-3, 0.0), (1.0, 20.0)):
        run = bolt.run([factor * row + level for row in rows], 6)
        assert cached_flat_contexts(run).tolist() == [False] * 3 + [True] * 4
    row = 1000 + 0.5 * NOISE
    assert cached_flat_contexts(chronos.run([row], 6, num_samples=2)).all()
    assert not flat_forecasts(bolt.run([row], 6)).any()


def test_flat_forecasts_do_not_mark_contexts() -> None:
    """What is kept of a run is the same before and after others have read it."""
    run = tsfm_lens.load("bolt-nano").run(varied(), 6)
    run.point[1] = 7.0
    marks = flat_forecasts(run)
    assert marks.tolist() == [False, True, False]
    for kept in (cached_flat_contexts(run), forecast_rounding(run), marks):
        with pytest.raises(ValueError, match="read-only"):
            kept[:] = 1
    assert not cached_flat_contexts(run).any()


def test_twins_omit_the_same_flat_forecasts() -> None:
    """An untrained twin leaves out the shapes that its original leaves out."""
    run = tsfm_lens.load("bolt-nano").run(varied(), 6)
    run.point[1] = 7.0
    control = run.twin(0)
    assert np.ptp(control.point[1]) > 0.1
    assert flat_forecasts(control).tolist() == [False, True, False]
    found = ablation_effects(control, components="decoder.0.mlp")
    assert found["spearman_distance_p"].attrs["units"] == 2
    assert found["mean_shift_p"].attrs["units"] == 3
    assert read_ablation(found, "spearman_distance")


# forecasts without a shape of contexts that vary

HEADS = {
    "chronos-bolt": {"output_patch_embedding": (9, -1)},
    "chronos-2": {"output_patch_embedding": (9, -1)},
    "timesfm-2.5": {
        "output_projection_point": (-1, 10),
        "output_projection_quantiles": (-1, 10),
    },
}
"""Output heads of tiny models, and the shape of their rows, -1 for the steps."""


@cache
def level_run(name: str) -> Run:
    """A run of a model that forecasts a level: every step has the weights of the mean
    step, or reads the same token before it.
    """
    native = tiny(name)
    model = getattr(native, "model", native)
    with torch.no_grad():
        if name == "chronos":
            ones = torch.ones_like(model.shared.weight)
            model.decoder.embed_tokens = torch.nn.Embedding.from_pretrained(ones)
        for head, shape in HEADS.get(name, {}).items():
            steps = shape.index(-1)
            for part, parameter in model.get_submodule(head).named_parameters():
                if part.startswith(("output_layer", "residual_layer")):
                    rows = parameter.view(*shape, *parameter.shape[1:])
                    rows.copy_(rows.mean(steps, keepdim=True).expand_as(rows))
    lens = tsfm_lens.load(native, check=False)
    return lens.run(
        # the few bins of the tiny model of tokens do not resolve waves about a level
        [values - values.mean() for values in varied()],
        4,
        holdout=True,
        rollout=False,
        num_samples=4 if lens.emits == "token" else None,
    )


def patching(run: Run) -> xr.Dataset:
    corrupted = run.lens.run(
        [values[::-1] for values in run.batch.values],
        4,
        rollout=False,
        num_samples=run.num_samples,
    )
    return activation_patching(run, corrupted)


def parroting(run: Run) -> xr.Dataset:
    return head_parroting(run, lag=12)


LEVELS = ("chronos", *HEADS)
LEVEL_CASES = [
    *((name, probe) for name in LEVELS for probe in (ablation_effects, attribution)),
    *((name, probe) for name in LEVELS for probe in (causal_effects, patching)),
    *((name, parroting) for name in ("chronos", "chronos-bolt")),
    ("chronos", gain),
    ("timesfm-2.5", stream_shares),
    ("chronos-bolt", attention_sinks),
    ("chronos-2", seasonality_bias),
    ("chronos-2", recipes),
]


@pytest.mark.parametrize(
    ("name", "probe"), LEVEL_CASES, ids=lambda item: getattr(item, "__name__", item)
)
def test_flat_forecasts_keep_their_place(
    name: str, probe: Callable[[Run], xr.Dataset]
) -> None:
    """Every effect but a distance of shapes is of all series."""
    run = level_run(name)
    assert flat_forecasts(run).all()
    assert not cached_flat_contexts(run).any()
    found = probe(run)
    assert not found["flat"].any()
    for effect in estimated_effects(found):
        facts = found[f"{effect}_p"].attrs
        lost = 3 * (effect == "spearman_distance")
        assert (facts["flat"], facts["flat_forecasts"]) == (lost, lost), effect
        if found[effect].notnull().any():
            assert facts["units"] == 3 - lost, effect


@pytest.mark.parametrize("name", LEVELS)
def test_changes_of_a_level_have_a_size(name: str) -> None:
    """It is the mean change over the range of context and forecast, as by hand."""
    run = level_run(name)
    found = ablation_effects(run)
    later = slice(run.first_step, None)
    moved = np.abs(found["forecast"].values - run.point)[..., later].mean(-1)
    expected = np.median(moved / ranges(run, run.point), axis=1)
    assert_allclose(found["mean_shift_size"], expected)
    assert (found["mean_shift_acts"] == 3).any()
    text = " ".join(read_ablation(found, "spearman_distance"))
    for words in ("No shapes are compared", "flat", "moves farthest"):
        assert words in text
    figure = ablation_forecasts(found)
    order = np.argsort(-found["mean_shift"].values[:, 0])
    parts = [
        str(found["component"].values[at])
        for at in order
        if found["kind"].values[at] != "layer"
    ]
    assert parts[0] in figure.layout.annotations[0].text
    assert make_cards({"ablation_effects": found}, {"ablation_effects": "series"})


METHODS = (
    "zero ablation",
    "mean ablation",
    "activation patching, denoise",
    "direct effect, read-out stack",
    "direct attribution, integrated",
)


def test_a_planted_level_is_found() -> None:
    """The mean of the recent past is a flat forecast, and the scoring of the package
    finds the heads that make it.
    """
    sealed, _ = sealed_models("local-mean-chronos-bolt", seed=0)
    found = score_methods(sealed, METHODS)
    assert found["auroc"].tolist() == [1.0] * len(METHODS)
    assert (found["claim_precision"] == 1).all()


# statements


def effects(values: np.ndarray, flat: np.ndarray, **coords: object) -> xr.Dataset:
    data = xr.Dataset({"effect": (("component", "series"), values)})
    return data.assign_coords(flat=("series", flat), **coords)


def test_statistics_cover_series_that_vary() -> None:
    """A scale or a floor that is no number leaves a series out, too, instead of making
    its effects 0.
    """
    rng = np.random.default_rng(1)
    values = rng.normal(size=(5, 14)) + np.linspace(0, 2, 5)[:, None]
    flat = np.zeros(14, dtype=bool)
    none = np.zeros(14, dtype=bool)
    flat[[0, 4, 13]] = True
    floor = rng.random(14) / 10
    scale = 1 + rng.random(14)
    alone = add_estimates(
        effects(values[:, ~flat], none[~flat]),
        "effect",
        floor=floor[~flat],
        scale=scale[~flat],
        signed=True,
    )
    for left_out, floors, scales in (
        (flat, floor, scale),
        (flat, floor, np.where(flat, 0.0, scale)),
        (none, np.where(flat, np.nan, floor), scale),
    ):
        data = effects(values, left_out)
        found = add_estimates(data, "effect", floor=floors, scale=scales, signed=True)
        for part in PARTS:
            name = f"effect_{part}"
            assert_array_equal(found[name], alone[name])
        assert found["effect_p"].attrs["units"] == 11
        assert found["effect_p"].attrs["flat"] == left_out.sum()


def test_flat_windows_are_omitted() -> None:
    """Flat windows are left out within their series, and of a single series, too."""
    values = np.arange(1.0, 13.0).reshape(2, 6)
    flat = np.array([False, True] * 3)
    several = effects(values, flat, item=("series", list("aabbcc")))
    found = add_estimates(several, "effect", floor=0.0)
    assert found["effect_p"].attrs["units"] == 3
    assert found["effect_p"].attrs["entries"] == 3
    assert_array_equal(found["effect_size"], [3.0, 9.0])
    # the second series is flat at all times, so that the windows of the first one are
    # the units
    flat = np.array([False] * 4 + [True] * 2)
    single = effects(values, flat, item=("series", list("aaaabb")))
    target = add_estimates(single, "effect", floor=0.0)["effect_p"].attrs["target"]
    assert target == "other times of this series"


def test_twins_of_flat_series_are_omitted() -> None:
    """Untrained twins without a series that counts are no comparison."""

    def of_size(size: float, flat: bool) -> xr.Dataset:
        data = effects(np.full((2, 3), size), np.full(3, flat))
        return add_estimates(data, "effect", floor=0.0)

    trained = of_size(0.5, False)
    flat = of_size(0.5, True)
    small = of_size(0.02, False)
    assert "effect_learned" not in with_twins(trained, [flat, flat])
    assert (
        with_twins(trained, [flat, small, small])["effect_learned"].attrs["twins"] == 2
    )


@pytest.mark.parametrize("level", [0.0, 5.0, -1e9])
def test_sweep_distances_omit_flat_forecasts(
    level: float,
) -> None:
    """Distances of sweeps leave out plain forecasts that are flat."""
    wave = np.sin(np.arange(12.0))
    flat = np.full(12, level)
    wiggle = flat
    if level:
        wiggle = level * (1 + 1e-7 * np.sign(wave))
    plain = np.stack([wave, flat, wiggle, wave, wave])
    point = np.stack([wave, wave, wave[::-1], flat, wave[::-1]])
    found = forecast_distances(point, plain, flat=np.arange(5) == 4)
    for name in ("spearman", "pearson", "shape", "spectral"):
        distance = found[f"{name}_distance"]
        assert_close(distance, [0, np.nan, np.nan, 1, np.nan], depth=100, what=name)
    assert np.isfinite(found["mean_shift"]).all()


@pytest.mark.parametrize("name", MODELS)
def test_errors_within_rounding_are_no_denominator(name: str) -> None:
    """Where the truth is the forecast, no change of the error is a multiple of it;
    elsewhere it is as by hand.
    """
    lens = tsfm_lens.load(name)
    run = lens.run(varied(), 6, num_samples=2 if lens.emits == "token" else None)
    truth = run.point.copy()
    truth[1:] += 1.0
    found = ablation_effects(replace(run, truth=truth))
    change = found["mae_change"].transpose("component", "series")
    expected = found["mae"] / found["mae_baseline"] - 1
    expected[{"series": 0}] = np.nan
    assert_allclose(change, expected.transpose("component", "series"))
    assert found["mae_change_p"].attrs["units"] == 2
