"""Ranks of weights against planted ranks and decompositions of dense copies."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from tiny_lenses import fresh, lens_of
from tsfm_lens.errors import InputError, LensError
from tsfm_lens.models import Lens, architectures
from tsfm_lens.probes import row_angles, weight_ranks
from tsfm_lens.probes.weights import StreamedSpectrum
from tsfm_lens.testing import assert_close

NAMES = sorted(architectures())
QUERIES = "encoder.0.self_attn.W_Q"


def edited(change: Callable[[torch.Tensor], torch.Tensor], name: str = "chronos-bolt") -> Lens:
    """A tiny model whose first encoder layer has other queries: ``change`` of their native matrix (out, in)."""
    lens = fresh(name)
    weight = lens.model.encoder.block[0].layer[0].SelfAttention.q.weight
    with torch.no_grad():
        weight.copy_(change(weight.double()))
    return lens


def of_rank(rank: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """All directions but the first few taken away."""

    def cut(weight: torch.Tensor) -> torch.Tensor:
        u, s, vt = torch.linalg.svd(weight, full_matrices=False)
        return (u[:, :rank] * s[:rank]) @ vt[:rank]

    return cut


def dense(lens: Lens, stack: str, layer: int, kind: str, part: str) -> np.ndarray:
    """A matrix put together from the heads as circuits see them, or from the MLP."""
    if kind == "mlp":
        return getattr(lens.weights.mlp(layer, kind, stack), part).detach().double().numpy()
    heads = getattr(lens.weights.heads(layer, kind, stack), part).detach().double().numpy()
    row = lens.wiring.stack(stack).attention(kind, layer)
    if part in ("W_K", "W_V") and row.n_kv_heads:
        heads = heads[:: len(heads) // row.n_kv_heads]
    return np.concatenate(list(heads), axis=0 if part == "W_O" else 1)


@pytest.mark.parametrize("name", NAMES)
def test_every_matrix_of_every_architecture_has_the_spectrum_of_its_dense_copy(name: str) -> None:
    lens = lens_of(name)
    found = weight_ranks(lens, epsilon=[0.3, 0.01], per_head=True)
    whole = found.isel(matrix=np.flatnonzero(found["head"].values == ""))
    writers = sum(len(stack.rows(layer)) for stack in lens.wiring.stacks for layer in range(stack.n_layers))
    attentions = {
        (s, x, k) for s, x, k in zip(*(whole[n].values for n in ("stack", "layer", "layer_kind")), strict=True)
    }
    assert len(attentions) == writers
    for row in range(whole.sizes["matrix"]):
        place = [str(whole[n].values[row]) for n in ("stack", "layer", "layer_kind", "part")]
        values = np.linalg.svd(dense(lens, place[0], int(place[1]), place[2], place[3]), compute_uv=False)
        ours = whole["singular_value"].values[row]
        assert_close(ours[: len(values)], values, depth=100, what=".".join(place))
        assert np.isnan(ours[len(values) :]).all()
        assert whole["epsilon_rank"].values[0, row] == (values > 0.3 * values[0]).sum()
        assert whole["full"].values[row] == len(values)
    # the heads of a matrix share its squared norm
    squares = np.nansum(found["singular_value"].values ** 2, axis=1)
    first = str(whole["matrix"].values[0]).rsplit(".", 1)[0]
    heads = [i for i, m in enumerate(found["matrix"].values) if m.startswith(first) and m.endswith("W_Q")]
    assert len(heads) > 2
    assert_close(squares[heads[1:]].sum(), squares[heads[0]], depth=100)


def test_keys_and_values_that_heads_share_stand_once() -> None:
    own = import_module("models.test_own_attention")
    native = own.grouped(repeated=False)
    lens = Lens(own.Grouped(native), "grouped")
    found = weight_ranks(lens, per_head=True)
    values = np.linalg.svd(native.blocks[1].attn.k.weight.detach().double().numpy(), compute_uv=False)
    assert_close(found["singular_value"].sel(matrix="1.attn.W_K").dropna("mode"), values, depth=100)
    heads = {part: found["head"].values[(found["part"] == part).values].tolist() for part in ("W_Q", "W_V")}
    assert heads["W_Q"] == ["", *map(str, range(own.HEADS))] * own.LAYERS
    assert heads["W_V"] == ["", *map(str, range(own.SHARED))] * own.LAYERS
    angles = row_angles(lens, part="W_V", permutations=19)
    assert angles.sizes["head"] == own.SHARED


@pytest.mark.parametrize("rank", [0, 1, 5])
def test_a_planted_rank_is_found(rank: int) -> None:
    found = weight_ranks(edited(of_rank(rank)), epsilon=[0.001, 1e-5], per_head=True)
    assert found["epsilon_rank"].sel(matrix=QUERIES).values.tolist() == [rank, rank]
    heads = found["epsilon_rank"].sel(epsilon=0.001)[
        found["matrix"].str.match(r"encoder\.0\.self_attn\.\d+\.W_Q").values
    ]
    assert len(heads) > 1
    assert (heads <= rank).all()
    assert np.isnan(found["stable_rank"].sel(matrix=QUERIES)) == (rank == 0)
    # the others keep theirs
    keys = found.sel(matrix="encoder.0.self_attn.W_K", epsilon=0.001)
    assert int(keys["epsilon_rank"]) > 5


@pytest.mark.parametrize(("precision", "name"), [(torch.float32, "float32"), (torch.bfloat16, "bfloat16")])
def test_the_floor_is_where_rounding_of_the_checkpoint_puts_zeros(precision: torch.dtype, name: str) -> None:
    """Of a matrix of rank 3, what is left of the other singular values is rounding alone."""
    lens = edited(of_rank(3))
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
    with pytest.raises(InputError, match=rf"what these weights can tell: they are stored in {name}"):
        weight_ranks(lens, epsilon=[0.5, 1e-9])
    floors = found["rounding_floor"].values
    between = float(np.sqrt(floors.min() * floors.max()))
    marked = weight_ranks(lens, epsilon=between)
    np.testing.assert_array_equal(marked["told"].values[0], floors <= between)
    assert 0 < marked["told"].mean() < 1


def test_turning_the_basis_of_the_stream_changes_no_rank() -> None:
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(36, 36)))[0]
    plain, turned = edited(lambda w: w), edited(lambda w: w @ torch.tensor(turn)[: w.shape[1], : w.shape[1]])
    assert plain.d_model == len(turn)
    before, after = (weight_ranks(lens).sel(matrix=QUERIES) for lens in (plain, turned))
    assert_close(after["singular_value"], before["singular_value"], depth=36, dtype=np.float32)
    for name in ("stable_rank", "effective_rank", "participation_ratio"):
        assert_close(after[name], before[name], depth=36, dtype=np.float32)


def test_decades_count_a_known_spectrum() -> None:
    def planted(weight: torch.Tensor) -> torch.Tensor:
        u, s, vt = torch.linalg.svd(weight, full_matrices=False)
        places = torch.arange(len(s))
        # 4 above a tenth, then 6 in each of the next two powers of ten, the rest far below
        known = torch.where(places < 4, 1.0, torch.where(places < 10, 0.05, torch.where(places < 16, 5e-3, 2e-6)))
        return (u * known) @ vt

    found = weight_ranks(edited(planted), parts=["W_Q"], stack="encoder")
    assert found["decade_count"].sel(matrix=QUERIES).values.tolist() == [4, 6, 6, 0, 0]
    assert found["epsilon_rank"].sel(matrix=QUERIES, epsilon=[0.1, 0.01, 0.001]).values.tolist() == [4, 10, 16]


@pytest.mark.parametrize("epsilon", [0, 1, -0.1, 2.0, float("nan"), True, "0.1", [], [0.1, None]])
def test_an_epsilon_that_means_nothing_is_refused(epsilon: object) -> None:
    with pytest.raises(InputError, match="epsilon is"):
        weight_ranks(lens_of("chronos"), epsilon=epsilon)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("chronos", {"stack": "encodr"}, "encoder"),
        ("chronos", {"parts": ["W_q"]}, "W_Q"),
        ("chronos-bolt", {"parts": ["W_gate"]}, "has none of W_gate"),
    ],
)
def test_what_a_model_does_not_have_is_named(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(LensError, match=words):
        weight_ranks(lens_of(name), **options)


def test_what_is_not_finite_is_named() -> None:
    broken = edited(lambda weight: weight.fill_diagonal_(float("nan")))
    with pytest.raises(InputError, match=r"encoder\.0\.self_attn\.W_Q holds values that are not finite"):
        weight_ranks(broken)


def of_values(values: np.ndarray, rows: int, seed: int = 0) -> np.ndarray:
    """A matrix (rows, columns) of known singular values."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.normal(size=(size, len(values))))[0] for size in (rows, len(values)))
    return (left * values) @ right.T


@pytest.mark.parametrize("parts", [[200], [1] * 200, [3, 0, 97, 100], [199, 1]])
def test_streamed_singular_values_are_those_of_the_whole(parts: list[int]) -> None:
    whole = of_values(np.geomspace(1, 1e-12, 12), 200)
    spectrum = StreamedSpectrum(12)
    for part in np.split(whole, np.cumsum(parts)[:-1]):
        spectrum.add(torch.tensor(part))
    dense = np.linalg.svd(whole, compute_uv=False)
    assert spectrum.rows == 200
    assert_close(spectrum.singular_values(), dense, depth=200)
    # small ones survive, as they do not where outer products are summed
    assert_close(spectrum.singular_values()[-1], 1e-12, depth=200, magnitude=1.0)
    gram = np.sqrt(np.abs(np.linalg.eigvalsh(whole.T @ whole)))[::-1]
    assert abs(gram[-1] / dense[-1] - 1) > 10 > abs(spectrum.singular_values()[-1] / dense[-1] - 1)


def test_few_rows_have_few_singular_values() -> None:
    spectrum = StreamedSpectrum(8)
    assert len(spectrum.singular_values()) == 0
    spectrum.add(torch.tensor(of_values(np.ones(8), 8)[:3]))
    assert_close(spectrum.singular_values(), np.ones(3), depth=8)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(InputError, match="not finite"):
        StreamedSpectrum(2).add(torch.tensor([[1.0, value]]))


def test_the_floor_is_where_rounding_to_float32_puts_zeros() -> None:
    whole = of_values(np.array([1.0, 0.5, 0.2] + [0.0] * 17), 300)
    spectrum = StreamedSpectrum(20)
    spectrum.add(torch.tensor(whole, dtype=torch.float32))
    values = spectrum.singular_values()
    floor = spectrum.rounding_floor(values, 0)
    assert 0.1 * floor < values[3] / values[0] < floor
    assert spectrum.rounding_floor(values, 3) > 10 * floor
