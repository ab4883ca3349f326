"""Templates of sentences: what a field says, and what is left out."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.viz.summary import labelled, summarize, summary


def result() -> xr.Dataset:
    """Four heads over three series, in ppm."""
    size = np.array([[0.5, 0.5], [0.0, -0.25]])
    coords = {"layer": [0, 1], "head": [0, 1], "series": ["a", "b", "c"]}
    values = size[..., None] + np.array([-0.1, 0.0, 0.1])
    ds = xr.Dataset({"rank": (("layer", "head", "series"), values)}, coords)
    return ds.assign_attrs(units="ppm", depth=12, way="zeroed")


@pytest.mark.parametrize(
    ("sentence", "text"),
    [
        ("{rank:highest}", "layer 0, head 0 and layer 0, head 1 (0.5)"),
        ("{rank:lowest signed}", "layer 1, head 1 (−0.25)"),
        ("{rank:count}", "2 of 4"),
        ("{rank:which}", "2 of 4 (layer 0, head 0 and layer 0, head 1)"),
        ("{rank:median percent}, {rank:max unit}", "25 %, 0.5 ppm"),
        (
            "{rank:ends signed unit}",
            "+0.5 ppm at layer 0, head 0 to −0.25 ppm at layer 1, head 1",
        ),
        ("{depth} of {depth:whole} {way} on {series}", "12 of 12 zeroed on a, b, c"),
    ],
)  # fmt: skip
def test_fields_name_what_statements_ask(sentence: str, text: str) -> None:
    """A field gives what its statement names."""
    assert summarize(result(), sentence) == [text]


def test_sentences_without_numbers_are_omitted() -> None:
    """A sentence without its numbers is left out."""
    ds = result()
    unknown = labelled(ds, np.full((2, 2), np.nan), "layer", "head")
    reported = summary("{missing:highest}", "{unknown:max}", "{none}", "{known}.")
    assert reported(ds) == []
    assert summarize(
        ds, "{x:max}", "{y}", "{z}.", x=unknown, y=None, z=lambda ds: 3
    ) == ["3."]


def test_effects_come_with_floor_and_statements() -> None:
    """An effect comes with its floor and its four statements."""
    ds = add_estimates(result(), "rank", floor=0.4, signed=True)
    largest, *statements = summarize(
        ds, "Largest{rank:basis}: {rank:largest}.", effect="rank", noun="heads", side=1
    )
    assert largest.startswith(
        "Largest (median and range over 3 series): layer 0, head 0 ("
    )
    assert "layer 1" not in largest
    for text, label in zip(
        statements, ("above rounding on all 3 series", "too few", "twins"), strict=True
    ):
        assert label in text
    silent = add_estimates(result(), "rank", floor=9.0, signed=True)
    assert summarize(silent, "{rank:largest percent}") == ["none of 1 % or more"]
    with pytest.raises(InputError, match="has no test of rank"):
        summarize(result(), effect="rank")
