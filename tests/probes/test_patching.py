"""Activation, attribution and path patching against identities of any model."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from closeness import close_in_float32
from refusals import expect_error
from tiny_lenses import ATTENDING, NAMES, archetypes, having, lens_of
from tiny_series import centred, make_pair, make_runs
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks import Component, PatchFrom, Steer
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.component import writers
from tsfm_lens.models import architectures
from tsfm_lens.probes import (
    activation_patching,
    attribution_patching,
    edge_attribution,
    path_patching,
)
from tsfm_lens.probes.patching import contrast, slopes
from tsfm_lens.probes.path_patching import heard_in_groups, sender_contrast
from tsfm_lens.probes.sites import (
    group_coords,
    later_branches,
    parse_sites,
    position_groups,
)
from tsfm_lens.testing import assert_close

# a finite step feels the curvature, of the order of its size; and its two forecasts
# carry the rounding of their level
CURVATURE = 0.05
ROUNDED_SLOPE = 2e-3

TRUE_GRADIENTS = having("gradients")
PATCHES = [name for name in TRUE_GRADIENTS if architectures()[name].readout != "token"]


@pytest.mark.parametrize("name", archetypes(NAMES))
def test_cells_equal_single_patched_runs(name: str) -> None:
    """A cell of the map equals the patched run by itself."""
    lens = lens_of(name)
    runs = make_runs(name)
    branch = lens.components()[1]
    found = activation_patching(*runs, at=[branch], positions=3)
    pair = contrast(*runs, parse_sites(lens, [branch]))
    groups = position_groups(pair.base.encoded.spans[branch.stack], 3)
    last = int(np.flatnonzero(found["position_special"] == "")[-1])
    edit = PatchFrom(branch, pair.source_acts, positions=groups[last])
    with torch.no_grad(), lens.edit(edit):
        alone = pair.base.read(lens.forward(pair.base.encoded)).double().numpy()
    cell = found.isel(component=0, position=last)
    size = np.abs(alone).max()
    close_in_float32(cell["forecast"], alone, depth=200, magnitude=size)
    way = found["clean_forecast"].values - found["corrupted_forecast"].values
    moved = alone - found["corrupted_forecast"].values
    length = (way**2).sum(-1)
    # a share of the way, which may be short beside the level of both forecasts
    far = max(size / np.sqrt(length.min()), 1.0)
    close_in_float32(cell["recovered"], (moved * way).sum(-1) / length, magnitude=far)
    effect = np.abs(moved).mean(-1)
    close_in_float32(cell["effect"], effect, depth=200, magnitude=size)


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt"])
@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_the_whole_stream_carries_everything(name: str, direction: str) -> None:
    found = activation_patching(*make_runs(name), positions="all", direction=direction)
    path = None
    if name == "chronos":
        path = {"denoise": "corrupted", "noise": "clean"}[direction]
    assert found.attrs.get("path") == path
    close_in_float32(found["recovered"], 1)
    goal = found["clean_forecast" if direction == "denoise" else "corrupted_forecast"]
    close_in_float32(found["forecast"].isel(component=0, position=0), goal)


def small_change() -> tuple[SeriesBatch, SeriesBatch]:
    """A series, and the same with a wiggle of two thousandths of its spread."""
    clean = centred("co2")
    wiggle = 2e-3 * clean.values[0].std() * np.sin(np.arange(40) * 1.7)
    return clean, replace(clean, values=(clean.values[0] + wiggle,))


@pytest.mark.parametrize("name", archetypes(sorted(set(PATCHES) - {"fracast"})))
def test_a_small_corruption_is_estimated_exactly(name: str) -> None:
    """First order is exact in the limit; token models have no small corruption of a
    token.
    """
    lens = lens_of(name)
    runs = [lens.run(item, 4) for item in small_change()]
    stack = lens.wiring.output_stack.name
    for at in ("branches", "heads") if name in ATTENDING else ("branches",):
        found = attribution_patching(*runs, at=at, stack=stack, positions=4)
        size = float(np.abs(found["recovered"]).max())
        assert size > 1e-3
        assert float(np.abs(found["error"]).max()) < 0.03 * size


def test_gradients_without_derivatives_are_refused() -> None:
    """Gradients that are no derivatives are refused."""
    for probe in (attribution_patching, edge_attribution):
        expect_error("are not its derivatives", probe, *make_runs("toto-2"))


def test_all_passes_patch_the_same_steps() -> None:
    """Bolt's second pass has more tokens: the register token moves, and so does the
    place of a step.
    """
    lens = lens_of("chronos-bolt")
    name = "encoder_blocks.1.hook_resid_pre"
    runs = make_runs("chronos-bolt", 20, select=0, rollout=True)
    clean, corrupted = (run.batch for run in runs)
    found = activation_patching(*runs, at=[name], positions=5)
    _, activations = lens.run_with_cache(
        clean, names_filter=[name], rollout=True, horizon=20
    )
    calls = activations.calls(name)
    assert len({call.value.shape for call in calls}) == 2

    def forecast(tokens: list[slice]) -> np.ndarray:
        """Plain hooks: in each pass these tokens come from the clean run."""
        passes = iter(zip(calls, tokens, strict=True))

        def hook(value: torch.Tensor, hook: object) -> torch.Tensor:
            call, where = next(passes)
            value = value.clone()
            value[:, where] = call.value[:, where]
            return value

        return lens.run_with_hooks(
            corrupted, [(name, hook)], rollout=True, horizon=20
        ).median

    register = found.isel(
        component=0, position=list(found["position_special"].values).index("REG")
    )
    close_in_float32(register["forecast"], forecast([slice(-1, None)] * 2))
    oldest = found.isel(component=0, position=1)
    spans = lens.encode(corrupted).spans["encoder"]
    width = spans.stop[0] - spans.start[0]
    first, stop = (
        (int(oldest[f"position_{edge}"]) - spans.start[0]) // width
        for edge in ("start", "stop")
    )
    # both passes show the same context from its beginning; it is not full yet
    close_in_float32(oldest["forecast"], forecast([slice(first, stop)] * 2))


@pytest.mark.parametrize("name", archetypes(TRUE_GRADIENTS))
def test_slopes_are_finite_differences(name: str) -> None:
    """For token models, too, whose tokens cannot change by little but whose streams
    can.
    """
    lens = lens_of(name)
    at = f"{lens.wiring.output_stack.prefix}.1.hook_resid_pre"
    positions = parse_sites(lens, [at])
    pair = contrast(*make_runs(name), positions)
    found = slopes(pair, positions)
    token = int(found[f"{at}_grad"].norm(dim=-1).sum(0).argmax())
    direction = torch.randn(
        found[at].shape[-1], generator=torch.Generator().manual_seed(1)
    )
    step = 1e-2 * float(found[at].norm() / found[at].numel() ** 0.5)
    expected = (found[f"{at}_grad"][:, token] * direction).sum().item()
    moved = []
    for sign in (1, -1):
        with (
            torch.no_grad(),
            lens.edit(Steer(at, direction, scale=sign * step, positions=[token])),
        ):
            moved.append(
                pair.recovered(
                    pair.base.read(lens.forward(pair.base.encoded)).double().numpy()
                ).sum()
            )
    assert abs(expected) > 1e-6
    slope = (moved[0] - moved[1]) / (2 * step)
    assert slope == pytest.approx(expected, rel=CURVATURE, abs=ROUNDED_SLOPE)


def test_gradients_with_nan_are_refused() -> None:
    """TimesFM 3 divides the padding of a shorter series by its zero norm."""
    lens = lens_of("timesfm-3")
    values = centred("pedestrians").values[0]
    clean = SeriesBatch((values, values[13:]))
    corrupted = replace(
        clean, values=tuple(value[::-1].copy() for value in clean.values)
    )
    expect_error(
        "no finite gradient",
        attribution_patching,
        lens.run(clean, 4),
        lens.run(corrupted, 4),
    )


def test_runs_that_differ_are_refused() -> None:
    lens, (clean, corrupted) = lens_of("chronos-2"), make_pair("chronos-2")
    for other, text in (
        (clean, "nothing to recover"),
        (corrupted.tail(30), "lengths"),
        (
            clean.select([1, 0]),
            "corrupted ones electricity, pedestrians.*puts them in order",
        ),
        (replace(clean, ids=("a", "b")), "corrupted ones a, b, .*data.shift_phase"),
        (
            SeriesBatch(
                corrupted.values, clean.ids, groups=("a", "a"), variates=("b", "c")
            ),
            "grouped into items diff",
        ),
    ):
        expect_error(text, activation_patching, lens.run(clean, 4), lens.run(other, 4))
    expect_error("rollout is 'yes'", make_runs, "chronos-bolt", rollout="yes")
    expect_error(
        "holds values that are no numbers",
        make_runs,
        "chronos",
        forced_path=np.full((2, 4), np.nan),
    )
    runs = make_runs("chronos-bolt")
    for at in (Component("encoder", 0, "mlp"), ["encoder.0.mlp", "encoder.0.m*"]):
        assert activation_patching(*runs, at=at, positions="all")[
            "component"
        ].values.tolist() == ["encoder.0.mlp"]


def test_frozen_models_have_slopes_too() -> None:
    """At places of several stacks: each is patched at all of its own positions."""
    lens = copy.deepcopy(lens_of("chronos-bolt"))
    lens.requires_grad_(False)
    runs = [lens.run(item, 4) for item in make_pair("chronos-bolt")]
    positions = ["encoder.0.mlp", "decoder.0.cross_attn"]
    with torch.no_grad():
        frozen = attribution_patching(*runs, at=positions, positions="all")
    free_runs = make_runs("chronos-bolt")
    free = attribution_patching(*free_runs, at=positions, positions="all")
    close_in_float32(frozen["first_order"], free["first_order"])
    assert float(np.abs(free["first_order"]).max()) > 0
    exact = activation_patching(*free_runs, at=positions, positions="all")
    close_in_float32(free["recovered"], exact["recovered"], magnitude=1.0)
    assert_allclose(free["error"], free["first_order"] - free["recovered"])
    for model in (lens, free_runs[0].lens):
        assert all(weight.grad is None for weight in model.parameters())


def test_floors_follow_the_noisier_run() -> None:
    """In rollouts of a sampling model another seed of either run, in single passes
    rounding.
    """
    runs = make_runs("chronos", 8, select=0, rollout=True, num_samples=20, seed=7)
    options = {"at": "branches", "positions": "all"}
    found = activation_patching(*runs, **options)
    way = found["clean_forecast"].values - found["corrupted_forecast"].values
    again = np.stack([run.redraw().forecast.median - run.point for run in runs])
    separate = np.abs(again).mean(-1).max(0)
    assert_allclose(found["effect_floor"], separate)
    shares = np.abs((again * way).sum(-1)) / np.square(way).sum(-1)
    assert (found["recovered_floor"] >= shares.max(0)).all()
    other = activation_patching(*runs, **options, direction="noise")
    assert_array_equal(other["effect_floor"], found["effect_floor"])
    single = activation_patching(*make_runs("chronos", 8, select=0), **options)
    assert (single["recovered_floor"] < found["recovered_floor"]).all()
    assert bool((single["recovered_acts"] > 0).any())


def test_positions_are_grouped_from_the_newest() -> None:
    spans = TokenSpans.patches(-20, 5, 4, ("REG",)) + TokenSpans(
        (0, 8), (8, 16), ("", "")
    )
    assert position_groups(spans, "all") == [list(range(8))]
    assert position_groups(spans, "each") == [[token] for token in range(8)]
    assert position_groups(spans, np.int64(3)) == [[0], [1, 2, 3], [4, 6, 7], [5]]
    found = group_coords(spans, position_groups(spans, 3))
    assert found["position"] == [0, 1, 4, 5]
    assert found["position_start"][1] == [-20, -16, -4, 0]
    assert found["position_stop"][1] == [-16, -4, 16, 0]
    assert found["position_special"][1] == ["", "", "", "REG"]
    two = TokenSpans((-8, -4, -8, -4), (-4, 0, -4, 0), ("",) * 4, (0, 0, 1, 1))
    assert position_groups(two, 3) == [[0, 1], [2, 3]]
    assert group_coords(two, [[0, 1], [2, 3]])["position_variate"][1] == [0, 1]


@pytest.mark.parametrize(
    "name",
    archetypes(
        ["chronos", "chronos-bolt", "chronos-2", "moirai-2", "timestral", "toto-1"]
    ),
)
def test_a_receiver_hears_the_sender_alone(name: str) -> None:
    """The held run puts the sender's change on the stream before the receiver;
    accounting gives that stream too.
    """
    lens = lens_of(name)
    stack = lens.wiring.output_stack
    kinds = [row.kind for row in stack.attentions(0)]
    receiving = next(
        row
        for row in stack.attentions(1)
        if row.over == "time" or stack.attention_kinds() == [row.kind]
    )
    sender = Component(stack.name, 0, kinds[-1], 1)
    receiver = Component(stack.name, 1, receiving.kind, 2 % stack.n_heads)
    branch = Component(stack.name, 1, receiving.kind)
    runs = make_runs(name)
    pair = sender_contrast(*runs, parse_sites(lens, [sender]), direction="noise")
    ((_, _, heard),) = next(
        heard_in_groups(
            pair, parse_sites(lens, [sender]), parse_sites(lens, [receiver])
        )
    )
    write = f"{stack.prefix}.0.{sender.kind}.hook_result"
    order = [row.kind for row in stack.rows(1)].index(receiving.kind)
    before = (
        f"{stack.prefix}.1."
        + ["hook_resid_pre", "hook_resid_mid", "hook_resid_mid2"][order]
    )
    base = pair.base.record([write, before])
    source = pair.source.record([write])
    stream = base[before] + source[write][:, :, 1] - base[write][:, :, 1]
    shifted = replace(
        base, recorded={before: [replace(base.calls(before)[0], value=stream)]}
    )
    z = parse_sites(lens, [receiver])[0].point
    with lens.edit(PatchFrom(before, shifted)):
        _, expected = lens.run_with_cache(pair.base.encoded, names_filter=[z])
    head = receiver.head
    assert_close(heard[z][:, :, head], expected[z][:, :, head], depth=100)
    assert str(branch) in [
        str(later_branch) for later_branch in later_branches(lens.wiring, sender)
    ]


@pytest.mark.parametrize("name", archetypes(NAMES))
def test_the_last_branch_acts_directly(name: str) -> None:
    """Nothing follows it, so its path to the output is all that patching it does."""
    last = writers(lens_of(name).wiring)[-1]
    paths = path_patching(*make_runs(name), senders=[last])
    full = activation_patching(
        *make_runs(name), at=[last], positions="all", direction="noise"
    )
    direct = paths["recovered"].sel(receiver="output").isel(sender=0)
    expected = full["recovered"].isel(component=0, position=0)
    close_in_float32(direct, expected, magnitude=1.0)
    assert np.isnan(paths["recovered"].isel(receiver=slice(None, -1))).all()


def test_screened_paths_are_the_exact_ones() -> None:
    """A screen leaves out paths of small effect, and the others keep their number."""
    runs = make_runs("chronos-bolt")
    everything = path_patching(*runs)
    some = path_patching(*runs, screen=0.3)
    left_out = some["screened_out"].values
    exists = np.isfinite(everything["recovered"].values).all(-1)
    kept = exists & ~left_out
    # of the paths to the output, none is left out
    n_inner = int(exists[:, :-1].sum())
    assert not left_out[:, -1].any()
    assert kept[:, :-1].sum() == math.ceil(0.3 * n_inner)
    one, other = (ds["recovered"].values for ds in (some, everything))
    assert np.isnan(one[left_out]).all()
    close_in_float32(one[kept], other[kept], depth=300, magnitude=1.0)
    # the largest path is among those that are patched
    sizes = np.where(exists, np.abs(other).mean(-1), 0.0)
    assert kept.flat[sizes.argmax()]
    expect_error("screen is 2", path_patching, *runs, screen=2)
    direct = path_patching(*runs, receivers=["output"], screen=0.1)
    assert np.isfinite(direct["recovered"]).all()


def test_edges_of_small_corruptions_are_paths() -> None:
    runs = [lens_of("chronos-bolt").run(item, 4) for item in small_change()]
    edges = edge_attribution(*runs)["score"].values
    paths = path_patching(*runs)["recovered"].values
    assert_array_equal(edges[np.isnan(paths)], 0)
    close_in_float32(edges[:, -1], paths[:, -1], magnitude=1.0)
    inner = np.nan_to_num(paths[:, :-1])
    largest = np.abs(inner).max()
    assert largest > 1e-3
    assert_allclose(edges[:, :-1], inner, atol=CURVATURE * largest)


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt", "timesfm-2.5", "toto-1"])
def test_paths_in_rollouts(name: str) -> None:
    """Beyond one pass, too, the last branch acts directly, and a path to it ends in
    what it hears.
    """
    lens = lens_of(name)
    if name == "chronos":
        horizon = 8
    else:
        horizon = lens.adapter.longest_pass + 3
    stack = lens.wiring.output_stack
    last = writers(lens.wiring)[-1]
    earlier = Component(stack.name, 0, list(stack.attentions(0))[-1].kind)
    samples = None
    if lens.adapter.readout != "quantile":
        samples = 6
    pair = make_runs(name, horizon, select=0, rollout=True, num_samples=samples, seed=3)
    paths = path_patching(
        *pair, senders=[earlier, last], receivers=[last, "output"], direction="noise"
    )
    full = activation_patching(*pair, at=[last], positions="all", direction="noise")
    close_in_float32(paths["forecast"].values[1, 1], full["forecast"].values[0, 0])
    heard = paths["forecast"].values[0, 0]
    assert np.isfinite(heard).all()
    assert np.abs(heard - paths["clean_forecast"].values).max() > 0
