"""Evaluation sets: cuts, scales, naive forecasts, parting and identity, and the sources
they come from.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from gluonts.dataset.common import ListDataset
from gluonts.dataset.pandas import PandasDataset
from gluonts.dataset.split import split
from gluonts.ev.ts_stats import seasonal_error as gluonts_seasonal_error
from gluonts.transform import LastValueImputation
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy.stats import norm

from closeness import close_in_float32
from refusals import expect_error
from tsfm_lens.data import SeriesBatch, bundled
from tsfm_lens.data.frequencies import find_start, parse_frequency, stamp_frequency
from tsfm_lens.sweep import EvaluationSet, Window, gluonts_set, holdout_sets
from tsfm_lens.testing import assert_close

NAN = np.nan


def one(
    context: list | np.ndarray,
    label: tuple = (1.0, 2.0),
    season: int = 1,
    **more: object,
) -> EvaluationSet:
    """A set of one window."""
    window = Window(
        "a",
        0,
        np.atleast_2d(np.asarray(context, float)),
        np.atleast_2d(np.asarray(label, float)),
    )
    return EvaluationSet(
        "one", (window,), np.shape(window.label)[1], seasonality=season, **more
    )


@st.composite
def sets(draw: st.DrawFn) -> EvaluationSet:
    """Sets of windows with 1 to 4 variates and contexts of 1 to 6 steps, NaN among the
    values.
    """
    values = st.floats(-10, 10, width=32) | st.just(NAN)
    windows = []
    for number in range(draw(st.integers(1, 8))):
        variates = draw(st.integers(1, 4))
        steps = draw(st.integers(1, 6))
        numbers = draw(
            st.lists(
                values, min_size=variates * (steps + 2), max_size=variates * (steps + 2)
            )
        )
        array = np.array(numbers, dtype=np.float64).reshape(variates, steps + 2)
        windows.append(
            Window(
                f"item{number}", draw(st.integers(0, 3)), array[:, :-2], array[:, -2:]
            )
        )
    return EvaluationSet("drawn", tuple(windows), 2)


@pytest.mark.parametrize(
    ("horizon", "windows", "stride"), [(3, 1, None), (3, 4, None), (5, 3, 2), (2, 3, 7)]
)
@pytest.mark.parametrize("variates", [1, 3])
def test_windows_are_those_of_gluonts(
    horizon: int, windows: int, stride: int | None, variates: int
) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(variates, length)) for length in (19, 40, 23)]
    shape = (lambda a: a[0]) if variates == 1 else (lambda a: a)
    entries = ListDataset(
        [
            {"start": "2020-03-01 05:00", "target": shape(a), "item_id": f"s{i}"}
            for i, a in enumerate(arrays)
        ],
        freq="h",
        one_dim_target=variates == 1,
    )
    first = -(horizon + (stride or horizon) * (windows - 1))
    template = split(entries, offset=first)[1]
    expected = list(
        template.generate_instances(horizon, windows=windows, distance=stride)
    )
    (found,) = gluonts_set(entries, horizon, windows, stride)
    (held,) = holdout_sets([shape(a) for a in arrays], horizon, windows, stride)
    assert len(expected) == len(found) == len(held) == 3 * windows
    for (context, label), ours, same in zip(
        expected, found.windows, held.windows, strict=True
    ):
        assert_array_equal(ours.context, np.atleast_2d(context["target"]))
        assert_array_equal(ours.label, np.atleast_2d(label["target"]))
        assert ours.item == context["item_id"]
        assert ours.start == context["start"].start_time
        # gluonts keeps single precision
        close_in_float32(same.context, ours.context, depth=16)
        close_in_float32(same.label, ours.label, depth=16)
    assert [w.index for w in found.windows] == list(range(windows)) * 3
    assert (found.freq, found.seasonality) == ("h", 24)


@pytest.mark.parametrize("season", [1, 3, 7, 12, 30])
def test_scales_equal_gluonts_seasonal_errors(season: int) -> None:
    """Scales are the seasonal errors of GluonTS over the full context."""
    rng = np.random.default_rng(1)
    arrays = [
        rng.normal(size=40),
        np.where(rng.random(40) < 0.3, NAN, rng.normal(size=40)),
        rng.normal(size=12),
    ]
    arrays += [
        np.full(40, 2.0),
        np.full(40, NAN),
        np.where(np.arange(40) == 5, np.inf, rng.normal(size=40)),
    ]
    windows = tuple(
        Window(str(i), 0, a[None], np.ones((1, 2))) for i, a in enumerate(arrays)
    )
    found = EvaluationSet("scales", windows, 2, seasonality=season)
    # the crop of a batch leaves them alone
    found.batch(range(len(found)), context_length=5)
    expected = []
    for array in arrays:
        error = gluonts_seasonal_error(np.ma.masked_invalid(array), season)
        expected.append(float(np.ma.filled(np.ma.masked_equal(error, 0), NAN)[0]))
    assert_close(found.scales(range(len(found))), expected, depth=1000)
    assert_close(found.scales([2, 0]), [expected[2], expected[0]], depth=1000)
    assert np.isnan(found.scales([3, 4])).all()


@pytest.mark.parametrize(
    ("length", "season", "horizon"), [(60, 12, 18), (60, 1, 8), (12, 12, 5), (61, 7, 3)]
)
def test_seasonal_naive_equals_pandas(length: int, season: int, horizon: int) -> None:
    """The seasonal naive forecast equals a computation in pandas."""
    rng = np.random.default_rng(length)
    values = pd.Series(
        np.where(rng.random(length) < 0.2, NAN, rng.normal(size=length).cumsum())
    )
    found = one(values.to_numpy(), label=(0.0,) * horizon, season=season)
    full = pd.Series(LastValueImputation()(values.to_numpy().copy()))
    deviation = 0.0
    if length > season:
        deviation = np.sqrt((full.diff(season) ** 2).mean())
    extended = full.tolist()
    for step in range(horizon):
        extended.append(extended[length + step - season])
    point = np.array(extended[length:])
    spread = deviation * np.sqrt(np.arange(horizon) // season + 1)
    for row, level in zip(
        found.seasonal_naive([0], (0.1, 0.5, 0.9))[0], (0.1, 0.5, 0.9), strict=True
    ):
        assert_close(row, point + norm.ppf(level) * spread, depth=10000)


def test_batches_name_crop_and_stamp() -> None:
    frame = pd.DataFrame(
        {"timestamp": pd.date_range("2020-01-31", periods=30, freq="MS")}
    )
    frame["x"], frame["y"] = np.arange(30.0), np.arange(30.0) + 100
    (found,) = holdout_sets(frame, 4, 3, variates=["x", "y"])
    batch, truth = found.batch([2, 0], context_length=10)
    assert isinstance(batch, SeriesBatch)
    assert batch.ids == ("series-0/2/0", "series-0/2/1", "series-0/0/0", "series-0/0/1")
    assert batch.groups == ("series-0/2",) * 2 + ("series-0/0",) * 2
    assert (batch.n_variates, batch.lengths, batch.freq, batch.seasonality) == (
        2,
        (10,) * 4,
        "MS",
        12,
    )
    assert_array_equal(batch.values[0], np.arange(16.0, 26))
    assert_array_equal(truth[:2], [[26, 27, 28, 29], [126, 127, 128, 129]])
    stamps = batch.timestamps(0)
    assert stamps is not None
    assert (stamps == frame["timestamp"][16:26]).all()
    plain, _ = holdout_sets(bundled("nile"), 5)[0].batch([0])
    assert plain.ids == plain.groups == ("nile/0",)
    assert plain.starts == bundled("nile").starts


def test_contexts_without_values_are_filled() -> None:
    """A context without values gets the last one seen or zero, with a note."""
    early = np.array([3.0, 5.0] + [NAN] * 6)
    late = np.array([NAN] * 7 + [2.0])
    empty = np.full(8, NAN)
    endless = np.array([1.0, np.inf] * 4)
    found = one([early, late, empty, endless], label=[(1.0, NAN)] * 3 + [(np.inf, 2.0)])
    batch, truth = found.batch([0], context_length=4)
    assert_array_equal(batch.values[0], [NAN, NAN, NAN, 5.0])
    assert_array_equal(batch.values[1], [NAN, NAN, NAN, 2.0])
    assert_array_equal(batch.values[2], [NAN, NAN, NAN, 0.0])
    assert_array_equal(batch.values[3], [1.0, NAN, 1.0, NAN])
    assert_array_equal(truth, [[1.0, NAN]] * 3 + [[NAN, 2.0]])
    assert [note.split(":")[0] for note in batch.notes] == ["a/0/0", "a/0/2"]
    # where something was observed nothing is put in
    assert not any(note.startswith("a/0/0") for note in found.batch([0])[0].notes)
    assert_array_equal(found.batch([0])[0].values[0], early)


def test_samples_repeat_and_never_draw_twice() -> None:
    """Samples repeat with the seed and are never drawn twice."""
    (found,) = holdout_sets(np.arange(400.0).reshape(4, 100), 2, 25)
    few = found.sample(10, seed=42)
    ids = [w.id for w in few.windows]
    order = [w.id for w in found.windows]
    assert ids == [w.id for w in found.sample(10, seed=42).windows]
    assert ids != [w.id for w in found.sample(10, seed=99).windows]
    assert len(set(ids)) == 10
    assert [order.index(item) for item in ids] == sorted(
        order.index(item) for item in ids
    )
    assert {w.id for seed in range(200) for w in found.sample(10, seed).windows} == set(
        order
    )
    assert found.sample(None, 0) is found
    assert found.sample(1000, 0) is found


@given(sets(), st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_chunks_are_a_partition(found: EvaluationSet, size: int) -> None:
    chunks = found.chunks(size)
    assert [number for chunk in chunks for number in chunk] == list(range(len(found)))
    for chunk, after in zip(chunks, [*chunks[1:], ()], strict=True):
        rows = sum(found.windows[number].n_variates for number in chunk)
        assert rows <= size or len(chunk) == 1
        assert not after or rows + found.windows[after[0]].n_variates > size


@given(sets(), st.data())
@settings(deadline=None, max_examples=60)
def test_fingerprints_depend_on_values_not_order(
    found: EvaluationSet, data: st.DataObject
) -> None:
    """Fingerprints change with any value and not with the order."""
    full = found.fingerprint()
    order = data.draw(st.permutations(range(len(found))))
    assert found.fingerprint(order) == full
    assert (
        EvaluationSet(
            "other name", tuple(found.windows[i] for i in order), 2
        ).fingerprint()
        == full
    )
    narrow = tuple(
        Window(w.item, w.index, w.context.astype("f4"), w.label.astype("f4"))
        for w in found.windows
    )
    assert EvaluationSet("x", narrow, 2).fingerprint() == full
    number = data.draw(st.integers(0, len(found) - 1))
    window = found.windows[number]
    for name in ("context", "label"):
        array = getattr(window, name).copy()
        position = data.draw(st.integers(0, array.size - 1))
        new = data.draw(st.floats(-10, 10) | st.just(NAN))
        assume(not np.array_equal(array.flat[position], new, equal_nan=True))
        array.flat[position] = new
        other = Window(
            window.item,
            window.index,
            **{"context": window.context, "label": window.label, name: array},
        )
        changed = EvaluationSet(
            "x", (*found.windows[:number], other, *found.windows[number + 1 :]), 2
        )
        assert changed.fingerprint() != full
        rest = [i for i in range(len(found)) if i != number]
        assert changed.fingerprint(rest) == found.fingerprint(rest)


REFUSED = {
    "flat context": (
        lambda: Window("a", 0, np.ones(3), np.ones((1, 2))),
        r"'a/0': the context is .* shape \(3,\)",
    ),
    "no context": (
        lambda: Window("a", 0, np.ones((1, 0)), np.ones((1, 2))),
        r"shape \(1, 0\)",
    ),
    "integers": (
        lambda: Window("a", 0, np.ones((1, 3), int), np.ones((1, 2))),
        "expected floats",
    ),
    "variates": (
        lambda: Window("a", 0, np.ones((2, 3)), np.ones((1, 2))),
        "has 2 variates, the label 1",
    ),
    "no window": (lambda: EvaluationSet("e", (), 2), "has no window"),
    "no name": (lambda: EvaluationSet("", one([1.0]).windows, 2), "needs a name"),
    "horizon": (
        lambda: EvaluationSet("e", one([1.0]).windows, 3),
        "has 2 steps, expected the horizon 3",
    ),
    "season": (lambda: one([1.0], season=0), "seasonality is 0"),
    "twice": (
        lambda: EvaluationSet("e", one([1.0]).windows * 2, 2),
        "'a/0' more than once",
    ),
    "index": (lambda: one([1.0]).batch([1]), "window 1 is out of range: 'one' has 1"),
    "no index": (lambda: one([1.0]).batch([]), "at least one index"),
    "bundled": (lambda: holdout_sets(["co2", "co3"], 12), "Closest: co2"),
    "too short": (
        lambda: holdout_sets([[1.0, 2, 3]], 2, 2),
        "'series-0' has 3 steps: 2 windows of horizon 2",
    ),
    "stride": (lambda: holdout_sets([[1.0, 2, 3]], 2, 1, 0), "stride is 0"),
    "gluonts twice": (
        lambda: gluonts_set([{"target": [1.0, 2], "item_id": "x"}] * 2, 1),
        "'x' more than once",
    ),
    "gluonts target": (
        lambda: gluonts_set([{"start": "2020"}], 1),
        "has no 'target'; it has start",
    ),
    "gluonts freq": (
        lambda: gluonts_set([{"start": "2020", "target": [1.0, 2]}], 1, freq="moon"),
        "'moon' is not a freq",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals_name_the_place(make: object, message: str) -> None:
    """What cannot be evaluated is refused, and the message names the place."""
    expect_error(message, make)


def test_other_forms_of_gluonts_datasets() -> None:
    index = pd.period_range("2019-01", periods=24, freq="M")
    frames = {"a": pd.DataFrame({"target": np.arange(24.0)}, index=index)}
    (found,) = gluonts_set(PandasDataset(frames, target="target"), 6, 2, name="frame")
    (plain,) = gluonts_set(
        [{"target": np.arange(24.0), "start": "2019-01-15", "item_id": "a"}],
        6,
        2,
        freq="M",
    )
    assert (
        (found.freq, found.seasonality) == (plain.freq, plain.seasonality) == ("MS", 12)
    )
    assert (
        found.windows[0].start == plain.windows[0].start == pd.Timestamp("2019-01-01")
    )
    assert found.fingerprint() == plain.fingerprint()
    (unknown,) = gluonts_set([{"target": np.arange(24.0)}], 6, seasonality=4)
    assert (unknown.freq, unknown.seasonality, unknown.windows[0].item) == (
        None,
        4,
        "0",
    )


@pytest.mark.parametrize(
    ("old", "period"),
    [
        (f, f)
        for f in (
            "W-SUN",
            "W-TUE",
            "W-WED",
            "D",
            "M",
            "Q-DEC",
            "Q-JAN",
            "Y-DEC",
            "Y-JUN",
        )
    ]
    + [
        ("A-DEC", "Y-DEC"),
        ("A", "Y-DEC"),
        ("H", "h"),
        ("15T", "15min"),
        ("10S", "10s"),
        ("YE-DEC", "Y-DEC"),
    ]
    + [("QS-OCT", "Q-DEC"), ("MS", "M"), ("YS-JAN", "Y-DEC"), ("AS-JUL", "Y-JUN")],
)
def test_timestamps_are_beginnings_of_periods(old: str, period: str) -> None:
    """Time stamps are the beginnings of the periods."""
    periods = pd.period_range(
        pd.Period("1999-05-13 10:30:20", freq=period), periods=6, freq=period
    )
    start = find_start("1999-05-13 10:30:20", old)
    assert list(pd.date_range(start, periods=6, freq=stamp_frequency(old))) == [
        item.start_time for item in periods
    ]


@pytest.mark.parametrize(
    "freq", ["fortnight", "", "0H", "W-DEC", "H-MON", "-1D", "Q-SUN"]
)
def test_no_frequency(freq: str) -> None:
    expect_error("is not a frequency of a benchmark", parse_frequency, freq)
