"""Activation, attribution and path patching against identities that hold for any model."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from tsfm_lens.data import SeriesBatch, bundled
from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.hooks import Component, PatchFrom, Steer
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.probes import activation_patching, attribution_patching, edge_attribution, path_patching
from tsfm_lens.probes.attribution_patching import slopes
from tsfm_lens.probes.contrast import contrast
from tsfm_lens.probes.path_patching import _HeadInput, heard_by, sender_contrast
from tsfm_lens.probes.places import later_branches, places_of, position_groups
from tsfm_lens.testing import assert_close, rounding

# a finite step feels the curvature, of the order of its size; and its two forecasts carry the rounding of their level
CURVATURE, ROUNDED_SLOPE = 0.05, 2e-3

NAMES = sorted(architectures())
TRUE_GRADIENTS = [name for name in NAMES if name != "toto-2"]
PATCHES = [name for name in TRUE_GRADIENTS if architectures()[name].readout != "token"]


@cache
def lens_of(name: str) -> Lens:
    return load(architectures()[name].tiny(), check=False)


def centred(*names: str) -> SeriesBatch:
    """Real series around zero: the few bins of a tiny token model then tell their values apart."""
    series = bundled(*names).tail(40)
    return replace(series, values=tuple(values - values.mean() for values in series.values))


@cache
def pair_for(name: str) -> tuple[SeriesBatch, SeriesBatch]:
    """A series and the same values backwards: what a model scales by is alike, to the last digits."""
    own = getattr(lens_of(name).adapter, "example", None)
    clean = own(0, 40) if own else centred("pedestrians", "electricity")
    return clean, replace(clean, values=tuple(values[::-1].copy() for values in clean.values))


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


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt", "chronos-2", "moirai-2", "toto-1"])
def test_a_receiver_hears_the_sender_alone(name: str) -> None:
    """The held run puts the sender's change on the stream before the receiver; accounting gives that stream too."""
    lens = lens_of(name)
    clean, corrupted = pair_for(name)
    stack = lens.wiring.output_stack
    kinds = [row.kind for row in stack.attentions(0)]
    receiving = next(row for row in stack.attentions(1) if row.over == "time" or stack.attention_kinds() == [row.kind])
    sender = Component(stack.name, 0, kinds[-1], 1)
    receiver = Component(stack.name, 1, receiving.kind, 2 % stack.n_heads)
    branch = Component(stack.name, 1, receiving.kind)
    pair = sender_contrast(lens.run(clean, 4), lens.run(corrupted, 4), places_of(lens, [sender]), direction="noise")
    (_, _, heard), *_ = heard_by(pair, places_of(lens, [sender]), places_of(lens, [receiver]))
    write = f"{stack.prefix}.0.{sender.kind}.hook_result"
    order = [row.kind for row in stack.rows(1)].index(receiving.kind)
    before = f"{stack.prefix}.1." + ["hook_resid_pre", "hook_resid_mid", "hook_resid_mid2"][order]
    base = pair.base.record([write, before])
    source = pair.source.record([write])
    stream = base[before] + source[write][:, :, 1] - base[write][:, :, 1]
    shifted = replace(base, recorded={before: [replace(base.calls(before)[0], value=stream)]})
    z = places_of(lens, [receiver])[0].point
    with lens.edit(PatchFrom(before, shifted)):
        _, expected = lens.run_with_cache(pair.base.encoded, names_filter=[z])
    head = receiver.head
    assert_close(heard[z][:, :, head], expected[z][:, :, head], depth=100)
    assert str(branch) in [str(each) for each in later_branches(lens.wiring, sender)]


@pytest.mark.parametrize("name", NAMES)
def test_the_last_branch_acts_directly(name: str) -> None:
    """Nothing comes after it, so its path to the output is all that patching it does."""
    lens = lens_of(name)
    clean, corrupted = pair_for(name)
    stack = lens.wiring.output_stack
    last = Component(stack.name, stack.n_layers - 1, stack.rows(stack.n_layers - 1)[-1].kind)
    paths = path_patching(lens.run(clean, 4), lens.run(corrupted, 4), senders=[last])
    whole = activation_patching(
        lens.run(clean, 4), lens.run(corrupted, 4), at=[last], positions="all", direction="noise"
    )
    assert_close(
        paths["recovered"].sel(receiver="output").isel(sender=0),
        whole["recovered"].isel(component=0, position=0),
        depth=100,
        magnitude=1.0,
        dtype=np.float32,
    )
    assert np.isnan(paths["recovered"].isel(receiver=slice(None, -1))).all()


def test_queries_keys_and_values_together_are_the_whole_path() -> None:
    lens = lens_of("chronos-bolt")
    clean, corrupted = pair_for("chronos-bolt")
    sender, receiver = "encoder.0.mlp", "decoder.1.cross_attn.2"
    asked = {"senders": [sender], "receivers": [receiver]}
    whole = path_patching(lens.run(clean, 4), lens.run(corrupted, 4), **asked)["forecast"].values[0, 0]
    pair = sender_contrast(lens.run(clean, 4), lens.run(corrupted, 4), places_of(lens, [sender]), direction="noise")
    point = "decoder_blocks.1.cross_attn.hook_{}"
    edits = []
    for part in "qkv":
        ((_, _, heard),) = heard_by(pair, places_of(lens, [sender]), places_of(lens, [receiver]), part)
        edits.append(_HeadInput(point.format(part), 2, heard))
        alone = path_patching(lens.run(clean, 4), lens.run(corrupted, 4), via=part, **asked)["forecast"].values[0, 0]
        # the encoder reaches a decoder head through its keys and values, never through its queries
        bound = rounding(np.float32, np.abs(alone).max(), depth=100)
        assert np.allclose(alone, pair.base_forecast, rtol=0, atol=bound) == (part == "q")
    with torch.no_grad(), lens.edit(*edits):
        together = pair.base.read(lens.forward(pair.base.encoded)).double().numpy()
    assert_close(together, whole, depth=100, dtype=np.float32)


def test_edges_of_a_small_corruption_are_paths() -> None:
    lens = lens_of("chronos-bolt")
    clean = centred("co2")
    wiggle = 2e-3 * clean.values[0].std() * np.sin(np.arange(40) * 1.7)
    corrupted = replace(clean, values=(clean.values[0] + wiggle,))
    edges = edge_attribution(lens.run(clean, 4), lens.run(corrupted, 4))["score"].values
    paths = path_patching(lens.run(clean, 4), lens.run(corrupted, 4))["recovered"].values
    np.testing.assert_array_equal(edges[np.isnan(paths)], 0)
    assert_close(edges[:, -1], paths[:, -1], depth=100, magnitude=1.0, dtype=np.float32)
    inner = np.nan_to_num(paths[:, :-1])
    assert np.abs(inner).max() > 1e-3
    np.testing.assert_allclose(edges[:, :-1], inner, atol=CURVATURE * np.abs(inner).max())


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


@pytest.mark.parametrize("name", ["chronos-bolt", "chronos-2", "timesfm-3"])
def test_within_one_pass_a_rollout_is_a_forward(name: str) -> None:
    lens = lens_of(name)
    clean, corrupted = (each.select(0) for each in pair_for(name))
    stack = lens.wiring.output_stack
    early = [Component(stack.name, 0, row.kind) for row in stack.rows(0)]
    both = [
        path_patching(lens.run(clean, 4, rollout=rollout), lens.run(corrupted, 4, rollout=rollout), senders=early)[
            "forecast"
        ].values
        for rollout in (False, True)
    ]
    size = np.nanmax(np.abs(both[0]))
    assert_close(both[0], both[1], depth=100, magnitude=size, dtype=np.float32)
    cells = [
        activation_patching(
            lens.run(clean, 4, rollout=rollout),
            lens.run(corrupted, 4, rollout=rollout),
            at=early,
            positions=4,
            stack=stack.name,
        )
        for rollout in (False, True)
    ]
    assert_close(cells[0]["forecast"], cells[1]["forecast"], depth=100, magnitude=size, dtype=np.float32)


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
        activation_patching(*(token.run(each, 4, along=np.full((2, 4), np.nan)) for each in pair_for("chronos")))
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


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt", "timesfm-2.5", "toto-1"])
def test_paths_in_rollouts(name: str) -> None:
    """Beyond one pass, too, the last branch acts directly, and a path to it ends in what it hears."""
    lens = lens_of(name)
    clean, corrupted = (each.select(0) for each in pair_for(name))
    horizon = 8 if name == "chronos" else lens.adapter.longest_pass + 3
    stack = lens.wiring.output_stack
    last = Component(stack.name, stack.n_layers - 1, stack.rows(stack.n_layers - 1)[-1].kind)
    earlier = Component(stack.name, 0, list(stack.attentions(0))[-1].kind)
    samples = 6 if lens.adapter.readout != "quantile" else None
    pair = [lens.run(each, horizon, rollout=True, num_samples=samples, seed=3) for each in (clean, corrupted)]
    paths = path_patching(*pair, senders=[earlier, last], receivers=[last, "output"], direction="noise")
    whole = activation_patching(*pair, at=[last], positions="all", direction="noise")
    assert_close(paths["forecast"].values[1, 1], whole["forecast"].values[0, 0], depth=100, dtype=np.float32)
    heard = paths["forecast"].values[0, 0]
    assert np.isfinite(heard).all()
    assert np.abs(heard - paths["clean_forecast"].values).max() > 0


def test_gradients_are_there_under_no_grad() -> None:
    lens = lens_of("chronos-bolt")
    clean, corrupted = pair_for("chronos-bolt")
    with torch.no_grad():
        within = attribution_patching(lens.run(clean, 4), lens.run(corrupted, 4), exact=False)
    outside = attribution_patching(lens.run(clean, 4), lens.run(corrupted, 4), exact=False)
    np.testing.assert_array_equal(within["first_order"], outside["first_order"])


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
