"""Lines of thought in maps drawn by hand, where every line, its fate and its weight are
known.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

from refusals import expect_error
from tsfm_lens.core.axes import depth_coords
from tsfm_lens.probes.lines_of_thought import trace_lines

BINS = 101
STEPS = 12
VALUES = np.arange(BINS, dtype=float)
SHARP = {"smooth": 0.0}

Ridge = tuple[Callable[[int], float], float, range]


def level(value: float, weight: float = 1.0, steps: range = range(STEPS)) -> Ridge:
    return (lambda _step: value, weight, steps)


def drawn(*layers: list[Ridge], context: list[float] | None = None) -> xr.Dataset:
    """Logit maps with ridges of (place by step, weight, steps), each one bin wide."""
    probability = np.zeros((len(layers), 1, STEPS, BINS))
    for layer, ridges in enumerate(layers):
        for position, weight, steps in ridges:
            for step in steps:
                probability[layer, 0, step, round(position(step))] += weight
    past = np.array([50.0, 52.0, 51.0, 50.0] if context is None else context)
    return xr.Dataset(
        {
            "probability": (("layer", "series", "step", "bin"), probability),
            "value": (("series", "bin"), VALUES[None]),
            "context": (("series", "time"), past[None]),
        },
        coords={
            **depth_coords("layer", len(layers) - 1),
            "series": ["one"],
            "step": range(STEPS),
        },
        attrs={"kind": "logit_lens", "model": "toy"},
    )


def table(found: xr.Dataset, name: str) -> list[object]:
    return found[name].values.tolist()


def test_one_ridge_continues_the_other_ends() -> None:
    """Near the context in all layers; far away in the first two only."""
    far = level(90, 0.3)
    found = trace_lines(
        drawn([level(50, 0.7), far], [level(51, 0.7), far], [level(50)]), **SHARP
    )
    assert float(found["largest_step"][0]) == 2
    lines = pd.DataFrame(
        {
            "line_layer": [-1, -1, 0, 0, 1],
            "mean_value": [50.0, 90.0, 51.0, 90.0, 50.0],
            "continuous": [True, False, True, False, True],
            "survives": [True, False, True, False, True],
            "spurious": [False, True, False, True, False],
            "thread": [0, 1, 0, 1, 0],
            "birth": -1,
            "death": [1, 0, 1, 0, 1],
            "mass": [0.7, 0.3, 0.7, 0.3, 1.0],
        }
    )
    ours = found[list(lines)].to_dataframe()[list(lines)].reset_index(drop=True)
    pd.testing.assert_frame_equal(ours, lines, check_dtype=False)
    assert table(found, "count") == [[2], [2], [1]]
    assert table(found, "spurious_count") == [[1], [1], [0]]
    assert_allclose(found["spurious_mass"], [[0.3], [0.3], [0.0]])
    assert_array_equal(found["path"].isel(line=1), np.full(STEPS, 90.0))
    assert_array_equal(found["path_mass"].isel(line=1), np.full(STEPS, 0.3))


def test_nearness_depends_on_the_largest_step() -> None:
    """Both lines die; the last value is 50, the largest step 2, half a mode's width
    0.5.
    """
    found = trace_lines(drawn([level(50), level(53)], [level(60)]), **SHARP)
    assert table(found, "survives") == [False, False, True]
    assert table(found, "continuous") == [True, False, False]
    assert table(found, "spurious_count") == [[1], [0]]
    wide = trace_lines(drawn([level(50), level(53)], [level(60)]), jump=2.0, **SHARP)
    assert table(wide, "continuous") == [True, True, False]
    assert table(wide, "spurious_count") == [[0], [0]]


def test_branches_of_continuous_lines_are_continuous() -> None:
    stem = level(50)
    branch = (lambda step: 52 + 2 * (step - 4), 0.5, range(4, STEPS))
    late = level(80, 0.5, range(5, STEPS))
    found = trace_lines(drawn([stem, branch, late], [stem]), **SHARP)
    assert table(found, "start")[:3] == [0, 4, 5]
    assert table(found, "continuous")[:3] == [True, True, False]
    # what begins beside a line that does not go on from the context does not either
    off = trace_lines(
        drawn([level(80), level(82, 0.5, range(5, STEPS))], [stem]), **SHARP
    )
    assert table(off, "continuous")[:2] == [False, False]
    assert int(off["spurious_count"][0, 0]) == 2


def nearest_first(
    before: list[float], after: list[float], max_distance: float
) -> set[tuple[float, float]]:
    """The two nearest modes of two steps are a pair, and so on among the rest, as long
    as they are within reach.
    """
    pairs = set()
    while before and after:
        one, other = min(
            ((a, b) for a in before for b in after),
            key=lambda pair: abs(pair[0] - pair[1]),
        )
        if abs(one - other) > max_distance:
            break
        pairs.add((one, other))
        before = [a for a in before if a != one]
        after = [b for b in after if b != other]
    return pairs


def joined(
    before: list[float], after: list[float], largest: float
) -> set[tuple[float, float]]:
    """The modes of two successive steps that lines join."""
    ridges = [level(value, 1.0, range(1)) for value in before] + [
        level(value, 1.0, range(1, 2)) for value in after
    ]
    found = trace_lines(
        drawn(ridges, context=[50.0, 50.0 + largest]), min_steps=1, **SHARP
    )
    paths = found["path"].values[:, :2]
    return {(float(a), float(b)) for a, b in paths if np.isfinite([a, b]).all()}


@pytest.mark.parametrize("seed", range(20))
def test_all_modes_are_joined_nearest_first(seed: int) -> None:
    """Against pairs drawn one by one; distances that are equal would leave the choice
    open.
    """
    rng = np.random.default_rng(seed)
    while True:
        before, after = (
            np.sort(
                rng.choice(np.arange(2.0, 99, 2), rng.integers(1, 6), replace=False)
            )
            for _ in "ab"
        )
        after = after + 1
        distances = np.abs(before[:, None] - after).ravel()
        if len(np.unique(distances)) == len(distances):
            break
    largest = float(rng.integers(4, 40))
    expected = nearest_first(before.tolist(), after.tolist(), largest + 0.5)
    assert joined(before.tolist(), after.tolist(), largest) == expected


def test_threads_join_the_nearest_lines_first() -> None:
    """Threads join the nearest lines of two layers first."""
    found = trace_lines(
        drawn([level(50), level(70)], [level(69), level(92)], context=[50.0, 74.0]),
        **SHARP,
    )
    assert table(found, "mean_value") == [50, 70, 69, 92]
    assert table(found, "thread") == [0, 1, 1, 2]


def test_gaps_and_short_lines() -> None:
    steps = [step for step in range(STEPS) if step != 5]
    broken = (lambda _step: 50.0, 1.0, steps)
    flicker = level(90, 0.5, range(3, 4))
    maps = drawn([broken, flicker])
    one = trace_lines(maps, **SHARP)
    assert table(one, "length") == [STEPS - 1]
    assert table(one, "stop") == [STEPS]
    assert np.isnan(one["path"][0, 5])
    assert_allclose(one["mass"], (STEPS - 1) / STEPS)
    assert table(trace_lines(maps, gap=0, **SHARP), "length") == [5, 6]
    assert table(trace_lines(maps, min_steps=1, **SHARP), "length") == [STEPS - 1, 1]


def test_modes_weigh_their_basins() -> None:
    """Modes weigh what lies in their basins, and low ones do not count."""
    hill = np.exp(-0.5 * ((VALUES - 50) / 4) ** 2) + 0.5 * np.exp(
        -0.5 * ((VALUES - 75) / 4) ** 2
    )
    maps = drawn([level(50)])
    maps["probability"][0, 0] = hill / hill.sum()
    found = trace_lines(maps)
    valley = 50 + int(np.argmin(hill[50:75]))
    assert table(found, "mean_value") == [50, 75]
    assert_allclose(
        found["mass"],
        [hill[:valley].sum() / hill.sum(), hill[valley:].sum() / hill.sum()],
    )
    assert table(trace_lines(maps, height=0.6), "mean_value") == [50]
    assert table(trace_lines(maps, prominence=0.6), "mean_value") == [50]


def test_only_modes_over_values_are_followed() -> None:
    maps = drawn([level(50)])
    for wrong in (
        {"height": 0.0},
        {"smooth": -1.0},
        {"jump": 0.0},
        {"gap": -1},
        {"min_steps": 0},
        {"overlap": 2.0},
    ):
        expect_error(next(iter(wrong)), trace_lines, maps, **wrong)  # type: ignore[arg-type]
