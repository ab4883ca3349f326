"""Spectra, entropic rank and similarities against known answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from contrasted import few_draws, series_for
from tiny_lenses import lens_of
from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.models import architectures
from tsfm_lens.probes import entropic_rank, head_similarity, head_spectra, layer_similarity
from tsfm_lens.probes.similarity import head_entropy_of_writes, linear_cka
from tsfm_lens.probes.weights import stable_rank
from tsfm_lens.testing import assert_close

NAMES = sorted(architectures())


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1, 1, 1, 1], 4.0), ([3, 0, 0], 1.0), ([2, 1], 1.25), ([2e-200, 1e-200], 1.25), ([2e200, 1e200], 1.25)],
)
def test_stable_rank_of_known_spectra(values: list[float], expected: float) -> None:
    assert stable_rank(np.array(values, dtype=float)) == pytest.approx(expected)
    assert np.isnan(stable_rank(np.zeros(3)))


@pytest.mark.parametrize("name", NAMES)
def test_spectra_of_every_head_are_those_of_the_dense_products(name: str) -> None:
    lens = lens_of(name)
    found = head_spectra(lens)
    kind = lens.wiring.output_stack.attention_kinds()[-1]
    for layer in found["layer"].values:
        weights = lens.weights.heads(int(layer), kind)
        for product, dense in (("QK", weights.W_QK.AB), ("OV", weights.W_OV.AB)):
            values = torch.linalg.svdvals(dense.detach().double())[:, : found.sizes["mode"]]
            ours = found["singular_value"].sel(product=product, layer=layer).values
            assert_close(ours, values.numpy(), depth=100, dtype=np.float32)
    ranks = found["stable_rank"].values
    assert ((ranks >= 1) & (ranks <= found.sizes["mode"])).all()
    assert (np.take_along_axis(ranks, found["order"].values.argsort(-1), -1)[..., 1:] >= 0).all()
    ordered = np.take_along_axis(ranks, found["order"].values.argsort(axis=-1), axis=-1)
    assert (np.diff(ordered, axis=-1) >= 0).all()


def test_spectra_name_what_is_wrong() -> None:
    for options, words in (
        ({"kind": "cross"}, "cross_attn"),
        ({"stack": "encodr"}, "encoder"),
        ({"products": ["KQ"]}, "QK"),
    ):
        with pytest.raises(UnknownNameError, match=words):
            head_spectra(lens_of("chronos"), **options)


def rank_of(writes: np.ndarray) -> float:
    return float(head_entropy_of_writes(torch.tensor(writes)).exp())


def test_entropic_rank_of_known_arrangements() -> None:
    eye = np.eye(12, 20)
    assert_close(rank_of(eye), 12, depth=16, dtype=np.float32)
    line = np.outer(np.arange(1, 13) * (-1) ** np.arange(12), np.ones(20))
    assert_close(rank_of(line), 1, depth=100, dtype=np.float32)
    twins = eye.copy()
    twins[1] = -3 * twins[0]
    assert_close(rank_of(twins), 10.9345, depth=1000, dtype=np.float32)
    silent = eye.copy()
    silent[3] = 0
    assert_close(rank_of(silent), 11, depth=16, dtype=np.float32)
    assert_close(rank_of(np.array([[1.0, 0.0], [0.5, np.sqrt(0.75)]])), 1.92862, depth=100, dtype=np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_entropic_rank_of_a_model(name: str) -> None:
    lens = lens_of(name)
    series = series_for(lens, "co2", "elnino", example=2)
    together = entropic_rank(lens.run(series, 6, **few_draws(lens)))
    assert ((together["rank"] >= 1) & (together["rank"] <= lens.wiring.output_stack.n_heads)).all()
    weighted = (together["entropy"] * together["tokens"]).sum("series") / together["tokens"].sum()
    assert_close(together["rank"], np.exp(weighted), depth=100)
    with pytest.raises(InputError, match="batch_size"):
        entropic_rank(lens.run(series, 6), batch_size=0)


@pytest.mark.parametrize("name", ["timesfm-2.5", "chronos-2"])
def test_entropic_rank_is_that_of_the_projected_heads_of_all_tokens(name: str) -> None:
    """By the definition, from the states and rows of W_O, over the tokens of series of two lengths."""
    lens = lens_of(name)
    generator = np.random.default_rng(3)
    series = [generator.normal(size=size).cumsum() for size in (40, 100)]
    found = entropic_rank(lens.run(series, 6))
    stack = lens.wiring.output_stack
    kind = str(found.attrs["attention"])
    run = lens.run(as_series(series), 6)
    shown = run.encoded.shown(stack.name)
    np.testing.assert_array_equal(found["tokens"], shown.sum(1))
    assert len(set(found["tokens"].values.tolist())) == 2
    for layer in found["layer"].values:
        point = f"{stack.prefix}.{layer}.{kind}.hook_z"
        with torch.no_grad():
            _, acts = lens.run_with_cache(run.encoded, names_filter=[point])
        written = torch.einsum("bphd,hdm->bphm", acts[point], lens.weights.heads(int(layer), kind, stack.name).W_O)
        unit = torch.nn.functional.normalize(written.detach().double(), dim=-1)[shown]
        values = torch.linalg.svdvals(unit)
        share = values / values.sum(-1, keepdim=True)
        entropy = -(share * share.clamp(min=1e-300).log()).sum(-1)
        assert_close(found["rank"].sel(layer=layer), entropy.mean().exp(), depth=100, dtype=torch.float32)


def test_cka_of_known_representations() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 6, generator=generator, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    other = torch.randn(50, 9, generator=generator, dtype=torch.float64)
    found = linear_cka([x, 3 * x @ turn + 5, other, torch.ones(50, 2, dtype=torch.float64)])
    assert found[0, 1] == pytest.approx(1)
    assert 0 < found[0, 2] < 0.6
    assert np.isnan(found[0, 3])
    np.testing.assert_allclose(found[:3, :3], found[:3, :3].T)


@pytest.mark.parametrize("name", NAMES)
def test_similarities_of_a_model(name: str) -> None:
    lens = lens_of(name)
    run = lens.run(series_for(lens, "co2", "elnino", example=2), 6, **few_draws(lens))
    layers = layer_similarity(run)
    own = np.diag(layers["cka"])
    # Chronos-Bolt's decoder begins with the same token for every series, which has nothing to align
    assert name == "chronos-bolt" or np.isfinite(own).all()
    np.testing.assert_allclose(own[np.isfinite(own)], 1)
    np.testing.assert_allclose(np.diag(layers["update_cosine"]), 1)
    heads = head_similarity(run)["cosine"].values
    np.testing.assert_allclose(np.diagonal(heads, axis1=1, axis2=2), 1)
    assert (np.abs(heads) <= 1 + 1e-9).all()


# in Toto 1.0 and TimesFM 3 the tokens themselves depend on the padding; token models draw other samples
@pytest.mark.parametrize("name", [name for name in NAMES if name not in {"toto-1", "timesfm-3", "chronos", "t5"}])
def test_the_length_of_another_series_changes_no_statistic(name: str) -> None:
    generator = np.random.default_rng(3)
    short, long = generator.normal(size=9).cumsum(), generator.normal(size=60).cumsum()
    lens = lens_of(name)
    alone = entropic_rank(lens.run([short]))["entropy"].values[:, 0]
    beside = entropic_rank(lens.run([short, long]))["entropy"].values[:, 0]
    assert_close(beside, alone, depth=100, dtype=np.float32)


@pytest.mark.parametrize("name", ["moirai-2", "chronos-2"])
def test_variates_pass_in_groups_of_whole_items(name: str) -> None:
    items = np.random.default_rng(4).normal(size=(3, 2, 40)).cumsum(axis=-1)
    lens = lens_of(name)
    once, groups = (entropic_rank(lens.run(items), batch_size=size) for size in (3, 2))
    assert list(groups["series"].values) == list(once["series"].values)
    assert_close(groups["entropy"], once["entropy"], depth=100, dtype=np.float32)
