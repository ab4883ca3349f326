"""Ranks of embedded series and angles of rows against planted ranks and other ways to the same number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from contrasted import few_draws, series_for
from tiny_lenses import fresh, lens_of
from tsfm_lens.errors import InputError, LensError
from tsfm_lens.models import Lens, architectures
from tsfm_lens.models.run import Run
from tsfm_lens.probes import embedding_ranks, row_angles, signal_families
from tsfm_lens.probes.weights import random_angle
from tsfm_lens.testing import assert_close

NAMES = sorted(architectures())


def run_of(lens: Lens) -> Run:
    return lens.run(series_for(lens, "co2", "elnino", example=1), 6, **few_draws(lens))


@pytest.mark.parametrize("name", NAMES)
def test_families_of_every_architecture(name: str) -> None:
    run = run_of(lens_of(name))
    found = embedding_ranks(run, epsilon=[0.01, 0.001], batch_size=64)
    families = found["family"].values.tolist()
    ranks = found["epsilon_rank"].sel(epsilon=0.01).to_series()
    assert families[0] == "own series"
    assert ("vocabulary" in families) == (name in ("chronos", "t5"))
    if name == "t5":
        assert families[1:] == ["random ids", "vocabulary"]
    else:
        # one value at every step is one token, but where patches hold their time too
        assert (ranks["zero"] == 1) == (name != "chronos-2")
        assert ranks["exponentials"] <= ranks["white noise"]
    assert (found["epsilon_rank"] <= found["full"]).all()
    assert (found["tokens"] >= found["full"]).all()
    # a signal cannot use more directions than all of its family, at the same absolute height
    np.testing.assert_array_equal(found["signal_rank"].sel(family="own series").notnull().sum("signal"), len(run.batch))


def test_signals_of_ones_own_are_embedded_as_the_model_does() -> None:
    lens = fresh("chronos-bolt")
    run = run_of(lens)
    own = {"steps": [np.repeat([0.0, 5.0, 1.0, 2.0], 10), np.arange(33.0)]}
    found = embedding_ranks(run, signals=own, tokens=4)
    assert found["family"].values.tolist() == ["own series", "steps"]
    encoded = lens.encode(own["steps"])
    with torch.no_grad():
        _, acts = lens.run_with_cache(encoded, names_filter=["encoder.hook_embed"])
    # all but the special token at the end, and of the shorter series all but the padding before it
    special = [bool(word) for word in encoded.spans["encoder"].special]
    rows = acts["encoder.hook_embed"][encoded.shown("encoder") & ~torch.tensor(special)].double().numpy()
    assert int(found["tokens"].sel(family="steps")) == len(rows)
    values = np.linalg.svd(rows, compute_uv=False)
    ours = found["singular_value"].sel(family="steps").values[: len(values)]
    assert_close(ours, values, depth=100, dtype=np.float32)
    shown = rows[np.unique(np.linspace(0, len(rows) - 1, 4).round().astype(int))]
    cosine = np.abs(shown[0] @ shown[-1]) / np.linalg.norm(shown[0]) / np.linalg.norm(shown[-1])
    angle = found["angle"].sel(family="steps").values
    assert_close(np.cos(np.radians(angle[0, -1])), cosine, depth=100, dtype=np.float32)
    assert (np.diag(angle) < 1e-3).all()


def test_families_are_alike_for_one_seed_and_others_for_another() -> None:
    run = run_of(lens_of("chronos"))
    first, again, other = (signal_families(run, seed=seed) for seed in (0, 0, 1))
    for name in first:
        np.testing.assert_array_equal(first[name].values, again[name].values)
        assert (name in ("exponentials", "zero")) == np.array_equal(first[name].values, other[name].values)
        assert set(first[name].lengths) == {40}


def test_what_cannot_be_embedded_is_refused() -> None:
    run = run_of(lens_of("chronos"))
    for options, words in (
        ({"tokens": 1}, "tokens 1"),
        ({"batch_size": 0}, "batch_size 0"),
        ({"epsilon": 0}, "epsilon is 0"),
        ({"signals": {"vocabulary": [[1.0, 2.0]]}}, "'vocabulary'"),
    ):
        with pytest.raises(InputError, match=words):
            embedding_ranks(run, **options)


@torch.no_grad()
def with_queries(change: Callable[[torch.Tensor], object]) -> Lens:
    lens = fresh("chronos-bolt")
    change(lens.model.encoder.block[0].layer[0].SelfAttention.q.weight)
    return lens


@pytest.mark.parametrize("part", ["W_Q", "W_K", "W_V", "W_O"])
@pytest.mark.parametrize("name", NAMES)
def test_block_angles_of_every_architecture_are_means_over_pairs(name: str, part: str) -> None:
    lens = lens_of(name)
    found = row_angles(lens, part=part, rows=12, permutations=19)
    stack = lens.wiring.stacks[0]
    kind = found.attrs["attention"]
    layer = int(found["layer"].values[-1])
    heads = getattr(lens.weights.heads(layer, kind, stack.name), part).detach().double().numpy()
    heads = heads[:: len(heads) // found.sizes["head"]]
    lines = [head if part == "W_O" else head.T for head in heads]
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in lines]
    angle = np.degrees(np.arccos(np.minimum(np.abs(unit[0] @ unit[1].T), 1)))
    assert_close(float(found["block_angle"][-1, 0, 1]), angle.mean(), depth=100)
    own = np.degrees(np.arccos(np.minimum(np.abs(unit[0] @ unit[0].T), 1)))[np.triu_indices(len(unit[0]), 1)]
    assert_close(float(found["block_angle"][-1, 0, 0]), own.mean(), depth=100)
    # of equal heads the mean over heads is that over all pairs
    blocks = found["block_angle"].values[-1]
    assert_close(float(found["within"][-1]), np.diag(blocks).mean(), depth=100)
    assert_close(float(found["between"][-1]), blocks[~np.eye(len(blocks), dtype=bool)].mean(), depth=100)


def test_planted_blocks_stand_out_and_random_rows_do_not() -> None:
    def blocks(weight: torch.Tensor) -> None:
        n_heads = 4
        size = len(weight) // n_heads
        generator = torch.Generator().manual_seed(0)
        for head in range(n_heads):
            line = torch.randn(weight.shape[1], generator=generator)
            weight[head * size : (head + 1) * size] = line + 0.3 * torch.randn(
                size, weight.shape[1], generator=generator
            )

    lens = with_queries(blocks)
    assert lens.wiring.stacks[0].n_heads == 4
    found = row_angles(lens)
    assert bool(found["closer_stands_out"][0])
    assert not found["closer_stands_out"][1:].any()
    assert float(found["closer"][0]) > 20
    assert not row_angles(fresh("chronos-bolt"))["closer_stands_out"].any()


def test_rows_of_zeros_have_no_angles_and_one_zero_head_no_block() -> None:
    found = row_angles(with_queries(lambda weight: weight[: len(weight) // 4].zero_()))
    assert np.isnan(found["block_angle"].values[0, 0]).all()
    assert np.isfinite(found["block_angle"].values[0, 1:, 1:]).all()
    assert np.isfinite(found["within"]).all()
    nothing = row_angles(with_queries(lambda weight: weight.zero_()))
    assert np.isnan(nothing["within"][0])
    assert not nothing["closer_stands_out"][0]


def test_random_lines_lie_as_far_apart_as_drawn_ones() -> None:
    rng = np.random.default_rng(0)
    assert_close(random_angle(2), 45.0, depth=20000)
    for dimensions in (3, 16):
        lines = rng.normal(size=(2, 40_000, dimensions))
        lines /= np.linalg.norm(lines, axis=-1, keepdims=True)
        drawn = np.degrees(np.arccos(np.abs((lines[0] * lines[1]).sum(-1))))
        error = 5 * drawn.std() / len(drawn) ** 0.5
        assert abs(drawn.mean() - random_angle(dimensions)) < error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"part": "W_in"}, "W_Q"),
        ({"stack": "encodr"}, "encoder"),
        ({"kind": "selfattn"}, "self_attn"),
        ({"rows": 1}, "rows 1"),
    ],
)
def test_what_has_no_rows_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(LensError, match=words):
        row_angles(lens_of("chronos"), **options)
    with pytest.raises(InputError, match="not finite"):
        row_angles(with_queries(lambda weight: weight.fill_diagonal_(float("nan"))))
