"""Ranks of weights, embeddings and streams against planted ranks and dense
decompositions.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from importlib import import_module

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from closeness import close_in_float32
from refusals import expect_error
from tiny_lenses import ATTENDING, archetypes, fresh, lens_of
from tiny_series import few_draws, make_series
from tsfm_lens.compress.timing import measured
from tsfm_lens.core.ranks import epsilon_rank, flow_bound, measured_bound
from tsfm_lens.models import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.probes import embedding_ranks, flow_of_ranks, row_angles, weight_ranks
from tsfm_lens.probes.stream_ranks import StreamedSpectrum, _bound
from tsfm_lens.probes.weights import random_angle
from tsfm_lens.testing import assert_close

QUERIES = "encoder.0.self_attn.W_Q"


def edited(change: Callable[[torch.Tensor], torch.Tensor]) -> Lens:
    """A tiny model whose first encoder layer has other queries: ``change`` of their
    native matrix (out, in).
    """
    lens = fresh("chronos-bolt")
    weight = lens.model.encoder.block[0].layer[0].SelfAttention.q.weight
    with torch.no_grad():
        weight.copy_(change(weight.double()))
    return lens


def of_rank_3(weight: torch.Tensor) -> torch.Tensor:
    """All directions but the first three taken away."""
    u, s, vt = torch.linalg.svd(weight, full_matrices=False)
    return (u[:, :3] * s[:3]) @ vt[:3]


def dense(lens: Lens, stack: str, layer: int, kind: str, part: str) -> np.ndarray:
    """A matrix put together from the heads as circuits see them, or from the MLP."""
    if kind == "mlp":
        return (
            getattr(lens.weights.mlp(layer, kind, stack), part)
            .detach()
            .double()
            .numpy()
        )
    heads = (
        getattr(lens.weights.heads(layer, kind, stack), part).detach().double().numpy()
    )
    row = lens.wiring.stack(stack).attention(kind, layer)
    if part in ("W_K", "W_V") and row.n_kv_heads:
        heads = heads[:: len(heads) // row.n_kv_heads]
    return np.concatenate(list(heads), axis=0 if part == "W_O" else 1)


@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_spectra_equal_those_of_dense_matrices(
    name: str,
) -> None:
    """Every matrix of every architecture has the spectrum of its dense copy."""
    lens = lens_of(name)
    found = weight_ranks(lens, epsilon=[0.3, 0.01], per_head=True)
    full = found.isel(matrix=np.flatnonzero(found["head"].values == ""))
    positions = [full[item].values for item in ("stack", "layer", "layer_kind", "part")]
    branches = sum(
        len(stack.rows(layer))
        for stack in lens.wiring.stacks
        for layer in range(stack.n_layers)
    )
    assert len(set(zip(*positions[:3], strict=True))) == branches
    for row, (stack, layer, kind, part) in enumerate(zip(*positions, strict=True)):
        one = full.isel(matrix=row)
        values = np.linalg.svd(
            dense(lens, str(stack), int(layer), str(kind), str(part)), compute_uv=False
        )
        ours = one["singular_value"].dropna("mode")
        assert_close(ours, values, depth=100, what=str(one["matrix"].values))
        assert one["epsilon_rank"][0] == (values > 0.3 * values[0]).sum()
        assert one["full"] == len(values)
    # the heads of a matrix share its squared norm
    squares = np.square(found["singular_value"]).sum("mode").to_series()
    first = str(full["matrix"].values[0]).rsplit(".", 1)[0]
    chosen = squares[squares.index.str.match(f"{re.escape(first)}.*W_Q$")]
    assert len(chosen) > 2
    assert_close(chosen.iloc[1:].sum(), chosen.iloc[0], depth=100)


def test_shared_keys_and_values_stand_once() -> None:
    attention_models = import_module("models.test_own_attention")
    native = attention_models.grouped(repeated=False)
    lens = Lens(attention_models.Grouped(native), "grouped")
    found = weight_ranks(lens, per_head=True)
    values = np.linalg.svd(
        native.blocks[1].attn.k.weight.detach().double().numpy(), compute_uv=False
    )
    assert_close(
        found["singular_value"].sel(matrix="1.attn.W_K").dropna("mode"),
        values,
        depth=100,
    )
    heads = {
        part: found["head"].values[(found["part"] == part).values].tolist()
        for part in ("W_Q", "W_V")
    }
    assert (
        heads["W_Q"]
        == ["", *map(str, range(attention_models.HEADS))] * attention_models.LAYERS
    )
    assert (
        heads["W_V"]
        == ["", *map(str, range(attention_models.SHARED))] * attention_models.LAYERS
    )
    angles = row_angles(lens, part="W_V", permutations=19)
    assert angles.sizes["head"] == attention_models.SHARED


@pytest.mark.parametrize(
    ("precision", "name"), [(torch.float32, "float32"), (torch.bfloat16, "bfloat16")]
)
def test_the_floor_follows_the_checkpoint_rounding(
    precision: torch.dtype, name: str
) -> None:
    """Of a matrix of rank 3, what is left of the other singular values is rounding
    alone.
    """
    lens = edited(of_rank_3)
    with torch.no_grad():
        for weight in lens.parameters():
            weight.copy_(weight.to(precision))
    found = weight_ranks(lens, epsilon=[0.5, 0.1])
    assert found.attrs["precision"] == name
    one = found.sel(matrix=QUERIES)
    values = one["singular_value"].dropna("mode").values
    floor = float(one["rounding_floor"])
    largest = float(values[3] / values[0])
    assert 0.1 * floor < largest < floor
    expect_error(
        rf"what these weights can tell: they are stored in {name}",
        weight_ranks,
        lens,
        epsilon=[0.5, 1e-9],
    )
    floors = found["rounding_floor"].values
    between = float(np.sqrt(floors.min() * floors.max()))
    marked = weight_ranks(lens, epsilon=between)
    assert_array_equal(marked["told"].values[0], floors <= between)
    assert 0 < marked["told"].mean() < 1


def test_what_is_not_finite_is_named() -> None:
    broken = edited(lambda weight: weight.fill_diagonal_(float("nan")))
    for probe in (weight_ranks, row_angles):
        expect_error(
            r"encoder\.0\.self_attn\.W_Q holds values that are not finite",
            probe,
            broken,
        )


@pytest.mark.parametrize("parts", [[200], [1] * 200, [3, 0, 97, 100], [199, 1]])
def test_streamed_singular_values_are_exact(parts: list[int]) -> None:
    """Small ones survive, as they do not where outer products are summed."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(size, 12)))[0] for size in (200, 12))
    sizes = np.geomspace(1, 1e-12, 12)
    full = (left * sizes) @ right.T
    spectrum = StreamedSpectrum(12)
    for part in np.split(full, np.cumsum(parts)[:-1]):
        spectrum.add(torch.tensor(part))
    assert spectrum.rows == 200
    assert_close(spectrum.singular_values(), sizes, depth=200)


@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_families_of_every_architecture(name: str) -> None:
    run = make_run(lens_of(name))
    found = embedding_ranks(run, epsilon=[0.01, 0.001], batch_size=64)
    families = found["family"].values.tolist()
    ranks = found["epsilon_rank"].sel(epsilon=0.01).to_series()
    assert families[0] == "own series"
    assert ("vocabulary" in families) == (name in ("chronos", "t5"))
    if name != "t5":
        # one value at every step is one token, but where patches hold their time too
        assert (ranks["zero"] == 1) == (name != "chronos-2")
        assert ranks["exponentials"] <= ranks["white noise"]
    assert (found["epsilon_rank"] <= found["full"]).all()
    assert (found["tokens"] >= found["full"]).all()


def test_own_signals_are_embedded_by_models() -> None:
    """Signals of the user's own are embedded as the model does it."""
    lens = fresh("chronos-bolt")
    signals = {"steps": [np.repeat([0.0, 5.0, 1.0, 2.0], 10), np.arange(33.0)]}
    found = embedding_ranks(make_run(lens), signals=signals, tokens=4).sel(
        family="steps"
    )
    encoded = lens.encode(signals["steps"])
    with torch.no_grad():
        _, activations = lens.run_with_cache(
            encoded, names_filter=["encoder.hook_embed"]
        )
    # all but the special token at the end, and of the shorter series all but the
    # padding before it
    special = [bool(word) for word in encoded.spans["encoder"].special]
    reported = encoded.shown("encoder") & ~torch.tensor(special)
    rows = activations["encoder.hook_embed"][reported].double().numpy()
    assert int(found["tokens"]) == len(rows)
    values = np.linalg.svd(rows, compute_uv=False)
    close_in_float32(found["singular_value"].values[: len(values)], values)
    visible = rows[np.unique(np.linspace(0, len(rows) - 1, 4).round().astype(int))]
    unit = visible / np.linalg.norm(visible, axis=1, keepdims=True)
    angle = np.cos(np.radians(found["angle"].values[0, -1]))
    close_in_float32(angle, np.abs(unit[0] @ unit[-1]))


@pytest.mark.parametrize("part", ["W_Q", "W_K", "W_V", "W_O"])
@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_block_angles_are_means_over_pairs(name: str, part: str) -> None:
    """Block angles of every architecture are means over pairs of rows."""
    lens = lens_of(name)
    found = row_angles(lens, part=part, rows=12, permutations=19)
    last = found.isel(layer=-1)
    stack = lens.wiring.stacks[0]
    heads = lens.weights.heads(int(last["layer"]), found.attrs["attention"], stack.name)
    matrices = getattr(heads, part).detach().double().numpy()
    matrices = matrices[:: len(matrices) // found.sizes["head"]]
    if part == "W_O":
        lines = matrices
    else:
        lines = matrices.swapaxes(-1, -2)
    unit = lines / np.linalg.norm(lines, axis=-1, keepdims=True)
    first, second = (
        np.degrees(np.arccos(np.minimum(np.abs(unit[0] @ item.T), 1)))
        for item in unit[:2]
    )
    blocks = last["block_angle"].values
    separate = np.triu_indices(len(first), 1)
    assert_close(blocks[0, 0], first[separate].mean(), depth=100)
    assert_close(blocks[0, 1], second.mean(), depth=100)
    # of equal heads the mean over heads is that over all pairs
    between = blocks[~np.eye(len(blocks), dtype=bool)].mean()
    assert_close(float(last["within"]), np.diag(blocks).mean(), depth=100)
    assert_close(float(last["between"]), between, depth=100)


def test_only_planted_blocks_stand_out() -> None:
    """Planted blocks stand out, random rows do not."""

    def blocks(weight: torch.Tensor) -> torch.Tensor:
        size = len(weight) // 4
        width = weight.shape[1]
        generator = torch.Generator().manual_seed(0)
        for head in range(4):
            line = torch.randn(width, generator=generator)
            weight[head * size : (head + 1) * size] = line + 0.3 * torch.randn(
                size, width, generator=generator
            )
        return weight

    lens = edited(blocks)
    assert lens.wiring.stacks[0].n_heads == 4
    found = row_angles(lens)
    assert bool(found["closer_significant"][0])
    assert not found["closer_significant"][1:].any()
    assert float(found["closer"][0]) > 20
    assert not row_angles(fresh("chronos-bolt"))["closer_significant"].any()


@pytest.mark.parametrize(
    ("dimensions", "angle"), [(2, np.pi / 4), (3, 1.0), (4, np.pi / 4 + 1 / np.pi)]
)
def test_angles_of_random_lines_are_known(dimensions: int, angle: float) -> None:
    """Random lines lie as far apart as the integral says."""
    close_in_float32(random_angle(dimensions), np.degrees(angle), depth=20000)


def make_run(lens: Lens, names: tuple[str, ...] = ("co2", "elnino")) -> Run:
    return lens.run(make_series(lens, *names, example=len(names)), 6, **few_draws(lens))


def select_rows(run: Run, point: str) -> torch.Tensor:
    """All tokens of all series at one point, (token, d_model), of one dense forward."""
    return run.record([point])[point][
        run.encoded.shown(run.lens.wiring.stacks[0].name)
    ].double()


@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_spectra_equal_those_of_dense_streams(
    name: str,
) -> None:
    """The spectra of every architecture are those of dense streams."""
    run = make_run(lens_of(name))
    found = flow_of_ranks(run, epsilon=[0.1, 0.01])
    stack = run.lens.wiring.stacks[0]
    points = ["resid_pre", *["resid_post"] * stack.n_layers]
    for position, point in enumerate(points):
        rows = select_rows(run, f"{stack.prefix}.{max(position - 1, 0)}.hook_{point}")
        values = np.linalg.svd(rows.numpy(), compute_uv=False)
        # two forwards, of which one looks into nothing else, differ by rounding
        ours = found["singular_value"].values[position]
        close_in_float32(
            ours, values, depth=100 * (position + 1), what=f"{name} {position}"
        )
        assert found.attrs["tokens"] == len(rows)
        ranks = found["epsilon_rank"].values[:, position]
        assert_array_equal(ranks, epsilon_rank(ours, [0.1, 0.01]))
    for layer in range(stack.n_layers):
        kind = next(stack.attentions(layer)).kind
        products = run.lens.weights.heads(layer, kind, stack.name).W_QK.AB.detach()
        norm = np.linalg.norm(products.double().numpy(), 2, axis=(1, 2)).max()
        ours = float(found["query_key_norm"][layer]) * stack.d_head**0.5
        close_in_float32(ours, norm)
    assert np.isnan(found["bound"]).all()
    assert found.attrs["least_depth"] == int(np.ceil(4 * np.exp(4) * stack.n_heads**2))


def test_ranks_by_series_equal_single_runs() -> None:
    """Ranks of single series are those of runs of them alone."""
    run = make_run(lens_of("timesfm-2.5"), ("co2", "elnino", "nile"))
    found = flow_of_ranks(run, batch_size=2)
    for index, name in enumerate(run.batch.ids):
        alone = flow_of_ranks(run.select(index))
        ours = found.sel(series=name)
        ranks = alone["epsilon_rank"]
        assert_array_equal(ours["series_rank"], ranks)
        risen = ranks - ranks.isel(stream=0)
        assert_array_equal(ours["rank_rise"], risen)
    few = flow_of_ranks(run, apart=2)["series_rank"].notnull()
    assert few.all(("epsilon", "stream")).values.tolist() == [True, False, True]


def test_memory_does_not_grow_with_series() -> None:
    """Bytes of tensors, counted operation by operation."""
    lens = lens_of("chronos-bolt")
    walks = np.random.default_rng(0).standard_normal((96, 64)).cumsum(axis=1)

    def held(count: int, size: int) -> int:
        run = lens.run(list(walks[:count]), 8)
        return measured(lambda: flow_of_ranks(run, batch_size=size), lens.device)[1]

    assert held(96, 4) <= 1.2 * held(12, 4)
    assert held(96, 96) > 4 * held(96, 4)


def test_the_bound_exists_where_it_applies() -> None:
    """The bound is that of the theorem where it applies, and missing elsewhere."""
    lens = fresh("chronos-bolt")
    stack = lens.wiring.stacks[0]
    values = np.geomspace(3, 0.1, 8)
    deep = type(stack)(**{**vars(stack), "n_layers": 900, "n_heads": 2})
    assert_close(
        _bound(values, deep, np.array([1.0, 1.0])), flow_bound(values, 2, 900), depth=8
    )
    for column, norms, spectrum in (
        (stack, [0.5, 0.5], values),
        (deep, [1.1, 0.5], values),
        (deep, [0.5, 1.1], values),
        (deep, [0.5, 0.5], np.array([1.0, 0.0])),
    ):
        assert np.isnan(_bound(spectrum, column, np.array(norms))).all()


@pytest.mark.parametrize("name", ["chronos-bolt", "timesfm-2.5", "toto-2", "moirai-2"])
def test_measured_bounds_hold_for_every_attention(name: str) -> None:
    """Against dense matrices of all tokens: the spectrum after the attention, and the
    norms in the bound.
    """
    run = make_run(lens_of(name), ("co2", "elnino", "nile"))
    found = flow_of_ranks(run, batch_size=2)
    stack = run.lens.wiring.stacks[0]
    after, results = (
        select_rows(run, f"{stack.prefix}.0.{point}").numpy()
        for point in (
            "hook_resid_mid",
            f"{next(stack.attentions(0)).kind}.hook_result",
        )
    )
    values = np.linalg.svd(after, compute_uv=False)[: found.sizes["mode"]]
    known = found["attention_value"].values
    bound = found["attention_bound"].values
    close_in_float32(known[0], values / values[0], depth=300)
    says = np.isfinite(bound)
    assert says[0].all()
    assert (known[says] <= bound[says] * (1 + 1e-6)).all()
    # the largest that is allowed is what the triangle inequality allows: the stream
    # before, and every head's norms
    before = np.linalg.norm(after - results.sum(1), 2)
    heads = np.linalg.norm(results, 2, axis=(0, 2)).sum()
    assert bound[0, 0] * values[0] >= (before + heads) * (1 - 1e-6)


def test_hooked_attention_has_no_bound() -> None:
    """Of an attention that does more than weigh values nothing is said."""
    lens = copy.deepcopy(lens_of("chronos-bolt"))
    lens.model.encoder.block[0].layer[0].SelfAttention.o.register_forward_pre_hook(
        lambda module, args: (2 * args[0],)
    )
    doubled = flow_of_ranks(
        make_run(Lens(lens.adapter, "doubled"), ("co2", "elnino", "nile")), batch_size=1
    )
    assert np.isnan(doubled["attention_bound"].values[0]).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_inequality_holds_for_any_matrices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stream = rng.normal(size=(30, 8)) * np.geomspace(1, 1e-3, 8)
    written = rng.normal(size=(3, 30, 2)) @ rng.normal(size=(3, 2, 8)) * 0.3
    before = np.linalg.svd(stream, compute_uv=False)
    spectra = np.linalg.svd(written, compute_uv=False)[:, :2]
    bound = measured_bound(before, spectra)
    values = np.linalg.svd(stream + written.sum(0), compute_uv=False)
    assert (values <= bound * (1 + 1e-12)).all()
    # six directions are all that three heads of two can add
    assert_close(bound[6:], before[:2], depth=8)
    for wrong in ([1.0, 2.0], [1.0, -1.0], [np.nan, 0.0]):
        expect_error("singular values", measured_bound, np.array(wrong), spectra)
