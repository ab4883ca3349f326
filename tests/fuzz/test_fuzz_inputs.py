"""Any input to any model: the library's own answer, bit for bit, or a clear error;
nothing else.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from library_forecasts import NATIVE, answer, assert_is, count_draws
from tiny_lenses import archetypes, lens_of
from tsfm_lens.core.errors import InputError, LensError
from tsfm_lens.data import as_series
from tsfm_lens.models import Lens
from tsfm_lens.testing import assert_close

ARCHITECTURES = archetypes(sorted(NATIVE))
NAN = float("nan")
BY_ITEM = ("moirai-1.1", "moirai-2", "timesfm-3", "timestral", "toto-1", "toto-2")

# what may be said of series that are fine in themselves, and of no others
REFUSALS = {
    "horizon": "horizon",
    "groups": "groups differ in their number of variates",
    "ids": "a series is its token ids",
    "numbers": "forecasts no number",
    "few": "Fracast takes 8 or more",
}


@dataclass(frozen=True)
class Given:
    """Data, steps (a pair: so many passes, and steps more), and whether numbers become
    ids for a language model.
    """

    data: Any
    horizon: Any = None
    ids: bool = True


# --- strategies
# --------------------------------------------------------------------------------------

# around patches (4, 8, 16), contexts (64, 512), and whole batches of patches
EDGES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 129, 513)
SHAPES = (
    "noise",
    "constant",
    "zero",
    "ramp",
    "alternating",
    "spike",
    "step",
    "whole",
    "positive",
)
GAPS = (
    "none",
    "none",
    "none",
    "some",
    "most",
    "first",
    "last",
    "but one",
    "all",
    "every other",
)
DTYPES = tuple(
    "float64 float64 float64 float32 float32 float16 int64 int32 int8 uint16 bool"
    " object str".split()
)
KINDS = (
    "list",
    "one",
    "rows",
    "multivariate",
    "tensor",
    "dict",
    "unequal",
    "lists",
    "pandas",
    "masked",
)


def values(draw: Any, shape: tuple[int, ...]) -> np.ndarray:
    """An array of one of the shapes, scales, gaps and types."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    scale = 10.0 ** draw(
        st.sampled_from([0, 0, 0, 1, -1, 3, -5, -12, -30, 9, 15, 17, 18, 19, 40, 300])
    )
    steps = np.arange(shape[-1])
    made = {
        "noise": lambda: rng.normal(size=shape).clip(-1, 1),
        "constant": lambda: np.ones(shape),
        "zero": lambda: np.zeros(shape),
        "ramp": lambda: np.broadcast_to(steps / max(1, steps[-1:].sum()), shape),
        "alternating": lambda: np.broadcast_to(1.0 - 2.0 * (steps % 2), shape),
        "spike": lambda: np.broadcast_to(1.0 * (steps == len(steps) - 1), shape),
        "step": lambda: np.broadcast_to(1e-9 + (steps > len(steps) // 2), shape),
        "whole": lambda: rng.integers(0, 50, shape) / scale,
        "positive": lambda: 1.0 - rng.random(shape),
    }[draw(st.sampled_from(SHAPES))]()
    array = np.array(made * scale)
    gaps = draw(st.sampled_from(GAPS))
    trimmed = draw(st.integers(0, shape[-1]))
    missing = {
        "none": lambda: np.zeros(shape, bool),
        "some": lambda: rng.random(shape) < 0.2,
        "most": lambda: rng.random(shape) < 0.9,
        "first": lambda: np.broadcast_to(steps < trimmed, shape),
        "last": lambda: np.broadcast_to(steps >= trimmed, shape),
        "but one": lambda: np.broadcast_to(steps != trimmed, shape),
        "all": lambda: np.ones(shape, bool),
        "every other": lambda: np.broadcast_to(steps % 2 == 0, shape),
    }[gaps]()
    array[missing] = NAN
    if draw(st.integers(0, 30)) == 30 and array.size:
        array.flat[rng.integers(array.size)] = np.inf
    dtype = draw(st.sampled_from(DTYPES))
    if np.dtype(dtype).kind in "iu":
        most = np.iinfo(dtype).max // 2
        array = np.clip(
            np.nan_to_num(array), -most if dtype.startswith("int") else 0, most
        )
    with np.errstate(all="ignore"):
        return array.astype(dtype)


@st.composite
def series(draw: Any) -> Any:
    """Data in one of the forms that callers have."""
    length = draw(
        st.one_of(st.sampled_from(EDGES), st.integers(0, 40), st.integers(0, 700))
    )
    kind = draw(st.sampled_from(KINDS))
    if kind in ("one", "pandas", "masked", "tensor"):
        array = values(draw, (length,))
        if kind == "pandas":
            return pd.Series(array)
        if kind == "masked":
            return np.ma.masked_array(array, np.arange(length) % 3 == 0)
        if kind == "tensor" and array.dtype.kind in "fiub":
            return torch.from_numpy(array)
        return array
    if kind in ("rows", "lists"):
        array = values(draw, (draw(st.integers(1, 3)), length))
        if kind == "rows":
            return array
        return array.tolist()
    if kind == "multivariate":
        return values(
            draw, (draw(st.integers(1, 2)), draw(st.integers(1, 3)), min(length, 200))
        )
    if kind == "unequal":
        variates = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
        return [
            values(draw, (count, draw(st.sampled_from(EDGES)))) for count in variates
        ]
    lengths = [
        length,
        *draw(
            st.lists(st.one_of(st.sampled_from(EDGES), st.integers(0, 40)), max_size=2)
        ),
    ]
    rows = [values(draw, (item,)) for item in lengths]
    if kind == "dict":
        return {f"row {index}": row for index, row in enumerate(rows)}
    return rows


BAD_HORIZONS = (0, -1, 2.5, 3.0, "3", True, NAN, np.float32(2.0), [1], 10**30)
HORIZONS = st.one_of(
    st.none(),
    st.tuples(st.integers(1, 2), st.sampled_from([-1, 0, 1])),
    st.integers(1, 24),
    st.integers(1, 24).map(np.int64),
    st.sampled_from(BAD_HORIZONS),
)
CASES = st.builds(Given, series(), HORIZONS, st.integers(0, 3).map(bool))

NASTY = [
    Given([]),
    Given(5.0),
    Given([NAN, NAN], 1),
    Given(np.full(600, 1e18), (1, 1)),
    Given([np.tile([1e18, -1e18], 40), np.full(80, -1e-30)], 3),
    Given([np.arange(8), np.arange(16.0), np.arange(9) - 4]),
    Given(np.r_[np.full(64, NAN), 2.0]),
    Given(np.array([[1.0, 2.0, 3.0, NAN], [5.0, NAN, 7.0, 8.0]])[None], (1, 1)),
    Given([np.ones((2, 5)), np.arange(6.0)], 2),
    Given("no file"),
    Given(np.ones(5), 0),
    Given(np.ones(5), 1.0),
]


def with_examples(test: Callable) -> Callable:
    for case in reversed(NASTY):
        test = example(case=case)(test)
    return test


FUZZ = settings(
    max_examples=12,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


# --- what holds
# --------------------------------------------------------------------------------------


def as_ids(data: Any) -> Any:
    """Series of the same data with every number as a token id below 50; what is no
    series stays.
    """
    try:
        values = as_series(data).values
    except LensError:
        return data
    return [
        np.where(np.isnan(value), NAN, np.abs(np.trunc(np.nan_to_num(value))) % 50)
        for value in values
    ]


def list_steps(lens: Lens, horizon: Any) -> Any:
    if not isinstance(horizon, tuple):
        return horizon
    # a token model of long horizons takes a pass for every step
    return (
        min(
            lens.adapter.prediction_length,
            64 if lens.adapter.readout != "token" else 16,
        )
        * horizon[0]
        + horizon[1]
    )


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the message of the error that is ours; any other error
    fails the test.
    """
    try:
        return call()
    except LensError as error:
        message = str(error)
        assert len(message) > 20
        assert "Traceback" not in message
        return message


def refused(batch: Any, lens: Lens, steps: Any) -> str:
    """Why a lens must refuse series that are fine in themselves; "" if it must not."""
    adapter = lens.adapter
    if (
        isinstance(steps, bool)
        or not isinstance(steps, int | np.integer)
        or not 1 <= steps <= 100_000
    ):
        return "horizon"
    sizes = {batch.groups.count(group) for group in batch.groups}
    if lens.wiring.architecture in BY_ITEM and len(sizes) > 1:
        return "groups"
    if adapter.rollout == "single" and steps > adapter.longest_pass:
        return "horizon"
    if (
        not adapter.joint_rollout
        and steps > adapter.prediction_length
        and max(sizes) > 1
    ):
        return "horizon"
    if lens.wiring.architecture == "fracast":
        visible = [value[-adapter.context_length :] for value in batch.values]
        if min(np.isfinite(item).sum() for item in visible) < 8:
            return "few"
        return ""
    if lens.wiring.architecture == "t5":
        visible = np.concatenate([value[-512:] for value in batch.values])
        known = visible[~np.isnan(visible)].astype(np.float32)
        if not ((known == known.round()) & (known >= 0) & (known < 50)).all():
            return "ids"
    return ""


def check_forecast(lens: Lens, data: Any, steps: Any, seed: int) -> bool:
    """Whether there is a forecast; it is the library's, or a refusal is due."""
    ours = outcome(lambda: lens.forecast(data, steps, seed=seed, **count_draws(lens)))
    batch = outcome(lambda: as_series(data))
    if isinstance(batch, str):
        assert ours == batch
        return False
    asked = steps
    if steps is None:
        asked = lens.adapter.prediction_length
    due = refused(batch, lens, asked)
    if due:
        assert isinstance(ours, str), due
        assert REFUSALS[due] in ours
        return False
    theirs = answer(lens, batch, int(asked), seed)
    finite = np.isfinite(theirs.quantiles).all() and (
        theirs.mean is None or np.isfinite(theirs.mean).all()
    )
    if isinstance(ours, str):
        assert REFUSALS["numbers"] in ours, ours
        assert not finite
        return False
    assert finite
    assert_is(ours, theirs)
    return True


def check_forward(lens: Lens, data: Any, steps: Any, forecast: bool) -> None:
    """A forward and its activations have the shapes of the series, and are finite where
    the forecast is.
    """
    horizon = None
    if lens.adapter.readout != "token":
        horizon = steps
    with torch.no_grad():
        output = outcome(lambda: lens.forward(data, horizon=horizon))
        cached = outcome(lambda: lens.run_with_cache(data, horizon=horizon))
    if isinstance(output, str):
        assert cached == output
        return
    batch = as_series(data)
    if horizon is None:
        asked = lens.adapter.prediction_length
    else:
        asked = int(horizon)
    assert output.shape[0] == len(batch)
    if lens.adapter.readout == "token":
        assert output.shape[1:] == (1, lens.adapter.model.config.vocab_size)
    else:
        assert output.shape[1] == len(lens.adapter.levels)
        assert (
            asked <= output.shape[2] <= max(asked, lens.adapter.prediction_length) + 16
        )
    again, activations = cached
    assert tuple(activations.ids) == (
        tuple(dict.fromkeys(batch.groups)) if lens.adapter.packed else batch.ids
    )
    if forecast:
        assert output.isfinite().all()
        # the softmax that is read is not the fused one
        assert_close(again, output, depth=10000)
        # scores of hidden keys are minus infinity
        wrong = [
            key
            for key, retained in activations.items()
            if "scores" not in key and not retained.isfinite().all()
        ]
        assert not wrong


@pytest.mark.parametrize("name", ARCHITECTURES)
@with_examples
@given(case=CASES)
@FUZZ
def test_inputs_match_library_or_give_error(name: str, case: Given) -> None:
    """Any input gives the answer of the library or a clear error."""
    lens = lens_of(name)
    if name == "t5" and case.ids:
        data = as_ids(case.data)
    else:
        data = case.data
    before = pickle.dumps(data)
    steps = list_steps(lens, case.horizon)
    forecast = check_forecast(lens, data, steps, seed=3)
    check_forward(lens, data, steps, forecast)
    assert pickle.dumps(data) == before


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_longest_series(name: str) -> None:
    """5,000 steps with gaps and a drift, beside a single one; and a gap longer than
    most contexts.
    """
    lens = lens_of(name)
    rng = np.random.default_rng(0)
    long = rng.normal(size=5000).cumsum() + 1e6
    long[rng.random(5000) < 0.1] = NAN
    if name == "t5":
        long = as_ids(long)[0]
    data = [long, np.array([3.0])]
    full = name != "fracast"  # which refuses the single step, and the gap
    assert check_forecast(lens, data, None, seed=1) == full
    check_forward(lens, data, None, forecast=full)
    long[-4300:] = NAN
    assert check_forecast(lens, data[:1], None, seed=1) == full


# --- what is said
# --------------------------------------------------------------------------------------


def test_a_scale_that_overflows_is_refused() -> None:
    """Running statistics square the values and add them up; the forecast normalises
    them beforehand.
    """
    lens = lens_of("timesfm-2.5")
    data = {"huge": np.tile([1e18, -1e18], 300)}
    assert check_forecast(lens, data, 5, seed=0)
    with pytest.raises(
        InputError,
        match=r"the scale of series 'huge' overflows: 600 steps reach 1e\+18",
    ):
        lens.forward(data)
