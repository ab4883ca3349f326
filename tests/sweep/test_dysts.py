"""Chaotic trajectories: they obey their equations, repeat, and are read back from
stored files.
"""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from refusals import expect_error
from tsfm_lens.core.errors import install_command
from tsfm_lens.sweep import EvaluationSet, dysts_sets, dysts_systems

pytest.importorskip("dysts")

FAST = {"horizon": 20, "points": 300, "periods": 3}


def full_path(found: EvaluationSet, item: str) -> np.ndarray:
    """(coordinate, time) of one item: its last context and label."""
    last = [w for w in found.windows if w.item == item][-1]
    return np.concatenate([last.context, last.label], axis=1)


@pytest.mark.parametrize("integrator", ["LSODA", "DOP853"])
def test_lorenz_obeys_its_equations(integrator: str) -> None:
    from dysts.flows import Lorenz

    points = 1500
    periods = 2.0
    (found,) = dysts_sets(
        "Lorenz",
        20,
        points=points,
        periods=periods,
        instances=2,
        integrator=integrator,
        multivariate=True,
    )
    system = Lorenz()
    sigma, rho, beta = (system.params[name] for name in ("sigma", "rho", "beta"))
    assert (sigma, rho, beta) == (10, 28, 2.667)
    step = system.period * periods / (points - 1)
    for item in ("ic0", "ic1"):
        x, y, z = path = full_path(found, item)
        assert path.shape == (3, points)
        # central differences of fourth order
        slope = (path[:, :-4] - 8 * path[:, 1:-3] + 8 * path[:, 3:-1] - path[:, 4:]) / (
            12 * step
        )
        expected = np.stack([sigma * (y - x), x * (rho - z) - y, x * y - beta * z])[
            :, 2:-2
        ]
        assert np.abs(slope - expected).max() < 1e-3 * np.abs(expected).max()
        assert path.std(axis=1).min() > 1
    assert_allclose(full_path(found, "ic0")[:, 0], system.ic)
    assert not np.allclose(full_path(found, "ic1")[:, 0], system.ic)


def test_trajectories_repeat_without_the_global_generator() -> None:
    """Trajectories repeat, and the global random generator is left alone."""
    np.random.seed(7)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    (first,) = dysts_sets("Rossler", instances=3, seed=1, **FAST)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    (again,) = dysts_sets("Rossler", instances=3, seed=1, **FAST)
    (other,) = dysts_sets("Rossler", instances=3, seed=2, **FAST)
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    # the published initial condition has no seed
    assert_array_equal(full_path(first, "ic0.1"), full_path(other, "ic0.1"))
    assert not np.array_equal(full_path(first, "ic1.1"), full_path(other, "ic1.1"))
    assert not np.array_equal(full_path(first, "ic1.1"), full_path(first, "ic2.1"))


def test_systems_are_chosen_by_name() -> None:
    names = dysts_systems()
    assert len(names) == 129
    assert "MackeyGlass" not in names
    found = dysts_sets(("Lorenz8*", "Aizawa", "Lorenz84"), **FAST)
    assert [item.name for item in found] == ["dysts/Aizawa", "dysts/Lorenz84"]
    expect_error(r"no dysts system 'Lorentz'\. Closest: Lorenz", dysts_sets, "Lorentz")
    expect_error("Closest: DOP853", dysts_sets, "Lorenz", integrator="DOP85")
    expect_error(
        r"'ic0\.0' has 30 steps",
        dysts_sets,
        "Lorenz",
        **{**FAST, "points": 30, "horizon": 30},
    )


def test_missing_dysts_is_named_with_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without dysts the message says how to install it."""
    monkeypatch.setitem(sys.modules, "dysts.systems", None)
    expect_error(re.escape(install_command("dysts")), dysts_sets, "Lorenz")
