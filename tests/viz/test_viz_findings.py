"""What does not stand out of the noise is drawn as such, in every kind of mark, and
nothing else is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
import xarray as xr

from tsfm_lens import viz
from tsfm_lens.viz.findings import NOT_SIGNIFICANT, EffectEstimate
from viz.marks import heatmaps, named

FLOOR = 0.05


def with_findings(
    ds: xr.Dataset,
    name: str,
    dims: Sequence[str],
    stands: np.ndarray,
    half_width: float = 0.02,
) -> xr.Dataset:
    """With planted findings: the median over series, a range of this reach, and what is
    significant.
    """
    size = ds[name].median("series").transpose(*dims).values
    parts = {
        "size": size,
        "low": size - half_width,
        "high": size + half_width,
        "significant": stands,
        "acts": 1 + 0 * stands,
    }
    ds = ds.assign(
        {f"{name}_{part}": (tuple(dims), values) for part, values in parts.items()}
    )
    return ds.assign({f"{name}_floor": ("series", np.full(ds.sizes["series"], FLOOR))})


def subtitle(fig: go.Figure) -> str:
    return str(fig.layout.meta["subtitle"])


@pytest.fixture
def noisy(ablation: xr.Dataset) -> xr.Dataset:
    """Every third component stands out."""
    return with_findings(
        ablation,
        "spearman_distance",
        ["component"],
        np.arange(ablation.sizes["component"]) % 3 == 0,
    )


def test_noisy_cells_have_parenthesised_numbers(noisy: xr.Dataset) -> None:
    """Numbers of cells within the noise stand in parentheses."""
    fig = viz.ablation_heatmap(noisy)
    assert not named(fig, NOT_SIGNIFICANT)
    (cells,) = heatmaps(fig)
    shape = np.shape(cells.z)
    faint = np.array([text.startswith("(") for row in cells.text for text in row])
    # components of a layer stand in the order of the result
    stands = noisy["spearman_distance_significant"].values
    np.testing.assert_array_equal(faint.reshape(shape), ~stands.reshape(shape))
    assert f"in parentheses: {NOT_SIGNIFICANT} (noise floor {FLOOR})" in subtitle(fig)


def test_clear_or_untested_values_stay_plain(
    ablation: xr.Dataset,
) -> None:
    """Nothing is veiled where all stands out or nothing is known."""
    every = with_findings(
        ablation,
        "spearman_distance",
        ["component"],
        np.ones(ablation.sizes["component"], dtype=bool),
    )
    unknown = ablation.drop_vars(
        [name for name in ablation if str(name).startswith("spearman_distance_")]
    )
    for ds, floor in ((unknown, False), (every, True)):
        fig = viz.ablation_heatmap(ds)
        assert not named(fig, NOT_SIGNIFICANT)
        assert NOT_SIGNIFICANT not in subtitle(fig)
        assert (f"noise floor {FLOOR}" in subtitle(fig)) == floor


def test_contributions_within_the_noise_are_hollow(
    attribution: xr.Dataset,
) -> None:
    """Points of an attribution within the noise are hollow."""
    mean = (
        attribution["mean_absolute"]
        .isel(series=0)
        .transpose("decomposition", "component")
        .values
    )
    share = mean / mean.sum(axis=1, keepdims=True)
    # half of the components are significant in the first decomposition, a tenth in the
    # second
    floor = np.array(
        [np.quantile(row, level) for row, level in zip(share, (0.5, 0.9), strict=True)]
    )
    stands = share > floor[:, None]
    axes = ("decomposition", "component")
    ds = attribution.assign(
        size_share_floor=("decomposition", floor), size_share_significant=(axes, stands)
    )
    assert stands.any()
    assert not stands.all()
    for which, good in enumerate(stands):
        fig = viz.attribution_bars(
            ds, decomposition=ds["decomposition"].values[which], top=5
        )
        known = dict(zip(ds["component"].values, good, strict=True))
        drawn = {
            name: symbol.endswith("open")
            for dots in fig.data
            if dots.type == "scatter"
            for name, symbol in zip(dots.y, dots.marker.symbol, strict=True)
        }
        assert len(drawn) == 6
        assert drawn == {name: not known.get(name, True) for name in drawn}


def test_range_of_contributions_is_that_of_shares(attribution: xr.Dataset) -> None:
    """The line of a component is the range of its share over series, on the scale of
    the series that is drawn."""
    share = attribution["size_share"].isel(series=0)
    ds = attribution.assign(size_share_low=0.5 * share, size_share_high=2 * share)
    fig = viz.attribution_bars(ds, top=3)
    for dots in fig.data[:2]:
        for name, size, less, more in zip(
            dots.y, dots.x, dots.error_x.arrayminus, dots.error_x.array, strict=True
        ):
            if "others" in name:
                assert (less, more) == (0, 0)
                continue
            assert (less, more) == pytest.approx((0.5 * size, size))
    assert "range of its share over 2 series" in subtitle(fig)


def test_parts_are_marked_as_the_whole() -> None:
    """A part without a significant member is marked where the whole has one."""
    sizes = np.arange(4.0)
    significant = np.array([True, False, False, False])
    whole = EffectEstimate(sizes, sizes, sizes, np.ones(4, dtype=int), significant)
    assert whole.at([1, 2]).pale.tolist() == [True, True]
    assert whole.at([0, 1]).at([1]).pale.tolist() == [True]
    assert whole.at(np.s_[2:]).with_another(1.0).pale.tolist() == [True, True, False]
    # nothing is significant: nothing is marked, also beside a further member
    none = replace(whole, significant=np.zeros(4, dtype=bool))
    assert not none.pale.any()
    assert not none.at([1, 2]).with_another(1.0).pale.any()
