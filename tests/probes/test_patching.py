"""Activation and attribution patching against identities that hold for any model."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from contrasted import centred, pair_for
from tiny_lenses import lens_of
from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.hooks import Component, PatchFrom, Steer
from tsfm_lens.models import architectures
from tsfm_lens.probes import activation_patching, attribution_patching, edge_attribution, path_patching
from tsfm_lens.probes.attribution_patching import slopes
from tsfm_lens.probes.contrast import contrast
from tsfm_lens.probes.places import places_of, position_groups
from tsfm_lens.testing import assert_close

# a finite step feels the curvature, of the order of its size; and its two forecasts carry the rounding of their level
CURVATURE, ROUNDED_SLOPE = 0.05, 2e-3

NAMES = sorted(architectures())
TRUE_GRADIENTS = [name for name in NAMES if name != "toto-2"]
PATCHES = [name for name in TRUE_GRADIENTS if architectures()[name].readout != "token"]


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_equals_the_patched_run_alone(name: str) -> None:
    lens = lens_of(name)
    clean, corrupted = pair_for(name)
    branch = lens.components()[1]
    found = activation_patching(lens.run(clean, 4), lens.run(corrupted, 4), at=[branch], positions=3)
    point = places_of(lens, [branch])[0].point
    pair = contrast(lens.run(clean, 4), lens.run(corrupted, 4), names=[point])
    groups = position_groups(pair.base.encoded.spans[branch.stack], 3)
    assert list(found["position"]) == [group[0] for group in groups]
    last = max(index for index, word in enumerate(found["position_special"].values) if not word)
    edit = PatchFrom(branch, pair.source_acts, positions=groups[last])
    with torch.no_grad(), lens.edit(edit):
        alone = pair.base.read(lens.forward(pair.base.encoded)).double().numpy()
    cell = found.isel(component=0, position=last)
    size = np.abs(alone).max()
    assert_close(cell["forecast"], alone, depth=200, magnitude=size, dtype=np.float32)
    way = found["clean_forecast"].values - found["corrupted_forecast"].values
    moved = alone - found["corrupted_forecast"].values
    # a share of the way, which may be short beside the level of both forecasts
    far = size / np.sqrt((way**2).sum(-1).min())
    expected = (moved * way).sum(-1) / (way**2).sum(-1)
    assert_close(cell["recovered"], expected, depth=100, magnitude=max(far, 1.0), dtype=np.float32)
    assert_close(cell["effect"], np.abs(moved).mean(-1), depth=200, magnitude=size, dtype=np.float32)


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt"])
@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_the_whole_stream_carries_everything(name: str, direction: str) -> None:
    lens = lens_of(name)
    clean, corrupted = pair_for(name)
    found = activation_patching(lens.run(clean, 4), lens.run(corrupted, 4), positions="all", direction=direction)
    assert_close(found["recovered"], 1, depth=100, dtype=np.float32)
    goal = found["clean_forecast" if direction == "denoise" else "corrupted_forecast"]
    assert_close(found["forecast"].isel(component=0, position=0), goal, depth=100, dtype=np.float32)


@pytest.mark.parametrize(("name", "horizon"), [("chronos", 8), ("chronos-bolt", 20)])
def test_in_rollouts_too(name: str, horizon: int) -> None:
    """Bolt encodes its forecast anew beyond one pass; patched there too, it makes the clean rollout."""
    lens = lens_of(name)
    clean, corrupted = (each.select(0) for each in pair_for(name))
    assert horizon > lens.adapter.longest_pass or name == "chronos"
    samples = 20 if name == "chronos" else None
    found = activation_patching(
        lens.run(clean, horizon, rollout=True, num_samples=samples, seed=7),
        lens.run(corrupted, horizon, rollout=True, num_samples=samples, seed=7),
        positions="all",
    )
    native = lens.forecast(clean, horizon, num_samples=samples, seed=7).median
    assert_close(found["clean_forecast"], native, depth=100, dtype=np.float32)
    assert_close(found["forecast"].isel(component=0, position=0), native, depth=100, dtype=np.float32)


@pytest.mark.parametrize("name", PATCHES)
def test_a_small_corruption_is_estimated_exactly(name: str) -> None:
    """First order is exact in the limit; token models have no small corruption of a token."""
    lens = lens_of(name)
    clean = centred("co2")
    wiggle = 2e-3 * clean.values[0].std() * np.sin(np.arange(40) * 1.7)
    corrupted = replace(clean, values=(clean.values[0] + wiggle,))
    stack = lens.wiring.output_stack.name
    for at in ("branches", "heads"):
        found = attribution_patching(lens.run(clean, 4), lens.run(corrupted, 4), at=at, stack=stack, positions=4)
        size = float(np.abs(found["recovered"]).max())
        assert size > 1e-3
        assert float(np.abs(found["error"]).max()) < 0.03 * size


def test_the_error_is_that_against_patching() -> None:
    lens = lens_of("chronos-bolt")
    clean, corrupted = pair_for("chronos-bolt")
    found = attribution_patching(lens.run(clean, 4), lens.run(corrupted, 4), at="heads", positions=3)
    exact = activation_patching(lens.run(clean, 4), lens.run(corrupted, 4), at="heads", positions=3)
    assert_close(found["recovered"], exact["recovered"], depth=100, magnitude=1.0, dtype=np.float32)
    np.testing.assert_allclose(found["error"], found["first_order"] - found["recovered"])
    assert found.attrs["mean_absolute_error"] == pytest.approx(float(np.abs(found["error"]).mean()))
    assert found.attrs["mean_absolute_error"] > 0
    assert -1 <= found.attrs["rank_correlation"] <= 1


def test_gradients_that_are_no_derivatives_are_refused() -> None:
    clean, corrupted = pair_for("toto-2")
    for probe in (attribution_patching, edge_attribution):
        with pytest.raises(InputError, match="rescales its backward"):
            probe(lens_of("toto-2").run(clean, 4), lens_of("toto-2").run(corrupted, 4))


def test_in_every_pass_of_a_rollout_the_same_steps_are_patched() -> None:
    """Bolt's second pass has more tokens: the register token moves, and so does the place of a step."""
    lens = lens_of("chronos-bolt")
    clean, corrupted = (each.select(0) for each in pair_for("chronos-bolt"))
    name = "encoder_blocks.1.hook_resid_pre"
    found = activation_patching(
        lens.run(clean, 20, rollout=True), lens.run(corrupted, 20, rollout=True), at=[name], positions=5
    )
    _, acts = lens.run_with_cache(clean, names_filter=[name], rollout=True, horizon=20)
    calls = acts.calls(name)
    assert len({call.value.shape for call in calls}) == 2

    def forecast(tokens: list[slice]) -> np.ndarray:
        """Plain hooks: in each pass these tokens come from the clean run."""
        passes = iter(zip(calls, tokens, strict=True))

        def hook(value: torch.Tensor, hook: object) -> torch.Tensor:
            call, where = next(passes)
            value = value.clone()
            value[:, where] = call.value[:, where]
            return value

        return lens.run_with_hooks(corrupted, [(name, hook)], rollout=True, horizon=20).median

    register = found.isel(component=0, position=list(found["position_special"].values).index("REG"))
    assert_close(register["forecast"], forecast([slice(-1, None)] * 2), depth=100, dtype=np.float32)
    oldest = found.isel(component=0, position=1)
    spans = lens.encode(corrupted).spans["encoder"]
    width = spans.stop[0] - spans.start[0]
    first, stop = ((int(oldest[f"position_{edge}"]) - spans.start[0]) // width for edge in ("start", "stop"))
    # both passes show the same context from its beginning; it is not full yet
    assert_close(oldest["forecast"], forecast([slice(first, stop)] * 2), depth=100, dtype=np.float32)


@pytest.mark.parametrize("name", TRUE_GRADIENTS)
def test_slopes_are_finite_differences(name: str) -> None:
    """For token models, too, whose tokens cannot change by little but whose streams can."""
    lens = lens_of(name)
    clean, corrupted = pair_for(name)
    stack = lens.wiring.output_stack
    at = f"{stack.prefix}.1.hook_resid_pre"
    pair = contrast(lens.run(clean, 4), lens.run(corrupted, 4), names=[at])
    own = slopes(pair, [at])
    token = int(own[f"{at}_grad"].norm(dim=-1).sum(0).argmax())
    direction = torch.randn(own[at].shape[-1], generator=torch.Generator().manual_seed(1))
    step = 1e-2 * float(own[at].norm() / own[at].numel() ** 0.5)
    expected = (own[f"{at}_grad"][:, token] * direction).sum().item()
    moved = []
    for sign in (1, -1):
        with torch.no_grad(), lens.edit(Steer(at, direction, scale=sign * step, positions=[token])):
            moved.append(pair.recovered(pair.base.read(lens.forward(pair.base.encoded)).double().numpy()).sum())
    assert abs(expected) > 1e-6
    slope = (moved[0] - moved[1]) / (2 * step)
    assert slope == pytest.approx(expected, rel=CURVATURE, abs=ROUNDED_SLOPE)


def test_gradients_that_are_no_numbers_are_refused() -> None:
    """TimesFM 3 divides the padding of a shorter series by its zero norm."""
    lens = lens_of("timesfm-3")
    values = centred("pedestrians").values[0]
    clean = SeriesBatch((values, values[13:]))
    corrupted = replace(clean, values=tuple(each[::-1].copy() for each in clean.values))
    with pytest.raises(InputError, match="no finite gradient"):
        attribution_patching(lens.run(clean, 4), lens.run(corrupted, 4))


def test_a_pair_must_be_a_pair() -> None:
    lens = lens_of("chronos-2")
    clean = centred("pedestrians", "electricity")
    swapped = clean.select([1, 0])
    with pytest.raises(InputError, match="in the order pedestrians, electricity"):
        activation_patching(lens.run(clean, 4), lens.run(swapped, 4))
    together = SeriesBatch(tuple(v[::-1].copy() for v in clean.values), groups=("both", "both"), variates=("a", "b"))
    with pytest.raises(InputError, match="grouped into items differently"):
        activation_patching(lens.run(clean, 4), lens.run(together, 4))


def test_several_stacks_of_which_one_is_shorter() -> None:
    lens = lens_of("chronos")
    short = centred("pedestrians").tail(5)
    corrupted = replace(short, values=(short.values[0][::-1].copy(),))
    for order in (1, -1):
        places = ["encoder.0.mlp", "decoder.0.mlp"][::order]
        found = activation_patching(lens.run(short, 8), lens.run(corrupted, 8), at=places, positions="all")
        assert (int(found["position_start"][0]), int(found["position_stop"][0])) == (-5, 8)


def test_what_cannot_be_patched_is_refused() -> None:
    lens = lens_of("chronos-bolt")
    clean, corrupted = pair_for("chronos-bolt")
    with pytest.raises(InputError, match="nothing to recover"):
        activation_patching(lens.run(clean, 4), lens.run(clean, 4))
    with pytest.raises(InputError, match="lengths"):
        activation_patching(lens.run(clean, 4), lens.run(corrupted.tail(30), 4))
    for nothing in ([], ()):
        with pytest.raises(InputError, match="at is empty"):
            activation_patching(lens.run(clean, 4), lens.run(corrupted, 4), at=nothing)
        with pytest.raises(InputError, match="senders is empty"):
            path_patching(lens.run(clean, 4), lens.run(corrupted, 4), senders=nothing)
        with pytest.raises(InputError, match="nodes is empty"):
            edge_attribution(lens.run(clean, 4), lens.run(corrupted, 4), nodes=nothing)
    for wrong in (None, 5, [5]):
        with pytest.raises(InputError, match="expected components by name"):
            activation_patching(lens.run(clean, 4), lens.run(corrupted, 4), at=wrong)
    with pytest.raises(InputError, match="rollout is 'yes'"):
        activation_patching(lens.run(clean, 4, rollout="yes"), lens.run(corrupted, 4, rollout="yes"))
    token = lens_of("chronos")
    with pytest.raises(InputError, match="along holds values that are no numbers"):
        activation_patching(*(token.run(each, 4, forced_path=np.full((2, 4), np.nan)) for each in pair_for("chronos")))
    one = activation_patching(
        lens.run(clean, 4), lens.run(corrupted, 4), at=Component("encoder", 0, "mlp"), positions="all"
    )
    twice = activation_patching(
        lens.run(clean, 4), lens.run(corrupted, 4), at=["encoder.0.mlp", "encoder.0.m*"], positions="all"
    )
    assert list(one["component"].values) == list(twice["component"].values) == ["encoder.0.mlp"]
    with pytest.raises(InputError, match="direction='up'"):
        activation_patching(lens.run(clean, 4), lens.run(corrupted, 4), direction="up")
    with pytest.raises(InputError, match="decoder and encoder"):
        activation_patching(lens.run(clean, 4), lens.run(corrupted, 4), at=["encoder.0.mlp", "decoder.0.mlp"])
    with pytest.raises(InputError, match="positions=0"):
        activation_patching(lens.run(clean, 4), lens.run(corrupted, 4), positions=0)
    with pytest.raises(InputError, match="choose 'all', 'each'"):
        activation_patching(lens.run(clean, 4), lens.run(corrupted, 4), positions="some")
    with pytest.raises(InputError, match="no residual stream"):
        activation_patching(lens.run(clean, 4), lens.run(corrupted, 4), at="encoder_blocks.0.self_attn.hook_q")
    with pytest.raises(UnknownNameError, match=r"encoder\.0\.mlp"):
        activation_patching(lens.run(clean, 4), lens.run(corrupted, 4), at="encoder.0.mpl")
    with pytest.raises(UnknownNameError, match="encoder"):
        activation_patching(lens.run(clean, 4), lens.run(corrupted, 4), stack="encode")
    with pytest.raises(InputError, match="via='x'"):
        path_patching(lens.run(clean, 4), lens.run(corrupted, 4), via="x")
    with pytest.raises(InputError, match="only heads"):
        path_patching(lens.run(clean, 4), lens.run(corrupted, 4), via="q", receivers=["decoder.1.mlp"])
    with pytest.raises(InputError, match="paths run between components"):
        path_patching(lens.run(clean, 4), lens.run(corrupted, 4), senders=["encoder_blocks.0.hook_resid_pre"])


def test_gradients_are_there_under_no_grad() -> None:
    lens = lens_of("chronos-bolt")
    clean, corrupted = pair_for("chronos-bolt")
    with torch.no_grad():
        within = attribution_patching(lens.run(clean, 4), lens.run(corrupted, 4), exact=False)
    outside = attribution_patching(lens.run(clean, 4), lens.run(corrupted, 4), exact=False)
    np.testing.assert_array_equal(within["first_order"], outside["first_order"])


def test_a_frozen_model_has_slopes_and_no_model_keeps_any() -> None:
    lens = copy.deepcopy(lens_of("chronos-bolt"))
    clean, corrupted = pair_for("chronos-bolt")
    for weight in lens.parameters():
        weight.grad = None
    free = attribution_patching(lens.run(clean, 4), lens.run(corrupted, 4), exact=False)
    assert all(weight.grad is None for weight in lens.parameters())
    for weight in lens.parameters():
        weight.requires_grad_(False)
    frozen = attribution_patching(lens.run(clean, 4), lens.run(corrupted, 4), exact=False)
    assert_close(frozen["first_order"], free["first_order"], depth=100, dtype=np.float32)
    assert float(np.abs(free["first_order"]).max()) > 0


def test_places_of_several_stacks_at_all_positions() -> None:
    """Bolt's decoder has one token, its encoder several: each place is patched at all of its own."""
    lens = lens_of("chronos-bolt")
    clean, corrupted = pair_for("chronos-bolt")
    places = ["encoder.0.mlp", "decoder.0.cross_attn"]
    both = attribution_patching(lens.run(clean, 4), lens.run(corrupted, 4), at=places, positions="all")
    exact = activation_patching(lens.run(clean, 4), lens.run(corrupted, 4), at=places, positions="all")
    assert_close(both["recovered"], exact["recovered"], depth=100, magnitude=1.0, dtype=np.float32)
    alone = attribution_patching(lens.run(clean, 4), lens.run(corrupted, 4), at=places[:1], positions="each")
    assert_close(both["first_order"][0, 0], alone["first_order"].sum("position")[0], depth=100, dtype=np.float32)


def test_floors_are_those_of_the_noisier_run() -> None:
    """In rollouts of a sampling model another seed of either run, in single passes rounding."""
    lens = lens_of("chronos")
    clean, corrupted = (each.select(0) for each in pair_for("chronos"))
    runs = [lens.run(each, 8, rollout=True, num_samples=20, seed=7) for each in (clean, corrupted)]
    found = activation_patching(*runs, at="branches", positions="all")
    way = found["clean_forecast"].values - found["corrupted_forecast"].values
    again = [lens.forecast(run.batch, 8, num_samples=20, seed=8).median - run.point for run in runs]
    np.testing.assert_allclose(found["effect_floor"], np.max([np.abs(each).mean(-1) for each in again], axis=0))
    shares = [np.abs((each * way).sum(-1)) / np.square(way).sum(-1) for each in again]
    assert (found["recovered_floor"] >= np.max(shares, axis=0)).all()
    other = activation_patching(*runs, at="branches", positions="all", direction="noise")
    np.testing.assert_array_equal(other["effect_floor"], found["effect_floor"])
    single = activation_patching(lens.run(clean, 8), lens.run(corrupted, 8), at="branches", positions="all")
    assert (single["recovered_floor"] < found["recovered_floor"]).all()
    assert bool(single["recovered_stands_out"].any())


def test_every_effect_of_a_contrast_is_judged() -> None:
    lens = lens_of("chronos-bolt")
    runs = [lens.run(each, 4) for each in pair_for("chronos-bolt")]
    judged = {
        "recovered": (activation_patching(*runs, at="branches"), path_patching(*runs)),
        "first_order": (attribution_patching(*runs, at="branches", exact=False),),
        "score": (edge_attribution(*runs),),
    }
    for name, results in judged.items():
        for found in results:
            estimate = found[f"{name}_estimate"]
            np.testing.assert_allclose(estimate, found[name].mean("series").where(estimate.notnull()))
            assert set(found[f"{name}_leads"].dims) == set(found[name].dims) - {"series"}
    paths, edges = judged["recovered"][1], judged["score"][0]
    assert not paths["recovered_stands_out"].where(paths["recovered"].isnull().any("series"), False).any()
    assert (edges["score_estimate"].isnull() == paths["recovered_estimate"].isnull()).values.all()
