"""Dictionaries find planted features; their measures equal closed forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import tsfm_lens
from tsfm_lens.core.errors import InputError
from tsfm_lens.models.embedding import embedding_point, embedding_stack
from tsfm_lens.studies import dictionaries
from tsfm_lens.testing import assert_close

DOCS = Path(__file__).parents[3] / "docs"
ALL_KINDS = 1 + 2 * 3
"""A feature's own direction, and three draws of both kinds."""


@pytest.fixture(scope="module")
def planted():
    return dictionaries.superposed_features(1)


def tokens_of(planted, folder, count=30):
    return dictionaries.stream_tokens(
        planted.lens, planted.series(count, seed=1), 0, folder
    )


def test_planted_features_are_found(planted, tmp_path):
    tokens = tokens_of(planted, tmp_path / "vectors")
    dictionary = dictionaries.fit_dictionary(
        *tokens.fitted, features=64, active=3, steps=1500
    )
    cosine = dictionaries.mean_max_cosine(planted.directions, dictionary.directions)
    assert cosine > 0.9


def test_measures_are_of_held_out_tokens(planted, tmp_path):
    tokens = tokens_of(planted, tmp_path / "vectors", count=10)
    (first, second), data = dictionaries.measure_dictionaries(
        tokens, features=32, active=3, steps=50, seeds=(0, 1)
    )
    inputs, targets = tokens.held_out
    for seed, dictionary in enumerate((first, second)):
        outputs = dictionary.outputs(dictionary.activities(inputs))
        share = dictionaries.explained_variance(targets, outputs)
        assert float(data["explained"].sel(seed=seed)) == share
    both_ways = [
        dictionaries.mean_max_cosine(first.directions, second.directions),
        dictionaries.mean_max_cosine(second.directions, first.directions),
    ]
    assert float(data["agreement"]) == pytest.approx(np.mean(both_ways))
    # three components cannot hold 40 features in 16 dimensions
    assert float(data["principal"]) < 0.5


def test_mlp_writes_the_planted_directions_alone(planted):
    """The stream after the MLP is a sum of planted directions, none negative."""
    series = planted.series(1, seed=2)
    _, record = planted.lens.run_with_cache(series, names_filter=["encoder_blocks.0.*"])
    stream = record["encoder_blocks.0.hook_resid_post"][0, :-1].double()
    before = record["encoder_blocks.0.hook_resid_pre"][0, :-1].double()
    activities = before[:, : len(planted.directions)]
    assert bool(((activities > 0).sum(1) == 3).all())
    written = activities @ planted.directions.double()
    assert_close(stream, written, depth=100, magnitude=1.0, dtype=torch.float32)


def test_transcoders_read_other_tokens_than_they_write(planted):
    tokens = dictionaries.mlp_tokens(planted.lens, planted.series(10, seed=3), 0)
    inputs, targets = tokens.fitted
    assert len(inputs) == len(targets) == 8 * 513
    assert len(tokens.held_out[0]) == 2 * 513
    assert not torch.equal(inputs, targets)


def test_principal_variance_equals_singular_values():
    values = torch.randn(200, 12, generator=torch.Generator().manual_seed(0)).double()
    values *= torch.arange(1, 13)
    centred = values - values.mean(0)
    squares = np.linalg.svd(centred.numpy(), compute_uv=False) ** 2
    share = dictionaries.principal_variance(values, values, 4)
    assert share == pytest.approx(squares[:4].sum() / squares.sum())


def test_mean_max_cosine_forgets_order_and_length():
    axes = torch.eye(6)
    assert dictionaries.mean_max_cosine(axes, 3 * axes.flip(0)) == 1
    # half of the axes are in the other set; the rest is orthogonal to it
    assert dictionaries.mean_max_cosine(axes, axes[:3]) == 0.5


def exact_dictionary(width, features):
    """A dictionary whose features are the first axes of the stream."""
    axes = torch.eye(width)[:features]
    return dictionaries.Dictionary(
        readers=axes,
        bias=torch.zeros(features),
        directions=axes,
        input_mean=torch.zeros(width),
        output_mean=torch.zeros(width),
        active=features,
    )


@pytest.mark.parametrize("name", ["bolt-nano", "chronos-nano", "chronos2-nano"])
def test_removal_equals_a_hook_that_removes(name):
    lens = tsfm_lens.load(name)
    run = lens.run(tsfm_lens.bundled("nile"), 4, holdout=True)
    point = embedding_point(embedding_stack(lens.wiring), 1)
    dictionary = exact_dictionary(lens.d_model, 5)
    removed = dictionaries.WithoutFeature(
        point, dictionary, 2, dictionary.directions[2]
    )
    changed = tsfm_lens.ablation.point_forecasts(
        run, [tsfm_lens.ablation.Variant("removed", (removed,))]
    )

    def remove(value, hook):
        value = value.clone()
        value[..., 2] -= value[..., 2].clamp(min=0)
        return value

    with lens.hooks([(point, remove)]):
        expected = run.read(lens.forward(run.encoded)).detach().numpy()
    assert_close(changed[0], expected, depth=300, dtype=torch.float32)
    assert not np.allclose(changed[0], run.point)


def test_removals_compare_each_feature_with_its_draws(planted, tmp_path):
    lens = tsfm_lens.load("bolt-nano")
    windows = tsfm_lens.bundled("co2", "nile")
    run = lens.run(windows, 8, holdout=True)
    tokens = dictionaries.stream_tokens(
        lens, windows.windows(3, 8), 1, tmp_path / "vectors"
    )
    dictionary = exact_dictionary(lens.d_model, 12)
    removals = dictionaries.measure_removals(
        run, tokens, dictionary, layer=1, count=4, draws=3
    )
    assert removals["size"].shape == (ALL_KINDS, 4)
    assert bool((removals["size"] > 0).all())
    summary = dictionaries.removal_summary(removals)
    assert summary["chance"] == 1 / 4
    assert 0 <= summary["beyond"] <= 1


def test_wrong_arguments_are_refused(planted, tmp_path):
    vectors = torch.arange(12.0).reshape(4, 3)
    for wrong, words in (
        (vectors[0], "shape"),
        (vectors * np.nan, "finite"),
        (torch.ones(4, 3), "all the same"),
        (vectors[:0], "all the same"),
    ):
        with pytest.raises(InputError, match=words):
            dictionaries.fit_dictionary(wrong, features=8, active=2, steps=1)
    with pytest.raises(InputError, match="steps is 0"):
        dictionaries.fit_dictionary(vectors, features=8, active=2, steps=0)
    double = vectors.double().numpy()
    assert dictionaries.fit_dictionary(double, features=8, active=2, steps=1).active
    with pytest.raises(InputError, match="active=9"):
        dictionaries.fit_dictionary(vectors, features=8, active=9)
    with pytest.raises(InputError, match="same tokens"):
        dictionaries.fit_dictionary(vectors, vectors[:2], features=8, active=2)
    with pytest.raises(InputError, match="held out"):
        tokens_of(planted, tmp_path / "few", count=3)
    run = tsfm_lens.load("bolt-nano").run(tsfm_lens.bundled("nile"), 4)
    tokens = dictionaries.Tokens(vectors, vectors, torch.zeros(4, dtype=torch.bool))
    with pytest.raises(InputError, match="holdout=True"):
        dictionaries.measure_removals(run, tokens, exact_dictionary(3, 2), layer=1)


def test_page_has_the_numbers_of_its_tables():
    """Each row of the page's tables is a row of the CSV files, rounded."""
    page = (DOCS / "dictionaries.md").read_text()
    lines = [line.replace("`", "") for line in page.splitlines()]
    measured = pd.read_csv(DOCS / "dictionaries.csv", index_col="of")
    streams = measured[measured.index.str.endswith("stream")]
    removed = ["worse", "worse_isotropic", "worse_covariance"]
    for name, row in streams.iterrows():
        cells = [name.split(",")[0], *(f"{row[share]:.0%}" for share in removed)]
        cells += [f"{row[size]:.2f}" for size in ("size_isotropic", "size_covariance")]
        assert as_row([*cells, f"{row['beyond']:.0%}"]) in lines
    explained = ["explained", "principal", "twin explained", "twin principal"]
    for name, row in measured.iterrows():
        cells = [name.replace(", stream", ""), *(f"{row[x]:.0%}" for x in explained)]
        cells += [f"{row[x]:.2f}" for x in ("agreement", "agreement_drawn")]
        assert as_row(cells) in lines
    planted = pd.read_csv(DOCS / "dictionaries.planted.csv", index_col="of")
    for name, row in planted.iterrows():
        found = [f"{row[f'found {seed}']:.2f}" for seed in range(3)]
        assert as_row([name.capitalize(), *found]) in lines


def as_row(cells):
    """A row of a table, with a space before the signs of per cent."""
    return f"| {' | '.join(cells)} |".replace("%", " %")
