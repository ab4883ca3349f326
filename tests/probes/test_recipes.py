"""Heavy ablations against edited weights, and the choice of heads against dense
products and hand-built entropies.
"""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

from closeness import close_in_float32
from edited_weights import silenced
from refusals import expect_error
from tiny_lenses import ATTENDING, archetypes, lens_of
from tiny_series import few_draws
from tsfm_lens.data import bundled
from tsfm_lens.hooks.component import Component
from tsfm_lens.models import load
from tsfm_lens.probes import (
    ablation_recipes,
    diffuse_heads,
    heads_by_stable_rank,
    random_heads,
)
from tsfm_lens.probes import sharp_heads as sharpest
from tsfm_lens.probes.attention import attention_over_time


@pytest.mark.parametrize("name", ["chronos-nano", "bolt-nano"])
def test_recipes_equal_models_with_zeroed_weights(
    name: str,
) -> None:
    """A recipe is the model with those weights zeroed along the rollout."""
    lens = load(name)
    context, truth = bundled("co2", "electricity").tail(96).split(33)
    recipe = [
        "decoder.1.cross_attn.0",
        "decoder.2.cross_attn.3",
        "decoder.2.self_attn.1",
        "decoder.1.mlp",
    ]
    draws = {**few_draws(lens), "seed": 3}
    run = lens.run(context, 33, truth=truth, **draws)
    result = ablation_recipes(run, {"three heads": recipe})
    plain, found = (result.sel(recipe=item) for item in ("original", "three heads"))
    expected = silenced(lens, lens.components(*recipe)).forecast(context, 33, **draws)
    assert_array_equal(plain["quantile_forecast"], run.forecast.quantiles)
    close_in_float32(found["quantile_forecast"], expected.quantiles, depth=200)
    assert ("sample" in result) == (lens.emits == "token")
    # the recipe changes the forecast by far more than that tolerance
    assert found["spearman_distance"].max() > 1e-3
    assert (plain["spearman_distance"] < 1e-12).all()
    moved = np.abs(expected.median - run.point).mean(axis=-1)
    close_in_float32(found["mean_shift"], moved, depth=200, magnitude=500)
    error = np.abs(expected.median - truth).mean(axis=-1)
    close_in_float32(found["mae"], error)
    assert (found["n_heads"], found["n_mlps"]) == (3, 1)
    # two kinds of attention are touched, each with 3 layers of 4 heads
    assert float(found["heads_share"]) == 3 / 24
    past = [np.std(values[-33:]) for values in context.values]
    spread = run.point.std(axis=-1) / past
    assert_allclose(plain["spread_ratio"], spread)


@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_stable_rank_agrees_with_dense_products(name: str) -> None:
    """Stable rank chooses the heads that the dense product does."""
    lens = lens_of(name)
    stack = lens.wiring.output_stack
    kind = attention_over_time(stack)
    layer = stack.find_layers(kind)[1][-1]
    dense = lens.weights.heads(layer, kind, stack.name).W_QK.AB.detach().double()
    values = np.linalg.svd(dense.numpy(), compute_uv=False)
    ranks = (values**2).sum(-1) / values[:, 0] ** 2
    for order, bounds in (("low", ranks.argsort()), ("high", (-ranks).argsort())):
        for retained in range(stack.n_heads + 1):
            chosen = heads_by_stable_rank(
                lens, {layer: retained}, order=order, paired=False
            )
            heads = sorted(bounds[: stack.n_heads - retained])
            expected = [Component(stack.name, layer, kind, head) for head in heads]
            assert sorted(chosen, key=lambda item: item.head) == expected


def test_random_heads_match_the_informed_counts() -> None:
    """Random heads are as many as the informed ones, and pairs share their index."""
    lens = load("chronos-nano")
    keep = {0: 1, 2: 3}
    informed = heads_by_stable_rank(lens, keep)
    drawn = [random_heads(lens, keep, seed=seed) for seed in range(6)]
    for chosen in (informed, *drawn):
        assert sum(c.layer == 0 for c in chosen) == 6
        assert sum(c.layer == 2 for c in chosen) == 2
        of_self, of_cross = (
            {(c.layer, c.head) for c in chosen if c.kind == kind}
            for kind in ("self_attn", "cross_attn")
        )
        assert of_self == of_cross
    alone = heads_by_stable_rank(lens, keep, paired=False)
    assert alone == [c for c in informed if c.kind == "cross_attn"]
    assert drawn[0] == random_heads(lens, keep, seed=0)
    assert any(item != drawn[0] for item in drawn[1:])


def test_sharp_and_diffuse_heads_differ_most() -> None:
    """Sharp and diffuse heads are the ends of the order by entropy."""
    entropy = xr.Dataset(
        {"entropy": (("layer", "head"), [[3.0, 0.5], [2.0, 4.0]])},
        coords={"layer": [1, 4], "head": [0, 1]},
        attrs={"kind": "head_entropy", "stack": "decoder", "attention": "cross_attn"},
    )
    assert list(map(str, sharpest(entropy, 2))) == [
        "decoder.1.cross_attn.1",
        "decoder.4.cross_attn.0",
    ]
    assert list(map(str, diffuse_heads(entropy, 2))) == [
        "decoder.4.cross_attn.1",
        "decoder.1.cross_attn.0",
    ]
    expect_error("1 to 4", sharpest, entropy, 5)
    expect_error(
        r"head_entropy\(\.\.\.\) gives",
        sharpest,
        xr.Dataset(attrs={"kind": "forecast"}),
    )


@pytest.mark.parametrize("name", ["bolt-nano", "chronos-nano"])
def test_noise_follows_the_seed_of_runs(name: str) -> None:
    lens = load(name)
    batch = bundled("co2").tail(64)
    gone = ["encoder.0.mlp"]
    for seed in (0, 5):
        run = lens.run(batch, 4, seed=seed, **few_draws(lens))
        found = ablation_recipes(run, {"noise": gone}, how="noise")
        with lens.ablate(*gone, how="noise", seed=seed):
            alone = lens.forecast(batch, 4, seed=seed, **few_draws(lens))
        assert_array_equal(found["quantile_forecast"][1], alone.quantiles)
