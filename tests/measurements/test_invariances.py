"""What a page says does not depend on the units, the order or the repetition of series,
on every architecture.
"""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

from tiny_lenses import OURS, archetypes, having, lens_of
from tsfm_lens.models import Run
from tsfm_lens.probes import ablation_effects
from tsfm_lens.viz.zero_ablation import read_ablation

NAMES = having("numeric_series")
STATEMENTS = ("acts", "p", "significant")
SIZES = ("size", "low", "high")
EFFECTS = ("mean_shift", "mase_change", "spearman_distance")
# all series pass through the model in float32, several hundred roundings each
NEAR = 1e-3


def series() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    time = np.arange(64)
    return [
        50 + 10 * np.sin(2 * np.pi * time / 12 + i) + rng.normal(size=64)
        for i in range(5)
    ]


def effects(name: str, rows: list[np.ndarray]) -> tuple[Run, xr.Dataset]:
    lens = lens_of(name)
    run = lens.run(rows, min(4, lens.adapter.longest_pass), holdout=True)
    return run, ablation_effects(run)


@pytest.mark.parametrize("name", archetypes(NAMES))
def test_statements_ignore_units_order_and_copies(name: str) -> None:
    """Statements do not depend on units, order or copies of the series."""
    rows = series()
    run, plain = effects(name, rows)
    for factor in (1e-7, 1e7):
        other_run, other = effects(name, [*rows[:2], rows[2] * factor, *rows[3:]])
        separate = np.abs(other_run.point[2] / factor - run.point[2]).max() / np.ptp(
            rows[2]
        )
        # the scaling of some models has an epsilon, so that they forecast tiny series
        # otherwise
        if factor > 1 and name in OURS:
            assert separate < NEAR
        if separate < NEAR:
            assert_same(plain, other)
    assert_same(plain, effects(name, rows[::-1])[1])
    assert_same(plain, effects(name, [*rows, rows[1], rows[1]])[1], counts=False)


def assert_same(one: xr.Dataset, other: xr.Dataset, *, counts: bool = True) -> None:
    for effect in EFFECTS:
        for part in SIZES:
            assert_allclose(
                other[f"{effect}_{part}"], one[f"{effect}_{part}"], rtol=NEAR, atol=NEAR
            )
        for part in STATEMENTS if counts else STATEMENTS[1:]:
            assert_array_equal(other[f"{effect}_{part}"], one[f"{effect}_{part}"])
    if counts:
        # the sentences before these tell sizes, which rounding moves
        assert (
            read_ablation(one, "spearman_distance")[-4:]
            == read_ablation(other, "spearman_distance")[-4:]
        )
