"""Figures and readings of ranks show and tell planted numbers."""

from __future__ import annotations

import pytest
import xarray as xr

import planted
from tsfm_lens.core.registry import find
from tsfm_lens.viz.stream_ranks import (
    read_bound,
    read_embedding_ranks,
    read_flow,
)
from tsfm_lens.viz.weights import read_weight_ranks

KINDS = ("weight_ranks", "row_angles", "embedding_ranks", "flow_of_ranks")


def test_weights_without_known_ranks_stay_empty() -> None:
    """Weights whose ranks cannot be told are left empty."""
    ds = planted.weight_ranks()
    assert read_weight_ranks(ds, 0.1) == [
        (
            "At ε = 0.1 the median matrix uses this share of its directions: W_Q (50 %)"
            " and W_in (100 %)."
        ),
        "Smallest share: encoder.0.self_attn.W_Q (25 %).",
    ]
    assert read_weight_ranks(ds, 0.01) == [
        "At ε = 0.01 rounding of the weights hides every rank."
    ]


def test_families_differ_only_beyond_intervals() -> None:
    """Families are called different only where their intervals are."""
    ds = planted.embedding_ranks()
    first, second = read_embedding_ranks(ds, 0.1)
    assert (
        first
        == "Directions used by embedded tokens at ε = 0.1: own series (2), white noise"
        " (3) and zero (1); possible are at most 3."
    )
    assert "white noise (2.7 to 3.5)" in second


def test_rank_flow_is_described_by_size() -> None:
    ds = planted.flow_of_ranks()
    text = read_flow(ds, 0.1)
    assert text[:2] == [
        (
            "At ε = 0.1 the stream uses, of 4 directions, 1 at the embedding to 4 at"
            " layer 1."
        ),
        "W_Q uses, of 3 directions, 2 at layer 0 to 3 at layer 1.",
    ]
    assert ": layer 1 (+3, " in text[2]
    assert "too few" in text[4]
    (silent,) = read_bound(ds)
    assert "requires 874 or more layers of 2 heads (here 2)" in silent
    assert "query–key products reach 3, value–output products 5)." in silent
    loose, tight = (
        ds.assign(bound=xr.full_like(ds["bound"], value)) for value in (2.0, 0.7)
    )
    assert read_bound(loose) == [
        "The bound of theorem 4 applies to 2 of 2 layers and is exceeded 0 times (it"
        " ignores norms and MLPs)."
    ]
    # 1 of the stream after layer 0 and 4 of that after layer 1
    assert "is exceeded 5 times" in read_bound(tight)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_markup_in_names_is_shown_literally(kind: str) -> None:
    """Names with markup are shown letter by letter."""
    name = "<b>x</b>%{x}"
    ds = getattr(planted, kind)().assign_attrs(model=name)
    if "series" in ds.coords:
        ds = ds.assign_coords(series=[name, "b", "c"])
    if "family" in ds.coords:
        ds = ds.assign_coords(family=[name, "white noise", "zero"])
    for plate in find(kind).draw_panels(ds):
        assert "<b>x" not in plate.figure.to_json().replace("\\u003c", "<")
