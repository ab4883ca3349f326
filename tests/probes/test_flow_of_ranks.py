"""The flow of ranks against dense decompositions, planted streams and a turned basis."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from contrasted import few_draws, series_for
from tiny_lenses import fresh, lens_of
from tsfm_lens.errors import InputError, LensError
from tsfm_lens.models import Lens, architectures
from tsfm_lens.models.run import Run
from tsfm_lens.models.timing import measured
from tsfm_lens.probes import flow_of_ranks
from tsfm_lens.probes.stream_ranks import _bound
from tsfm_lens.ranks import epsilon_rank, flow_bound, measured_bound
from tsfm_lens.testing import assert_close
from tsfm_lens.viz import rank_rise

NAMES = sorted(architectures())


def run_of(lens: Lens, names: tuple[str, ...] = ("co2", "elnino")) -> Run:
    return lens.run(series_for(lens, *names, example=len(names)), 6, **few_draws(lens))


def rows_at(run: Run, point: str) -> torch.Tensor:
    """All tokens of all series at one point, (token, d_model), of one dense forward."""
    stack = run.lens.wiring.stacks[0]
    with torch.no_grad():
        _, acts = run.lens.run_with_cache(run.encoded, names_filter=[point])
    return acts[point][run.encoded.shown(stack.name)].double()


@pytest.mark.parametrize("name", NAMES)
def test_the_spectra_of_every_architecture_are_those_of_dense_streams(name: str) -> None:
    run = run_of(lens_of(name))
    found = flow_of_ranks(run, epsilon=[0.1, 0.01])
    stack = run.lens.wiring.stacks[0]
    points = ["resid_pre", *["resid_post"] * stack.n_layers]
    for place, point in enumerate(points):
        rows = rows_at(run, f"{stack.prefix}.{max(place - 1, 0)}.hook_{point}")
        values = np.linalg.svd(rows.numpy(), compute_uv=False)
        # two forwards, of which one looks into nothing else, differ by rounding
        ours = found["singular_value"].values[place]
        assert_close(ours, values, depth=100 * (place + 1), dtype=np.float32, what=f"{name} {place}")
        assert found.attrs["tokens"] == len(rows)
        np.testing.assert_array_equal(found["epsilon_rank"].values[:, place], epsilon_rank(ours, [0.1, 0.01]))
    for layer in range(stack.n_layers):
        heads = run.lens.weights.heads(layer, next(stack.attentions(layer)).kind, stack.name)
        queries = np.concatenate(list(heads.W_Q.detach().double().numpy()), axis=1)
        values = np.linalg.svd(queries, compute_uv=False)
        assert_close(found["weight_singular_value"].values[layer, : len(values)], values, depth=100)
        norm = max(np.linalg.norm(one.detach().double().numpy(), 2) for one in heads.W_QK.AB)
        assert_close(float(found["query_key_norm"][layer]) * stack.d_head**0.5, norm, depth=100, dtype=np.float32)
    assert np.isnan(found["bound"]).all()
    assert found.attrs["least_depth"] == int(np.ceil(4 * np.exp(4) * stack.n_heads**2))


@pytest.mark.parametrize("name", ["chronos-bolt", "moirai-2"])
def test_groups_of_series_give_what_all_together_give(name: str) -> None:
    run = run_of(lens_of(name), ("co2", "elnino", "nile", "electricity", "pedestrians"))
    once, grouped = flow_of_ranks(run), flow_of_ranks(run, batch_size=2)
    assert_close(grouped["singular_value"], once["singular_value"], depth=300, dtype=np.float32)
    np.testing.assert_array_equal(grouped["series_rank"], once["series_rank"])
    assert grouped.attrs["tokens"] == once.attrs["tokens"]


def test_ranks_of_single_series_are_those_of_runs_of_them_alone() -> None:
    run = run_of(lens_of("timesfm-2.5"), ("co2", "elnino", "nile"))
    found = flow_of_ranks(run, batch_size=2)
    for index, name in enumerate(run.batch.ids):
        alone = flow_of_ranks(run.select(index))
        np.testing.assert_array_equal(found["series_rank"].sel(series=name), alone["epsilon_rank"])
        risen = alone["epsilon_rank"] - alone["epsilon_rank"].isel(stream=0)
        np.testing.assert_array_equal(found["rank_rise"].sel(series=name), risen)
    assert_close(found["rank_rise_estimate"], found["rank_rise"].mean("series"), depth=8)
    few = flow_of_ranks(run, apart=2)
    assert few["series_rank"].notnull().all(("epsilon", "stream")).values.tolist() == [True, False, True]
    none = flow_of_ranks(run, apart=0)
    assert not none["rank_rise_stands_out"].any()
    assert rank_rise(none).layout.meta["title"]


@torch.no_grad()
def turned(lens: Lens, turn: torch.Tensor) -> None:
    """The same T5 in another basis of its encoder's stream; norms must have equal gains."""
    model = lens.model
    model.encoder.embed_tokens.weight.copy_(model.encoder.embed_tokens.weight @ turn)
    for block in model.encoder.block:
        attention, feed = block.layer[0].SelfAttention, block.layer[1].DenseReluDense
        for read in (attention.q, attention.k, attention.v, feed.wi_0, feed.wi_1):
            read.weight.copy_(read.weight @ turn)
        for write in (attention.o, feed.wo):
            write.weight.copy_(turn.T @ write.weight)


def test_many_series_take_no_more_memory_than_few() -> None:
    """Bytes of tensors, counted operation by operation."""
    lens = lens_of("chronos-bolt")
    walks = np.random.default_rng(0).standard_normal((96, 64)).cumsum(axis=1)

    def held(count: int, size: int) -> int:
        run = lens.run(list(walks[:count]), 8)
        return measured(lambda: flow_of_ranks(run, batch_size=size), lens.device)[1]

    assert held(96, 4) <= 1.2 * held(12, 4)
    assert held(96, 96) > 4 * held(96, 4)


def test_turning_the_basis_of_the_stream_changes_no_rank() -> None:
    lens = fresh("t5")
    for name, gain in lens.model.encoder.named_parameters():
        if "layer_norm" in name:
            torch.nn.init.ones_(gain)
    run = run_of(lens)
    forced_path = run.path
    before = flow_of_ranks(run, epsilon=[0.1, 0.01])
    start = rows_at(run, "encoder_blocks.1.hook_resid_pre")
    turned(lens, torch.tensor(np.linalg.qr(np.random.default_rng(0).normal(size=(36, 36)))[0]).float())
    again = lens.run(run.batch, 6, forced_path=forced_path)
    assert float((rows_at(again, "encoder_blocks.1.hook_resid_pre") - start).abs().max()) > 0.1
    after = flow_of_ranks(again, epsilon=[0.1, 0.01])
    assert_close(after["singular_value"], before["singular_value"], depth=300, dtype=np.float32)
    assert_close(after["weight_singular_value"], before["weight_singular_value"], depth=36, dtype=np.float32)
    np.testing.assert_array_equal(after["epsilon_rank"], before["epsilon_rank"])


def test_a_constant_series_has_one_direction_and_a_planted_layer_adds_one() -> None:
    """Without attention and with one unit in the first layer's MLP, two kinds of tokens stay in few directions."""
    lens = fresh("t5")
    with torch.no_grad():
        for block in lens.model.encoder.block:
            block.layer[0].SelfAttention.o.weight.zero_()
            block.layer[1].DenseReluDense.wo.weight.zero_()
        one = lens.model.encoder.block[0].layer[1].DenseReluDense.wo.weight
        one[:, 0] = torch.randn(len(one), generator=torch.Generator().manual_seed(0))
    same = flow_of_ranks(lens.run([np.full(20, 7.0)], 2, num_samples=2), epsilon=1e-4)
    assert same["epsilon_rank"].values.tolist() == [[1] * same.sizes["stream"]]
    two = flow_of_ranks(lens.run([np.tile([7.0, 9.0], 10)], 2, num_samples=2), epsilon=1e-4)
    assert set(two["epsilon_rank"].values.ravel().tolist()) == {2}
    # five tokens in five directions, and their images under one unit in a sixth
    ids = lens.run([np.tile([5.0, 7, 9, 11, 13], 6)], 2, num_samples=2)
    five = flow_of_ranks(ids, epsilon=1e-4)
    assert five["epsilon_rank"].values.tolist() == [[5] * five.sizes["stream"]]


def test_the_bound_is_that_of_the_theorem_where_it_applies_and_nothing_elsewhere() -> None:
    lens = fresh("chronos-bolt")
    stack = lens.wiring.stacks[0]
    values = np.geomspace(3, 0.1, 8)
    deep = type(stack)(**{**vars(stack), "n_layers": 900, "n_heads": 2})
    assert_close(_bound(values, deep, np.array([1.0, 1.0])), flow_bound(values, 2, 900), depth=8)
    for column, norms, spectrum in (
        (stack, [0.5, 0.5], values),
        (deep, [1.1, 0.5], values),
        (deep, [0.5, 1.1], values),
        (deep, [0.5, 0.5], np.array([1.0, 0.0])),
    ):
        assert np.isnan(_bound(spectrum, column, np.array(norms))).all()


@pytest.mark.parametrize("name", ["chronos-bolt", "timesfm-2.5", "toto-2", "moirai-2"])
def test_what_an_attention_adds_is_bounded_by_what_was_measured(name: str) -> None:
    """Against dense matrices of all tokens: the spectrum after the attention, and the norms in the bound."""
    lens = lens_of(name)
    run = run_of(lens, ("co2", "elnino", "nile"))
    found = flow_of_ranks(run, batch_size=2)
    stack = lens.wiring.stacks[0]
    kind = next(stack.attentions(0)).kind
    after = rows_at(run, f"{stack.prefix}.0.hook_resid_mid").double().numpy()
    values = np.linalg.svd(after, compute_uv=False)[: found.sizes["mode"]]
    assert_close(found["attention_value"].values[0], values / values[0], depth=300, dtype=np.float32)
    known, bound = found["attention_value"].values, found["attention_bound"].values
    says = np.isfinite(bound)
    assert says[0].all()
    assert (known[says] <= bound[says] * (1 + 1e-6)).all()
    # the largest that is allowed is what the triangle inequality allows: the stream before, and every head's norms
    results = rows_at(run, f"{stack.prefix}.0.{kind}.hook_result").double().numpy()
    before = np.linalg.norm(after - results.sum(1), 2)
    heads = sum(np.linalg.norm(results[:, head], 2) for head in range(results.shape[1]))
    assert bound[0, 0] * values[0] >= (before + heads) * (1 - 1e-6)


def test_of_an_attention_that_does_more_than_weigh_values_nothing_is_said() -> None:
    lens = copy.deepcopy(lens_of("chronos-bolt"))
    lens.model.encoder.block[0].layer[0].SelfAttention.o.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    doubled = flow_of_ranks(run_of(Lens(lens.adapter, "doubled"), ("co2", "elnino", "nile")), batch_size=1)
    assert np.isnan(doubled["attention_bound"].values[0]).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_measured_inequality_holds_for_any_matrices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stream = rng.normal(size=(30, 8)) * np.geomspace(1, 1e-3, 8)
    written = [rng.normal(size=(30, 2)) @ rng.normal(size=(2, 8)) * 0.3 for _ in range(3)]
    spectra = np.stack([np.linalg.svd(each, compute_uv=False)[:2] for each in written])
    bound = measured_bound(np.linalg.svd(stream, compute_uv=False), spectra)
    values = np.linalg.svd(stream + sum(written), compute_uv=False)
    assert (values <= bound * (1 + 1e-12)).all()
    # six directions are all that three heads of two can add
    assert_close(bound[6:], np.linalg.svd(stream, compute_uv=False)[:2], depth=8)
    for wrong in ([1.0, 2.0], [1.0, -1.0], [np.nan, 0.0]):
        with pytest.raises(InputError, match="singular values"):
            measured_bound(np.array(wrong), spectra)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"batch_size": 0}, "batch_size 0"), ({"epsilon": 1}, "epsilon is 1"), ({"stack": "encodr"}, "encoder")],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(LensError, match=words):
        flow_of_ranks(lens_of("chronos-bolt").run([np.arange(40.0)], 6), **options)
