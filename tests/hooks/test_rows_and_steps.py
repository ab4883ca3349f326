"""Rows, steps and spans where libraries order or count them in ways of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tiny_lenses import ATTENDING, archetypes, fresh, lens_of
from tsfm_lens.ablation import Variant, run_variants
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import as_series
from tsfm_lens.hooks import Component, EditPattern, Intervention, PatchFrom, Steer, Zero
from tsfm_lens.models import architectures
from tsfm_lens.testing import assert_close

STEPS = np.arange(32)
ONE = np.sin(STEPS / 2.0)
TWO = 3 + np.cos(STEPS / 3.0)


def pairs() -> object:
    """Two items of two variates."""
    return as_series([np.stack([ONE, TWO]), np.stack([TWO[::-1], 0.5 * ONE])])


@pytest.mark.parametrize(
    "edit",
    [
        EditPattern("1.group_attn", lambda p: torch.full_like(p, 1 / p.shape[-1])),
        EditPattern("1.group_attn.1", lambda p: p.roll(1, -1)),
        Zero("blocks.1.group_attn.hook_attn_scores"),
    ],
    ids=["uniform", "one head", "scores"],
)
def test_variants_never_attend_to_each_other(edit: Intervention) -> None:
    """Variants do not attend to each other."""
    lens = lens_of("chronos-2")
    encoded = lens.encode(pairs(), horizon=8)
    first = (Zero("0.mlp"), edit)
    other = (Zero("0.mlp"), Steer("0.mlp", 3 * torch.ones(lens.d_model)), edit)
    together = run_variants(
        lens, encoded, [Variant("first", first), Variant("other", other)]
    )
    with torch.no_grad():
        for index, interventions in enumerate((first, other)):
            with lens.edit(*interventions):
                assert_close(together[index], lens.forward(encoded), depth=100)


def test_toto_sample_paths_are_labelled_correctly() -> None:
    """Sample paths of Toto are labelled and patched as they lie in the batch."""
    lens = lens_of("toto-1")
    series = [ONE, TWO]
    point = "blocks.0.hook_resid_post"
    plain, activations = lens.run_with_cache(
        series, names_filter=point, rollout=True, horizon=4, num_samples=3
    )
    array = activations.to_xarray(point)
    assert array.sizes["sample"] == 3
    # paths of a series have one context
    first = array.isel(step=0)
    np.testing.assert_array_equal(first, first.isel(sample=[0] * 3))
    assert not np.array_equal(first.isel(series=0), first.isel(series=1))
    with torch.no_grad():
        _, single = lens.run_with_cache(series, names_filter=point)
    with lens.edit(PatchFrom(point, single)):
        patched = lens.forecast(series, 4, num_samples=3)
    assert_close(patched.quantiles, plain.quantiles, depth=1000, dtype=np.float32)


def test_native_call_in_context_has_rows() -> None:
    """A native call inside a context has rows of its own."""
    lens = fresh("chronos-bolt")
    lens.forecast([ONE, TWO], 4)
    four = [torch.tensor(values) for values in (ONE, TWO, ONE + 1, TWO + 1)]
    plain = lens.native.predict(four, prediction_length=4)
    with lens.edit(Zero("decoder.0", rows=[1])):
        edited = lens.native.predict(four, prediction_length=4)
    assert (edited != plain).flatten(1).any(dim=1).tolist() == [
        False,
        True,
        False,
        False,
    ]


def test_gradients_of_toto_2_are_refused() -> None:
    """Gradients of Toto 2 are refused by every function that takes them."""
    lens = fresh("toto-2")
    point = "blocks.0.hook_resid_post"
    with (
        pytest.raises(InputError, match="derivatives"),
        lens.hooks(bwd_hooks=[(point, lambda grad, hook: None)]),
    ):
        pass
    with pytest.raises(InputError, match="derivatives"):
        lens.add_hook(point, lambda grad, hook: None, dir="bwd")
    with pytest.raises(InputError, match="derivatives"):
        lens.run_with_cache([ONE], incl_bwd=True, loss=torch.sum)


@pytest.mark.parametrize(
    "name",
    [
        "toto-1",
        "toto-2",
        "timesfm-3",
        "timesfm-2.5",
        "timestral",
        "moirai-1.1",
        "moirai-2",
    ],
)
def test_unsupported_library_precisions_are_refused(name: str) -> None:
    """Precisions that a library does not run in are refused."""
    lens = fresh(name)
    with pytest.raises(InputError, match="float32"):
        lens.to(torch.bfloat16)
    assert next(lens.parameters()).dtype == torch.float32


# samplers that reject draws use up random numbers according to every row, so other rows
# draw otherwise
@pytest.mark.parametrize(
    "name",
    archetypes(
        [name for name in ATTENDING if architectures()[name].readout != "distribution"]
    ),
)
def test_only_chosen_series_pattern_changes(
    name: str,
) -> None:
    """Only the chosen series' pattern changes, however a model orders its rows."""
    lens = lens_of(name)
    adapter = lens.adapter
    stack = lens.wiring.output_stack
    example = getattr(adapter, "example", None)
    if example:
        series = list(example(2, 32).values)
    else:
        series = [np.sin(STEPS / (2 + i)) * (i + 1) + 0.1 * STEPS for i in range(3)]
    # past the first pass, where a rollout goes there
    goes_on = adapter.rollout in ("cache", "refeed")
    if goes_on:
        horizon = adapter.prediction_length + 3
    else:
        horizon = min(6, adapter.prediction_length)
    if adapter.readout != "quantile":
        draws = {"num_samples": 3}
    else:
        draws = {}
    at = Component(stack.name, stack.n_layers - 1, stack.attention_kinds()[0])
    plain = lens.forecast(series, horizon, seed=1, **draws).quantiles
    with lens.edit(
        EditPattern(at, lambda pattern: 0.1 * pattern.roll(1, -1), rows=[1])
    ):
        edited = lens.forecast(series, horizon, seed=1, **draws).quantiles
    assert_close(edited[[0, 2]], plain[[0, 2]], depth=100, dtype=np.float32)
    assert not np.allclose(edited[1], plain[1])
