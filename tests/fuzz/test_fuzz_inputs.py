"""Any input to any model: the library's own answer, bit for bit, or a clear error; nothing else."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError, LensError
from tsfm_lens.models import Lens, architectures

ARCHITECTURES = sorted(architectures())
DRAWS = 3
NAN = float("nan")
BY_ITEM = ("moirai-1.1", "moirai-2", "timesfm-3", "toto-1", "toto-2")
Opened = Callable[[str], Lens]

# what may be said of series that are fine in themselves, and of no others
REFUSALS = {
    "horizon": "horizon",
    "groups": "groups differ in their number of variates",
    "ids": "a series is its token ids",
    "numbers": "forecasts no number",
}


@dataclass(frozen=True)
class Given:
    """What a caller hands over.

    Attributes:
        data: anything.
        horizon: steps; a pair (passes, more) stands for that many of the model's own lengths and so many steps more.
        ids: whether numbers become token ids for a model of language.
    """

    data: Any
    horizon: Any = None
    ids: bool = True


# --- strategies ------------------------------------------------------------------------------------------------

# around patches (4, 8, 16), contexts (64, 512), and whole batches of patches
EDGES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 129, 513)
SHAPES = ("noise", "constant", "zero", "ramp", "alternating", "spike", "step", "whole", "positive")
GAPS = ("none", "none", "none", "some", "most", "first", "last", "but one", "all", "every other")
DTYPES = (
    "float64",
    "float64",
    "float64",
    "float32",
    "float32",
    "float16",
    "int64",
    "int32",
    "int8",
    "uint16",
    "bool",
    "object",
    "str",
)
KINDS = ("list", "one", "rows", "multivariate", "tensor", "dict", "unequal", "lists", "pandas", "masked")


def values(draw: Any, shape: tuple[int, ...]) -> np.ndarray:
    """An array of one of the shapes, scales, gaps and types."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    scale = 10.0 ** draw(st.sampled_from([0, 0, 0, 1, -1, 3, -5, -12, -30, 9, 15, 17, 18, 19, 40, 300]))
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
    cut = draw(st.integers(0, shape[-1]))
    missing = {
        "none": lambda: np.zeros(shape, bool),
        "some": lambda: rng.random(shape) < 0.2,
        "most": lambda: rng.random(shape) < 0.9,
        "first": lambda: np.broadcast_to(steps < cut, shape),
        "last": lambda: np.broadcast_to(steps >= cut, shape),
        "but one": lambda: np.broadcast_to(steps != cut, shape),
        "all": lambda: np.ones(shape, bool),
        "every other": lambda: np.broadcast_to(steps % 2 == 0, shape),
    }[gaps]()
    array[missing] = NAN
    if draw(st.integers(0, 30)) == 30 and array.size:
        array.flat[rng.integers(array.size)] = np.inf
    dtype = draw(st.sampled_from(DTYPES))
    if np.dtype(dtype).kind in "iu":
        most = np.iinfo(dtype).max // 2
        array = np.clip(np.nan_to_num(array), -most if dtype.startswith("int") else 0, most)
    with np.errstate(all="ignore"):
        return array.astype(dtype)


@st.composite
def series(draw: Any) -> Any:
    """Data in one of the forms that callers have."""
    length = draw(st.one_of(st.sampled_from(EDGES), st.integers(0, 40), st.integers(0, 700)))
    kind = draw(st.sampled_from(KINDS))
    if kind in ("one", "pandas", "masked", "tensor"):
        array = values(draw, (length,))
        if kind == "pandas":
            return pd.Series(array)
        if kind == "masked":
            return np.ma.masked_array(array, np.arange(length) % 3 == 0)
        return torch.from_numpy(array) if kind == "tensor" and array.dtype.kind in "fiub" else array
    if kind in ("rows", "lists"):
        array = values(draw, (draw(st.integers(1, 3)), length))
        return array if kind == "rows" else array.tolist()
    if kind == "multivariate":
        return values(draw, (draw(st.integers(1, 2)), draw(st.integers(1, 3)), min(length, 200)))
    if kind == "unequal":
        variates = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
        return [values(draw, (count, draw(st.sampled_from(EDGES)))) for count in variates]
    lengths = [length, *draw(st.lists(st.one_of(st.sampled_from(EDGES), st.integers(0, 40)), max_size=2))]
    rows = [values(draw, (each,)) for each in lengths]
    return {f"row {index}": row for index, row in enumerate(rows)} if kind == "dict" else rows


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
    Given(np.zeros((0,))),
    Given([np.zeros(0)], 1),
    Given(5.0),
    Given([5.0]),
    Given(np.array([[7]]), (1, 1)),
    Given([NAN, NAN], 1),
    Given(np.zeros(16), (1, 0)),
    Given(np.full(600, 1e18), (1, 1)),
    Given(np.tile([1e18, -1e18], 350)),
    Given([np.tile([1e18, -1e18], 40), np.full(80, -1e-30)], 3),
    Given([np.arange(8), np.arange(16.0), np.arange(9) - 4]),
    Given(np.r_[1.0, 2.0, 3.0, np.full(600, NAN)]),
    Given(np.r_[np.full(64, NAN), 2.0]),
    Given(np.array([[1.0, 2.0, 3.0, NAN], [5.0, NAN, 7.0, 8.0]])[None], (1, 1)),
    Given([np.ones((2, 5)), np.arange(6.0)], 2),
    Given("no file"),
    Given(["1", "2"]),
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


# --- what holds ------------------------------------------------------------------------------------------------


def as_ids(data: Any) -> Any:
    """The same data with every number as a token id below 50."""
    if isinstance(data, list | tuple):
        return [as_ids(each) for each in data]
    if isinstance(data, dict):
        return {name: as_ids(each) for name, each in data.items()}
    if isinstance(data, int | float):
        return data if data in (np.inf, -np.inf) or data != data else abs(int(data)) % 50
    if isinstance(data, torch.Tensor):
        return torch.from_numpy(as_ids(data.numpy()))
    if isinstance(data, np.ma.MaskedArray):
        return np.ma.masked_array(as_ids(data.data), data.mask)
    if isinstance(data, np.ndarray | pd.Series) and data.dtype.kind in "fiu":
        whole = np.where(np.isfinite(data), np.abs(np.trunc(np.nan_to_num(data, posinf=0.0, neginf=0.0))) % 50, data)
        return pd.Series(whole) if isinstance(data, pd.Series) else whole.astype(data.dtype)
    return data


def steps_of(lens: Lens, horizon: Any) -> Any:
    if not isinstance(horizon, tuple):
        return horizon
    # a token model of long horizons takes a pass for every step
    return min(lens.adapter.prediction_length, 64 if lens.adapter.readout != "token" else 16) * horizon[0] + horizon[1]


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the message of the error that is ours; any other error fails the test."""
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
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or not 1 <= steps <= 100_000:
        return "horizon"
    sizes = {batch.groups.count(group) for group in batch.groups}
    if lens.wiring.architecture in BY_ITEM and len(sizes) > 1:
        return "groups"
    if adapter.rollout == "single" and steps > adapter.longest_pass:
        return "horizon"
    if not adapter.joint_rollout and steps > adapter.prediction_length and max(sizes) > 1:
        return "horizon"
    if lens.wiring.architecture == "t5":
        shown = np.concatenate([each[-512:] for each in batch.values])
        known = shown[~np.isnan(shown)].astype(np.float32)
        if not ((known == known.round()) & (known >= 0) & (known < 50)).all():
            return "ids"
    return ""


def samples_of(lens: Lens) -> dict[str, int]:
    return {"num_samples": DRAWS} if lens.wiring.architecture in ("chronos", "t5", "moirai-1.1", "toto-1") else {}


def check_forecast(lens: Lens, data: Any, steps: Any, natively: Callable, seed: int) -> bool:
    """Whether there is a forecast; it is the library's, or a refusal is due."""
    ours = outcome(lambda: lens.forecast(data, steps, seed=seed, **samples_of(lens)))
    batch = outcome(lambda: as_series(data))
    if isinstance(batch, str):
        assert ours == batch
        return False
    asked = lens.adapter.prediction_length if steps is None else steps
    due = refused(batch, lens, asked)
    if due:
        assert isinstance(ours, str), due
        assert REFUSALS[due] in ours
        return False
    theirs = natively(lens, batch, int(asked), seed)
    finite = np.isfinite(theirs.quantiles).all() and (theirs.mean is None or np.isfinite(theirs.mean).all())
    if isinstance(ours, str):
        assert REFUSALS["numbers"] in ours, ours
        assert not finite
        return False
    assert finite
    np.testing.assert_array_equal(ours.quantiles, theirs.quantiles)
    if theirs.mean is not None:
        np.testing.assert_array_equal(ours.mean, theirs.mean)
    if theirs.samples is not None:
        np.testing.assert_array_equal(ours.samples, theirs.samples)
    return True


def check_forward(lens: Lens, data: Any, steps: Any, forecast: bool) -> None:
    """A forward and its activations have the shapes of the series, and are finite where the forecast is."""
    horizon = steps if lens.adapter.readout != "token" else None
    with torch.no_grad():
        output = outcome(lambda: lens.forward(data, horizon=horizon))
        cached = outcome(lambda: lens.run_with_cache(data, horizon=horizon))
    if isinstance(output, str):
        assert cached == output
        return
    batch = as_series(data)
    asked = lens.adapter.prediction_length if horizon is None else int(horizon)
    assert output.shape[0] == len(batch)
    if lens.adapter.readout == "token":
        assert output.shape[1:] == (1, lens.adapter.model.config.vocab_size)
    else:
        assert output.shape[1] == len(lens.adapter.levels)
        assert asked <= output.shape[2] <= max(asked, lens.adapter.prediction_length) + 16
    again, activations = cached
    assert tuple(activations.ids) == (tuple(dict.fromkeys(batch.groups)) if lens.adapter.packed else batch.ids)
    if forecast:
        assert output.isfinite().all()
        # the softmax that is read is not the fused one
        torch.testing.assert_close(again, output, rtol=1e-3, atol=1e-3 * float(output.abs().max()))
        # scores of hidden keys are minus infinity
        wrong = [key for key, kept in activations.items() if "scores" not in key and not kept.isfinite().all()]
        assert not wrong


@pytest.mark.parametrize("name", ARCHITECTURES)
@with_examples
@given(case=CASES)
@FUZZ
def test_any_input_gives_the_librarys_answer_or_a_clear_error(
    opened: Opened, natively: Callable, name: str, case: Given
) -> None:
    lens = opened(name)
    data = as_ids(case.data) if name == "t5" and case.ids else case.data
    before, steps = pickle.dumps(data), steps_of(lens, case.horizon)
    forecast = check_forecast(lens, data, steps, natively, seed=3)
    check_forward(lens, data, steps, forecast)
    assert pickle.dumps(data) == before


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    """Libraries warn of every long horizon."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_longest_series(opened: Opened, natively: Callable, name: str) -> None:
    """5,000 steps with gaps and a drift, beside a single one; and a gap longer than most contexts."""
    lens = opened(name)
    rng = np.random.default_rng(0)
    long = rng.normal(size=5000).cumsum() + 1e6
    long[rng.random(5000) < 0.1] = NAN
    long = as_ids(long) if name == "t5" else long
    data = [long, np.array([3.0])]
    assert check_forecast(lens, data, None, natively, seed=1)
    check_forward(lens, data, None, forecast=True)
    long[-4300:] = NAN
    assert check_forecast(lens, data[:1], None, natively, seed=1)


# models that take a pass for every few steps, each longer than the last, or have no rollout
FURTHEST = {"moirai-2": 90, "timesfm-2.5-transformers": 16}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_longest_horizons(opened: Opened, natively: Callable, name: str) -> None:
    data = [np.r_[np.arange(8.0), NAN, 2.0]]
    assert check_forecast(opened(name), data, FURTHEST.get(name, 1000), natively, seed=1)
    if name == "timesfm-2.5-transformers":
        assert not check_forecast(opened(name), data, 1000, natively, seed=1)


# --- what is said ----------------------------------------------------------------------------------------------


def selfish() -> list:
    data: list = [1.0]
    data.append(data)
    return data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "NoneType is no series: expected arrays"),
        (7, "int is no series"),
        ((value for value in [1.0]), "generator is no series"),
        ({1.0, 2.0}, "set is no series"),
        (b"abc", "bytes is no series"),
        ({}, "there is no series: expected at least one"),
        ([[1.0], []], "series 'series-1' is empty"),
        ({"a": {"b": 1.0}}, "series 'a' holds {'b': 1.0} at position 0, which is not a number"),
        (np.float64(3.0), "0 axes"),
        (torch.tensor(3.0), "0 axes"),
        (np.zeros((1, 1, 1, 2)), "4 axes (shape (1, 1, 1, 2)), expected (time,), (series, time) or (series, variate"),
        (np.zeros((3, 0)), "the array is empty (shape (3, 0))"),
        ([[[1, 2], [3]]], "series 'series-0' is not a regular array of numbers"),
        ([1.0, [2.0]], "series 'series-0' has shape (), expected (time,) or (variate, time)"),
        (selfish(), "expected (time,) or (variate, time)"),
        ([1.0, "x"], "holds np.str_('1.0') at position 0, which is not a number"),
        ([[1.0, "1,5"]], "at position 0, which is not a number"),
        (np.array([1.0, "x"], dtype=object), "holds 'x' at position 1, which is not a number"),
        (np.ma.masked_array(["a", "b"], [True, False]), "holds 'b' at position 1, which is not a number"),
        ([10**400, 1], "holds a number beyond double precision at position 0"),
        ([1, 10**30], "holds 1e+30 at position 1; models compute in single precision"),
        (np.array([1.0, -2e18]), "holds -2e+18 at position 1"),
        (np.array([1.0, NAN, np.inf]), "is infinite at position 2; use NaN for missing values"),
        (np.array([NAN, NAN]), "nothing but NaN (2 steps)"),
        (np.ma.masked_all(4), "nothing but NaN (4 steps)"),
        (np.array([1j]), "holds complex128, expected real numbers"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "holds datetime64[D], expected real numbers"),
        (np.zeros(2, dtype=[("a", float), ("b", int)]), "expected real numbers"),
        (np.zeros(2, dtype="V4"), "expected real numbers"),
        (torch.eye(3).to_sparse(), "is not a dense tensor of numbers"),
        (torch.empty(3, device="meta"), "is not a dense tensor of numbers"),
        (torch.zeros(3, dtype=torch.complex64), "expected real numbers"),
        ("a" * 5000, "there is no file 'aaa"),
        ("a\0b", "there is no file"),
        ([pd.DataFrame({"y": [1.0]})], "is a frame; give its values transposed"),
        (pd.DataFrame(), "the frame has no rows"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value[:30].strip("a\0"),
)
def test_what_is_no_series_is_named(opened: Opened, data: Any, said: str) -> None:
    lens = opened("chronos-bolt")
    for call in (lens.forecast, lens.forward, lens.run_with_cache):
        with pytest.raises(InputError) as caught:
            call(data)
        assert said in str(caught.value)


def test_odd_numbers_are_numbers(opened: Opened, natively: Callable) -> None:
    """Whatever holds the same values gives the same forecast."""
    lens = opened("chronos-bolt")
    expected = lens.forecast(np.array([1.0, NAN, 3.0, 0.0])).quantiles
    for data in (
        [1, None, 3, 0],
        (True, pd.NA, 3.0, False),
        np.ma.masked_array([1, 77, 3, 0], [False, True, False, False]),
        pd.Series([1, None, 3, 0], dtype="Int64"),
        torch.tensor([1.0, NAN, 3.0, 0.0], dtype=torch.bfloat16),
        torch.tensor([1.0, NAN, 3.0, 0.0]).to(torch.float8_e5m2),
        torch.tensor([1.0, NAN, 3.0, 0.0], requires_grad=True),
        np.array([1.0, NAN, 3.0, 0.0], dtype=">f4")[::1],
        np.array([0.0, 3.0, NAN, 1.0])[::-1],
    ):
        np.testing.assert_array_equal(lens.forecast(data).quantiles, expected)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_bad_horizons_are_named(opened: Opened, name: str) -> None:
    for horizon in BAD_HORIZONS:
        for call in (opened(name).forecast, opened(name).forward):
            with pytest.raises(InputError, match=re.escape(f"horizon {horizon!r} ")):
                call(np.arange(9), horizon=horizon)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"quantiles": 0.5}, "quantiles 0.5 are not levels between 0 and 1"),
        ({"quantiles": [0.1, "x"]}, "'x'"),
        ({"quantiles": [NAN, 0.5]}, "quantiles [nan, 0.5]"),
        ({"num_samples": 2.5}, "num_samples 2.5 is not a number of sample paths"),
        ({"num_samples": "3"}, "num_samples '3'"),
        ({"seed": "a"}, "seed 'a' is not an integer"),
        ({"seed": -1}, "seed -1"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(opened: Opened, arguments: dict, said: str) -> None:
    for name in ("chronos", "chronos-bolt"):
        with pytest.raises(InputError) as caught:
            opened(name).forecast(np.arange(9.0), 2, **arguments)
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"future": [["a"]]}, "the future holds np.str_('a') at position 0"),
        ({"future": [[1.0], [2.0, 3.0]]}, "the future is not a regular array"),
        ({"future": [1.0, 2.0]}, "future values have shape (2,), expected (series, step) with 1 series"),
        ({"tokens": [[1, 64]]}, "decoder tokens are ids from 0 to 63; got 64"),
        ({"tokens": torch.tensor([[-1, 2]])}, "got -1"),
        ({"tokens": [[1.5]]}, "got 1.5"),
        ({"tokens": [[NAN]]}, "got nan"),
        ({"tokens": "ab"}, "the array of tokens holds np.str_('ab')"),
    ],
    ids=str,
)
def test_a_future_that_is_none_is_named(opened: Opened, given: dict, said: str) -> None:
    with pytest.raises(InputError) as caught:
        opened("chronos").forward(np.arange(9.0), **given)
    assert said in str(caught.value)


def test_tokens_are_taken_in_any_form(opened: Opened) -> None:
    forward = opened("chronos").forward
    expected = forward(np.arange(9.0), tokens=torch.tensor([[4, 60, 7]]))
    for tokens in ([[4, 60, 7]], np.array([[4, 60, 7]], dtype=np.int32), torch.tensor([[4.0, 60.0, 7.0]])):
        assert torch.equal(forward(np.arange(9.0), tokens=tokens), expected)


def test_a_forecast_of_no_number_is_refused(opened: Opened) -> None:
    """Whoever makes it: here a hook, in the second of two series."""
    lens = opened("chronos-bolt")

    def spoil(value: torch.Tensor, hook: Any) -> torch.Tensor:
        return value * torch.tensor([1.0, NAN])[:, None, None]

    data = {"good": np.arange(9.0), "bad": np.full(9, 1e5)}
    said = r"chronos-bolt forecasts no number at step 0 of series 'bad' \(1 of 2 series have NaN or infinity\)"
    with pytest.raises(InputError, match=said + r".*reaches 1e\+05"):
        lens.run_with_hooks(data, [("decoder_blocks.2.hook_resid_post", spoil)], rollout=True)
    lens.forecast(data)


def test_a_scale_that_overflows_is_refused(opened: Opened, natively: Callable) -> None:
    """Running statistics square the values and add them up; the forecast normalises them beforehand."""
    lens, data = opened("timesfm-2.5"), {"huge": np.tile([1e18, -1e18], 300)}
    assert check_forecast(lens, data, 5, natively, seed=0)
    with pytest.raises(InputError, match=r"the scale of series 'huge' overflows: 600 steps reach 1e\+18"):
        lens.forward(data)
