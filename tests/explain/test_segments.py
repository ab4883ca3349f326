"""Segments: each step of each series in exactly one, ends where tokens end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refusals import expect_error
from tsfm_lens import explain
from tsfm_lens.core.errors import InputError, UnknownNameError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.data.batch import item_rows
from tsfm_lens.explain.segments import (
    WAYS,
    check_segments,
    refined_segments,
    target_row,
    token_edges,
)
from tsfm_lens.models import Run
from tsfm_lens.testing import assert_close


def item(
    length: int, past: int, known: int, horizon: int, others: int = 0, season: int = 1
) -> SeriesBatch:
    """One item with so many covariates and other targets."""
    names = [
        "y",
        *(f"y{i}" for i in range(others)),
        *(f"a{i}" for i in range(past)),
        *(f"k{i}" for i in range(known)),
    ]
    roles = ["target"] * (1 + others) + ["past"] * past + ["known"] * known
    return SeriesBatch(
        values=tuple(np.arange(length, dtype=float) for _ in names),
        ids=tuple(names),
        groups=("item",) * len(names),
        variates=tuple(names),
        roles=tuple(roles),
        futures=tuple(np.zeros(horizon) if role == "known" else None for role in roles),
        seasonality=season,
    )


def list_steps(parts: tuple[explain.Segment, ...], row: int) -> list[int]:
    return sorted(
        step
        for part in parts
        if part.row == row
        for step in range(part.start, part.stop)
    )


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(2, 90),
    counts=st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 1)),
    horizon=st.integers(1, 30),
    parts=st.none() | st.integers(1, 20),
    season=st.integers(1, 40),
    others=st.sampled_from(WAYS),
)
def test_each_step_is_in_one_segment(
    length: int,
    counts: tuple[int, int, int],
    horizon: int,
    parts: int | None,
    season: int,
    others: str,
) -> None:
    past, known, variates = counts
    batch = item(length, past, known, horizon, variates, season)
    found = explain.segments(batch, horizon=horizon, parts=parts, others=others)
    for row, role in enumerate(batch.roles):
        assert list_steps(found, row) == list(
            range(-length, horizon if role == "known" else 0)
        )
    assert len({part.name for part in found}) == len(found)
    check_segments(found, batch, horizon)
    if parts is not None:
        assert sum(part.kind == "past" for part in found) <= parts
    kinds = {
        "target": {"past", "variate"},
        "past": {"past covariate"},
        "known": {"known covariate"},
    }
    assert all(part.kind in kinds[batch.roles[part.row]] for part in found)


def test_segments_end_where_tokens_do(bolt_run: Run) -> None:
    edges = token_edges(bolt_run)
    parts = explain.segments(bolt_run, parts=5, season=1)
    assert len(edges) > 3
    assert {part.start for part in parts} <= set(edges)


def test_a_long_stretch_is_whole_seasons() -> None:
    parts = explain.segments(item(500, 0, 0, 1, season=24), parts=12)
    assert {len(part) for part in parts[1:]} == {48}
    assert len(parts) == 11


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"item": 7}, InputError, "item 7 of a batch of 2"),
        ({"item": "series-9"}, UnknownNameError, "series-1"),
        ({"parts": 0}, InputError, "parts=0"),
        ({"season": 2.5}, InputError, "season=2.5"),
        ({"others": "apart"}, UnknownNameError, "past and future"),
        ({"target": 3}, InputError, "target 3 of an item with 1"),
        ({"target": "tarjet"}, UnknownNameError, "target"),
        ({"horizon": 17}, InputError, "ends 16 steps after"),
    ],
)
def test_wrong_arguments_are_refused(
    covariate_run: Run, options: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        explain.segments(covariate_run, **{"item": 0, **options})


def test_wrong_segments_are_refused(items: SeriesBatch) -> None:
    """Segments that overlap, share a name or lie outside a series are refused."""
    one = items.select(item_rows(items, 0))
    part = explain.Segment("a", 0, -4, 0, "past")
    wrong = {
        "overlap": [part, explain.Segment("b", 0, -5, -3, "past")],
        "called": [part, part],
        "shown from -96": [explain.Segment("a", 0, -97, 0, "past")],
        "shown from": [explain.Segment("a", 0, -4, 1, "past")],
        "series 3": [explain.Segment("a", 3, -4, 0, "past")],
        "no segments": [],
    }
    for text, parts in wrong.items():
        expect_error(
            text,
            explain.masked,
            one,
            parts,
            np.ones((1, len(parts)), bool),
            horizon=16,
        )


def test_ids_go_before_names_of_variates() -> None:
    """A name means the series of this id, as in scenarios and batches."""
    named = replace(item(20, 0, 0, 4, others=1), variates=("y0", "y"))
    assert [target_row(named, name) for name in ("y", "y0")] == [0, 1]
    apart = replace(named, variates=("a", "b"))
    assert [target_row(apart, name) for name in ("b", "y")] == [1, 0]


def test_cuts_are_taken_as_given() -> None:
    """Cuts may be steps or dates, in any order."""
    batch = item(48, 1, 0, 1)
    found = explain.segments(batch, cuts=[-6, -24])
    own = [(part.start, part.stop) for part in found if part.row == 0]
    assert own == [(-48, -24), (-24, -6), (-6, 0)]


@pytest.mark.parametrize("cuts", [[0], [-48], [-6, -6], [-60]])
def test_cuts_outside_the_past_are_refused(cuts: list[int]) -> None:
    expect_error(
        "different steps from -47 to -1",
        explain.segments,
        item(48, 0, 0, 1),
        cuts=cuts,
    )


@pytest.mark.parametrize("place", [-400, -200, -30])
def test_cuts_are_close_where_effects_are(bolt_run: Run, place: int) -> None:
    """Stretches around a step that alone matters are the shortest, whole seasons."""
    run = bolt_run.lens.run(np.sin(np.arange(480) * np.pi / 6), 6, seasonality=12)

    measured = []

    def effects(
        parts: tuple[explain.Segment, ...], positions: Sequence[int]
    ) -> np.ndarray:
        chosen = [parts[position] for position in positions]
        measured.extend(chosen)
        return np.array([float(part.start <= place < part.stop) for part in chosen])

    found = refined_segments(run, effects)
    # no stretch is measured twice
    assert len(set(measured)) == len(measured)
    bounds = [*(part.start for part in found), 0]
    lengths = {(start, stop): stop - start for start, stop in pairwise(bounds)}
    around = next(length for (a, b), length in lengths.items() if a <= place < b)
    assert around == 12 == min(lengths.values())
    assert all(cut % 12 == 0 for cut in bounds)


def test_adaptive_stretches_are_of_the_model(bolt_run: Run) -> None:
    """They cover the past once, and their values still sum to the whole change."""
    found = explain.input_attribution(bolt_run, parts="adaptive", method="shapley")
    whole = found["forecast"] - found["reference_forecast"]
    assert_close(found["attribution"].sum("segment").values, whole.values, depth=2**12)
    even = explain.segments(bolt_run)
    assert found.sizes["segment"] <= len(even)
