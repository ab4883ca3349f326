"""Learned scores: the mask and its gradient against their definitions, and planted
mechanisms and changes of weights that they find.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from closeness import close_in_float32
from refusals import expect_error
from tiny_lenses import archetypes, fresh, lens_of
from tsfm_lens.core.stats import auroc
from tsfm_lens.data import bundled, shift_phase
from tsfm_lens.hooks.component import writers
from tsfm_lens.hooks.interventions import Mean, PatchFrom, Zero
from tsfm_lens.models import Lens
from tsfm_lens.probes import learned_scores, path_patching, tuned_weights
from tsfm_lens.probes.edge_masks import EdgeMasks, list_edges
from tsfm_lens.probes.learned_scores import (
    Candidate,
    MaskLoss,
    Trained,
    _activation_loss,
    _edge_loss,
    _list_places,
    attribute,
    measure_single,
    soft_top_k,
)
from tsfm_lens.probes.patching import contrast
from tsfm_lens.probes.path_patching import OUTPUT
from tsfm_lens.probes.sites import list_nodes
from tsfm_lens.probes.tuned_weights import _list_changes, _Mixed
from tsfm_lens.studies.method_scores.series import evaluation_case
from tsfm_lens.testing import assert_close, example_case
from tsfm_lens.viz.learned_scores import read_scores, read_weights
from tsfm_lens.zoo.planted import plant

MASKED = ["chronos", "chronos-bolt"]


def loss_of(run: Any, units: str, nodes: Any = None, how: str = "zero") -> MaskLoss:
    """The loss of masks over all units of a run."""
    places = _list_places(run, list_nodes(run.lens, nodes, "nodes"), units)
    return _activation_loss(run, None, how, places, range(len(run.batch)))


# the cube root of the precision balances rounding and curvature
STEP = float(torch.finfo(torch.float32).eps) ** (1 / 3)


def by_differences(function: Any, at: torch.Tensor) -> torch.Tensor:
    """The gradient of a function by central differences, which read single precision.

    Series are scaled in it even where the model runs in double precision.
    """
    moves = STEP * torch.eye(len(at), dtype=at.dtype)
    ahead = torch.stack([function(at + move) for move in moves])
    behind = torch.stack([function(at - move) for move in moves])
    return (ahead - behind) / (2 * STEP)


def check_gradient(loss: MaskLoss, count: int) -> None:
    """Hold that the gradient of a mask is its difference quotient."""
    mask = torch.linspace(0.2, 0.8, count, dtype=torch.float64)
    leaf = mask.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss.mean(leaf), [leaf])
    with torch.no_grad():
        numeric = by_differences(loss.mean, mask)
    assert float((gradient - numeric).abs().max()) < STEP * float(gradient.abs().max())


@pytest.mark.parametrize("budget", [1, 4, 7])
def test_masks_have_their_budget_and_its_gradient(budget: int) -> None:
    """The mask sums to the budget, keeps the order of the scores, and has the gradient
    of its definition, that of the threshold included.
    """
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(8, dtype=torch.float64, generator=generator)
    weights = torch.randn(8, dtype=torch.float64, generator=generator)
    mask = soft_top_k(scores, budget)
    assert_close(mask.sum(), float(budget), depth=100, magnitude=8.0)
    assert_array_equal(mask.argsort(), scores.argsort())
    leaf = scores.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(soft_top_k(leaf, budget) @ weights, [leaf])
    # the closed form: g <- m (1 - m) / T (g - sum g m (1 - m) / sum m (1 - m))
    slope = mask * (1 - mask)
    expected = slope / 0.5 * (weights - (weights @ slope) / slope.sum())
    assert_close(gradient, expected, depth=100, magnitude=4.0)
    numeric = by_differences(lambda at: soft_top_k(at, budget) @ weights, scores)
    assert float((gradient - numeric).abs().max()) < STEP


def all_parts(lens: Lens) -> list[Any]:
    """All heads and MLPs, in the order of the model."""
    return [
        part
        for stack in lens.wiring.stacks
        for part in writers(lens.wiring, stack.name)
    ]


def edge_pair(name: str, nodes: Any = None) -> tuple[Any, Any, EdgeMasks]:
    """A clean run, one of shifted series, and masks of edges."""
    lens = lens_of(name)
    batch = bundled("co2", "elnino").tail(40)
    clean = lens.run(batch, 4).in_one_pass()
    corrupted = lens.run(shift_phase(batch, 5), 4).in_one_pass()
    sites = list_nodes(lens, nodes or all_parts(lens), "nodes")
    source = contrast(clean, corrupted, sites, direction="noise").source
    acts = source.record([site.point for site in sites])
    bases = {site.point: PatchFrom(site.point, acts) for site in sites}
    return clean, corrupted, EdgeMasks(clean, sites, bases)


@pytest.mark.parametrize("units", ["components", "neurons", "edges"])
@pytest.mark.parametrize("how", ["zero", "mean"])
@pytest.mark.parametrize("name", archetypes(MASKED))
def test_ends_of_a_mask_are_the_model_and_nothing(
    name: str, how: str, units: str
) -> None:
    """Ones give the forecast of the model, zeros that with all parts replaced."""
    lens = lens_of(name)
    run = lens.run(bundled("co2", "elnino").tail(40), 2).in_one_pass()
    parts = all_parts(lens)
    sites = list_nodes(lens, parts, "nodes")
    replaced = [str(site.target) for site in sites]
    points = [site.point for site in sites]
    if units == "edges":
        loss = _edge_loss(run, None, how, sites, range(2))
    else:
        loss = loss_of(run, units, parts, how)
    if units == "neurons":
        points = [name for name in lens.registry.points if name.endswith("hook_post")]
        replaced = points
    acts = run.record(points)
    edits = [Zero(one) if how == "zero" else Mean(one, acts) for one in replaced]
    with lens.edit(*edits):
        expected = run.read(lens.forward(run.encoded))
    close_in_float32(loss.full, run.point, depth=300)
    close_in_float32(loss.nothing, expected.detach(), depth=300)


@pytest.mark.parametrize("name", archetypes(MASKED))
def test_one_cut_edge_is_a_patched_path(name: str) -> None:
    """Without one edge the forecast is that of path patching, for edges within a stack,
    from the encoder to keys, into single heads and to the output.
    """
    nodes = ["encoder.1.*", "decoder.0.cross_attn.1", "decoder.1.cross_attn.*"]
    nodes.append("decoder.1.mlp")
    clean, corrupted, masks = edge_pair(name, nodes)
    paths = path_patching(clean, corrupted, senders=nodes, receivers=[*nodes, OUTPUT])
    expected = paths["forecast"].transpose("sender", "receiver", ...).values
    ones = torch.ones(len(masks.edges))
    with torch.no_grad():
        forecasts = [
            masks.forecast(ones.index_fill(0, edge, 0))
            for edge in torch.arange(len(ones))
        ]
    senders, receivers = masks.edges.T
    close_in_float32(torch.stack(forecasts), expected[senders, receivers], depth=300)
    # what is no edge has no effect
    no_edge = np.isfinite(expected).all((-2, -1))
    no_edge[senders, receivers] = False
    plain = np.broadcast_to(clean.point, expected.shape)
    close_in_float32(expected[no_edge], plain[no_edge], depth=300)


def test_several_cut_edges_are_receivers_set_one_after_another() -> None:
    """Each receiver is set to what it computes while its senders are patched and all
    other parts are frozen in the circuit so far, as in path patching.
    """
    clean, corrupted, masks = edge_pair("chronos-bolt")
    lens = clean.lens
    sites = list_nodes(lens, all_parts(lens), "nodes")
    points = [site.point for site in sites]
    source = contrast(clean, corrupted, sites, direction="noise").source.record(points)
    mask = torch.from_numpy(np.random.default_rng(0).integers(0, 2, len(masks.edges)))
    cut = masks.edges[mask.numpy() == 0]
    edits: list[Any] = []
    for receiver in range(len(sites) + 1):
        senders = cut[cut[:, 1] == receiver, 0]
        with lens.edit(*edits):
            _, so_far = lens.run_with_cache(clean.encoded, names_filter=points)
        frozen = [
            PatchFrom(site.target, source if number in senders else so_far)
            for number, site in enumerate(sites)
            if number != receiver
        ]
        with lens.edit(*frozen):
            output, heard = lens.run_with_cache(clean.encoded, names_filter=points)
        if receiver < len(sites):
            edits.append(PatchFrom(sites[receiver].target, heard))
    expected = clean.read(output).detach()
    with torch.no_grad():
        forecast = masks.forecast(mask.to(torch.float32))
    # of 375, the largest value of a series
    assert float((expected - torch.as_tensor(clean.point)).abs().max()) > 1
    close_in_float32(forecast, expected, depth=300)


def test_planted_edges_have_the_highest_scores() -> None:
    """The edges of a trend are ranked before edges to and from parts without a task."""
    lens_of("chronos-bolt")  # skips where the library is missing
    planted = plant("trend", "chronos-bolt")
    case = evaluation_case(planted.lens(), planted.card, series=6)
    true = {f"{sender}->{receiver}" for sender, receiver in planted.card.edges}
    nodes = [*planted.card.components("mechanism"), "encoder.1.mlp", "decoder.0.mlp"]
    found = learned_scores(
        case.clean, case.corrupted, units="edges", nodes=nodes, steps=4
    )
    assert true < set(found["edge"].values)
    assert auroc(found["score"].values, found["edge"].isin(list(true)).values) == 1
    assert f"of {found.sizes['edge']} edges" in read_scores(found)[0]
    assert "output" in found["receiver"]


def test_half_a_mask_mixes_a_write_with_its_base() -> None:
    """At 0.5 a component writes half of what it writes, one half of it else."""
    lens = lens_of("chronos-bolt")
    run = lens.run(example_case(lens).batch, 2)
    loss = loss_of(run, "components", ["decoder.1.mlp"])
    point = "decoder_blocks.1.mlp.hook_out"
    with lens.hooks([(point, lambda value, hook: value / 2)]):
        expected = run.read(lens.forward(run.encoded))
    mixed = loss.forecast(torch.tensor([0.5]))
    close_in_float32(mixed.detach(), expected.detach(), depth=300)


@pytest.mark.parametrize("units", ["components", "edges"])
def test_the_gradient_of_a_mask_is_that_of_finite_differences(units: str) -> None:
    """In double precision the gradient of the loss is its difference quotient."""
    lens = fresh("chronos-bolt")
    # lens.to() refuses a precision that the library does not run in by itself
    lens.model.double()
    run = lens.run(bundled("co2", "elnino").tail(40), 4)
    if units == "edges":
        nodes = ["encoder.1.mlp", "decoder.0.cross_attn.1", "decoder.1.self_attn.0"]
        sites = list_nodes(lens, nodes, "nodes")
        check_gradient(
            _edge_loss(run, None, "zero", sites, range(2)), len(list_edges(lens, sites))
        )
    else:
        nodes = ["decoder.*.cross_attn.*", "decoder.*.mlp"]
        count = len(list_nodes(lens, nodes, "nodes"))
        check_gradient(loss_of(run, "components", nodes), count)


class Squared:
    """A loss that is the square of what the masked units weigh, of all of them 1."""

    run = SimpleNamespace(lens=SimpleNamespace(device="cpu"))
    weights = torch.tensor([0.5, -0.25, 0.75])

    def mean(self, mask: torch.Tensor) -> torch.Tensor:
        """The loss of a mask."""
        return ((1 - mask) @ self.weights).square()


def test_rankings_without_training_have_a_closed_form() -> None:
    """Of a quadratic loss the attribution is each weight times their sum, and all
    attributions sum to the loss of nothing; a single effect is the weight's square.
    """
    loss = cast("MaskLoss", Squared())
    scores = attribute(loss, 3)
    assert_close(scores, Squared.weights, depth=20, magnitude=1.0)
    assert_close(scores.sum(), 1.0, depth=20, magnitude=1.0)
    single = measure_single(loss, 3)
    assert_close(single, Squared.weights.square(), depth=20, magnitude=1.0)


def test_the_ranking_by_which_least_is_lost_is_the_best() -> None:
    """Of equal ones it is the last, and one without training may win."""
    lost = torch.zeros(2, 1)
    pairs = [("norm", 0.3), ("attribution", 0.1), ("training", 0.1), ("training", 0.2)]
    candidates = [
        Candidate(method, step, torch.tensor([0.0, float(step)]), lost, loss)
        for step, (method, loss) in enumerate(pairs)
    ]
    assert Trained(candidates, [0, 2]).best is candidates[2]
    assert Trained(candidates[:2], [0, 2]).best is candidates[1]


def test_a_planted_mechanism_has_the_highest_scores() -> None:
    """The parts of a trend are ranked before heads and MLPs without a task."""
    lens_of("chronos-bolt")  # skips where the library is missing
    planted = plant("trend", "chronos-bolt")
    case = evaluation_case(planted.lens(), planted.card, series=6)
    true = set(planted.card.components("mechanism"))
    idle = ["encoder.1.mlp", "decoder.0.mlp", "decoder.0.self_attn.1"]
    found = learned_scores(case.clean, nodes=[*sorted(true), *idle], steps=4)
    labels = found["component"].isin(list(true)).values
    assert auroc(found["score"].values, labels) == 1
    chosen = found["loss"].sel(check=found["method"] == found.attrs["best_method"])
    assert float(chosen.min()) == float(found["loss"].min())
    assert {"attribution", "single effects"} < set(found["method"].values)
    assert found.attrs["best_method"] in read_scores(found)[1]
    assert f"of {len(labels)} components" in read_scores(found)[0]
    # all kept are the model, and none is nothing
    assert_array_equal(found["kept"][-1], np.ones(found.sizes["series"]))
    close_in_float32(found["kept"][0], 0.0, magnitude=1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"units": "edge"}, "units"),
        ({"units": "edges", "nodes": ["*.1.self_attn", "*.1.self_attn.0"]}, "either"),
        ({"how": "noise"}, "how"),
        ({"steps": 0}, "steps is 0"),
        ({"nodes": ["decoder.0.mlp"]}, "1 unit"),
        ({"units": "neurons", "nodes": ["decoder.0.self_attn.1"]}, "hidden layer"),
    ],
)
def test_wrong_options_are_refused(arguments: dict[str, Any], message: str) -> None:
    """An option that has no meaning is refused, and named."""
    run = lens_of("chronos-bolt").run(bundled("co2", "elnino").tail(40), 4)
    expect_error(message, learned_scores, run, **arguments)
    expect_error("windows=", learned_scores, run.select(0))
    expect_error("corrupted=", learned_scores, run, run, how="mean")


def test_series_of_one_group_are_refused() -> None:
    """Of series that see each other none can be held out."""
    lens = lens_of("chronos-2")
    values = np.random.default_rng(0).normal(size=(2, 2, 40))
    expect_error("targets=", learned_scores, lens.run(values, 4))


def moved(base: Lens) -> tuple[Lens, str]:
    """A copy with noise on all weights, and more on the columns by which one head
    writes, with the name of their matrix.

    The columns of the second head change as far, but it has no values in either model.
    """
    tuned = copy.deepcopy(base)
    generator = torch.Generator().manual_seed(0)
    part = "decoder.block.1.layer.1.EncDecAttention.o.weight"
    width = tuned.wiring.output_stack.d_head
    columns, decoys = slice(0, width), slice(width, 2 * width)
    with torch.no_grad():
        for name, weight in tuned.model.named_parameters():
            draw = weight.std(correction=0) * torch.randn(
                weight.shape, generator=generator
            )
            weight += 0.001 * draw * (weight != 0)
            if name == part:
                weight[:, columns] += draw[:, columns]
                weight[:, decoys] += draw[:, columns]
    return tuned, part


def silent(name: str) -> Lens:
    """A model whose second head of one attention has no values."""
    lens = fresh(name)
    width = lens.wiring.output_stack.d_head
    values = "decoder.block.1.layer.1.EncDecAttention.v.weight"
    with torch.no_grad():
        lens.model.get_parameter(values)[width : 2 * width] = 0
    return lens


def test_rows_of_weights_are_set_back_as_by_hand() -> None:
    """Some rows kept are the model whose other weights are those of the base; all are
    the tuned model to the last bit, and none is the base.
    """
    base = lens_of("chronos-bolt")
    tuned, part = moved(base)
    changes = _list_changes(base, tuned)
    (change,) = [change for change in changes if change.name == part]
    assert change.axis == 1
    mixed = _Mixed(tuned, changes)
    run = tuned.run(bundled("co2", "elnino").tail(40), 4)
    count = sum(len(change.rows) for change in changes)
    plain = base.run(run.batch, 4).point
    assert_array_equal(mixed.forecast(run, torch.ones(count)).detach(), run.point)
    assert_array_equal(mixed.forecast(run, torch.zeros(count)).detach(), plain)
    by_hand = copy.deepcopy(base)
    weights = dict(by_hand.model.named_parameters())
    with torch.no_grad():
        weights[part][:, 1] = change.tuned[:, 1]
    mask = torch.cat([torch.zeros(len(other.rows)) for other in changes])
    mask[sum(len(other.rows) for other in changes[: changes.index(change)]) + 1] = 1
    expected = by_hand.run(run.batch, 4).point
    assert_array_equal(mixed.forecast(run, mask).detach(), expected)


def test_a_planted_change_of_a_head_carries_the_change() -> None:
    """Among noise on all weights, the columns by which one head writes come first, and
    they keep the change of the forecast on other series. Columns that changed as far
    and act on nothing come after them.
    """
    base = silent("chronos-bolt")
    tuned, part = moved(base)
    run = base.run(bundled("co2", "elnino", "nile", "sunspots").tail(40), 4)
    found = tuned_weights(base, tuned, run, steps=30)
    width = tuned.wiring.output_stack.d_head
    names = [f"{part} {column}" for column in range(2 * width)]
    labels = found["row"].isin(names[:width]).values
    assert labels.sum() == width
    planted = found.sel(row=names)
    assert auroc(planted["score"].values, np.arange(2 * width) < width) == 1
    assert abs(auroc(planted["norm"].values, np.arange(2 * width) < width) - 0.5) < 0.1
    assert auroc(found["score"].values, labels) > 0.95
    assert found["cumulative_weights"][-1] == 1
    assert found["gain"][-1] == 1
    assert found.attrs["weights"] < 0.2
    assert "of the changed weights" in read_weights(found)[0]
    # there always is a list, since all rows keep all of the gain
    whole = tuned_weights(base, tuned, run, carried=1, steps=1)
    assert found.attrs["rows"] < whole.attrs["rows"] <= whole.sizes["row"]
    expect_error("nothing differs", tuned_weights, base, base, run)
    expect_error("three|3 or more", tuned_weights, base, tuned, run.select([0, 1]))


def test_a_gain_is_claimed_only_where_the_error_falls() -> None:
    """With the truth that the tuned model forecasts better the error is shared, with
    one that it forecasts worse, or none for some part, the change of the forecast.
    """
    base = lens_of("chronos-bolt")
    tuned, _ = moved(base)
    batch = bundled("co2", "elnino", "nile", "sunspots").tail(40)
    truths = [tuned.run(batch, 4).point * 1.01, base.run(batch, 4).point * 1.01]
    unknown = np.full_like(truths[0], np.nan)
    for truth, gain_of, name in (
        (truths[0], "error", "gain in accuracy"),
        (truths[1], "forecast", "change of the forecast"),
        (unknown, "forecast", "change of the forecast"),
    ):
        run = tuned.run(batch, 4, truth=truth)
        found = tuned_weights(base, tuned, run, steps=1)
        assert found.attrs["gain_of"] == gain_of
        assert name in read_weights(found)[0]


@pytest.mark.parametrize("name", MASKED)
def test_flat_series_outweigh_no_other(name: str) -> None:
    """Losses are shares of the range, of which a flat series has none."""
    lens = lens_of(name)
    values = bundled("co2").values[0][-40:] - bundled("co2").values[0][-40:].mean()
    flat = np.full(40, values.max())
    loss = loss_of(lens.run([values, flat, 2 * values[::-1]], 4), "components")
    assert loss.known.tolist() == [True, False, True]
    alone = loss_of(lens.run([values, 2 * values[::-1]], 4), "components")
    close_in_float32(loss._weights.numpy(), alone._weights.numpy(), 1000)
    run = lens.run([flat, flat + 1], 4)
    expect_error("not flat", learned_scores, run, steps=1)


def test_a_corrupted_run_has_the_same_series() -> None:
    """Activations of other series, or of fewer, are no base of a mask."""
    lens = lens_of("chronos-bolt")
    values = bundled("co2").values[0][-40:]
    run = lens.run([values, values[::-1]], 4)
    other = lens.run({"a": values[::-1], "b": values}, 4)
    expect_error("the same ids", learned_scores, run, other, steps=1)
    fewer = lens.run([values], 4)
    expect_error("the same ids", learned_scores, run, fewer, steps=1)
    short = lens.run([values[::-1], values], 3)
    expect_error("horizon", learned_scores, run, short, steps=1)
