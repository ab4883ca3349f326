"""A frame of the future beside one of the past: where the context ends, what is known
then, and what is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tsfm_lens
from refusals import expect_error
from tsfm_lens.cli.reading import translate_options
from tsfm_lens.data import SeriesBatch, as_series

STEPS = 14
AHEAD = 6
ITEMS = {"a": AHEAD, "b": 3, "c": 0}
"""Steps of the future that are given of each item."""


def dated(freq: str | None, first: int = 0) -> Any:
    if freq is None:
        return np.arange(STEPS + AHEAD) + first
    offset = freq
    if freq == "Mon-Sat":
        offset = pd.offsets.CustomBusinessDay(weekmask="Mon Tue Wed Thu Fri Sat")
    return pd.date_range("2023-01-02", periods=STEPS + AHEAD + first, freq=offset)[
        first:
    ]


def panel(freq: str | None = "D") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Items that begin at different dates, with what is known later."""
    rng = np.random.default_rng(3)
    wholes = [
        pd.DataFrame(
            {
                "item_id": name,
                "timestamp": dated(freq, first),
                "target": rng.normal(size=STEPS + AHEAD),
                "price": rng.normal(size=STEPS + AHEAD),
                "promo": rng.integers(0, 2, STEPS + AHEAD).astype(float),
            }
        )
        for first, name in enumerate(ITEMS)
    ]
    past = pd.concat([full[:STEPS] for full in wholes], ignore_index=True)
    future = pd.concat(
        [
            full[STEPS : STEPS + ahead]
            for full, ahead in zip(wholes, ITEMS.values(), strict=True)
        ],
        ignore_index=True,
    )
    return past, future


KEYS = ["item_id", "timestamp"]
UNKNOWN: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "dates": lambda future: future[KEYS],
    "dates and an empty target": lambda future: future[KEYS].assign(target=np.nan),
    "dates and empty columns": (
        lambda future: future[KEYS].assign(target=None, price=np.nan, promo=pd.NA)
    ),
}
KNOWN: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "a covariate": lambda future: future[[*KEYS, "promo"]],
    "a covariate and an empty target": (
        lambda future: future[[*KEYS, "promo"]].assign(target=np.nan)
    ),
    "a covariate and an empty one of the past": (
        lambda future: future[[*KEYS, "promo"]].assign(price=np.nan)
    ),
}


def polars(frame: pd.DataFrame) -> Any:
    return pytest.importorskip("polars").from_pandas(frame)


CARRIERS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "an index of ids and timestamps": lambda frame: frame.set_index(KEYS),
    "shuffled": lambda frame: frame.sample(frac=1, random_state=1),
    "Arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "polars": polars,
}


def content(batch: SeriesBatch) -> list[tuple[Any, ...]]:
    futures = [None if future is None else future.tolist() for future in batch.futures]
    values = [
        [None if value != value else value for value in row] for row in batch.values
    ]
    rows = zip(
        batch.ids, batch.roles, values, futures, batch.starts, batch.freqs, strict=True
    )
    return sorted(rows, key=lambda row: row[0])


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("held", UNKNOWN)
def test_future_dates_alone_change_nothing(carrier: str, held: str) -> None:
    """A future of dates alone changes nothing, and a note says so."""
    past, future = panel()
    batch = as_series(
        CARRIERS[carrier](past),
        future=CARRIERS[carrier](UNKNOWN[held](future)),
        targets=["target"],
    )
    assert content(batch) == content(as_series(past, targets=["target"]))
    assert any(
        "future" in note and "no known covariate" in note for note in batch.notes
    )


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("held", KNOWN)
def test_covariates_continue_after_the_data(carrier: str, held: str) -> None:
    """Covariates of the future continue where the data end."""
    past, future = panel()
    make = CARRIERS[carrier]
    batch = as_series(make(past), future=make(KNOWN[held](future)), targets=["target"])
    assert {row[0]: len(row[2]) for row in content(batch)} == {
        f"{name}/{column}": STEPS for name in ITEMS for column in ("target", "promo")
    }
    for name, ahead in ITEMS.items():
        found = batch.futures[batch.ids.index(f"{name}/promo")]
        assert found is not None
        assert found.tolist() == future.promo[future.item_id == name].tolist()
        assert len(found) == ahead
    assert not any("no known covariate" in note for note in batch.notes)


@pytest.mark.parametrize(
    "freq",
    ["MS", "ME", "QS", "QE", "YS", "B", "W-MON", "h", "15min", "D", "Mon-Sat", None],
)
def test_origin_is_last_date_of_data(
    freq: str | None,
) -> None:
    """The origin is the last date of the data at every frequency."""
    past, future = panel(freq)
    options: dict[str, Any] = {"targets": ["target"]} | (
        {"freq": freq} if freq == "Mon-Sat" else {}
    )
    for names in (KEYS, [*KEYS, "promo"]):
        batch = as_series(past, future=future[names], **options)
        assert set(batch.lengths) == {STEPS}
        for name, rows in past.groupby("item_id"):
            stamps = batch.timestamps(batch.rows(str(name))[0], ahead=AHEAD)
            if freq is None:
                assert stamps is None
                continue
            assert stamps is not None
            assert stamps[STEPS - 1] == rows.timestamp.max()
            later = future.timestamp[future.item_id == name]
            assert stamps[STEPS : STEPS + len(later)].tolist() == later.tolist()


def test_one_series_of_prophet() -> None:
    days = pd.date_range("2024-01-01", periods=STEPS + AHEAD)
    past = pd.DataFrame({"ds": days[:STEPS], "y": np.arange(float(STEPS))})
    dates = pd.DataFrame({"ds": days[STEPS:]})
    assert content(as_series(past, future=dates)) == content(as_series(past))
    lone = as_series(past[:1], future=dates)
    assert (lone.lengths, lone.starts) == ((1,), (days[0],))
    # with its history, as make_future_dataframe gives it
    expect_error(
        "future.*2024-01-01", as_series, past, future=pd.DataFrame({"ds": days})
    )
    plain = past[["y"]].assign(heat=1.0)
    rows = as_series(plain, future=pd.DataFrame({"heat": [2.0, 3.0]}))
    assert (rows.lengths, rows.futures[1].tolist()) == ((STEPS, STEPS), [2.0, 3.0])  # type: ignore[union-attr]


def test_trailing_gaps_stay_in_context() -> None:
    """Missing values at the end of the data stay in the context."""
    past, future = panel()
    last = past.groupby("item_id").cumcount() >= STEPS - 2
    past = past.assign(target=past.target.mask(last))
    for names in (KEYS, [*KEYS, "promo"]):
        batch = as_series(past, future=future[names], targets=["target"])
        assert set(batch.lengths) == {STEPS}
        assert any("missing values at the end" in note for note in batch.notes)


@pytest.mark.parametrize("filled", ["one", "all", "text"])
@pytest.mark.parametrize("targets", [["target"], ["target", "price"]], ids=str)
@pytest.mark.parametrize("more", [[], ["promo"]], ids=["dates", "covariate"])
def test_future_target_values_are_refused(
    filled: str, targets: list[str], more: list[str]
) -> None:
    past, future = panel()
    column = targets[-1]
    ahead = future[[*KEYS, *more, column]]
    if filled == "one":
        ahead = ahead.assign(**{column: ahead[column].where(ahead.index == 4)})
    if filled == "text":
        ahead = ahead.astype({column: str})
    text = rf"future.*'{column}'.*row {4 if filled == 'one' else 0}.*leave .* out"
    expect_error(text, as_series, past, future=ahead, targets=targets)
    batch = as_series(past, future=ahead.drop(columns=column), targets=targets)
    assert set(batch.lengths) == {STEPS}


@pytest.mark.parametrize("more", [[], ["promo"]], ids=["dates", "covariate"])
@pytest.mark.parametrize("freq", ["MS", "B", "h", None])
@pytest.mark.parametrize("first", [-3, -1], ids=["over their end", "at their end"])
def test_future_dates_within_data_are_refused(
    first: int, freq: str | None, more: list[str]
) -> None:
    """Future dates up to the end of the data are refused."""
    past, future = panel(freq)
    early = past[past.item_id == "b"][first:]
    names = [*KEYS, *more]
    ahead = pd.concat([future, early], ignore_index=True)[names]
    text = r"future has .*'b'.* end (at|with).*leave"
    expect_error(text, as_series, past, future=ahead, targets=["target"])
    retained = as_series(past, future=ahead[: len(future)], targets=["target"])
    expected = as_series(past, future=future[names], targets=["target"])
    assert content(retained) == content(expected)


def test_gap_after_data_matters_to_covariates() -> None:
    """A gap after the data matters to covariates and to nothing else."""
    past, future = panel()
    later = future[future.groupby("item_id").cumcount() > 0]
    expect_error(
        "no number at step 1 of",
        as_series,
        past,
        future=later[[*KEYS, "promo"]],
        targets=["target"],
    )
    batch = as_series(past, future=later[KEYS], targets=["target"])
    assert content(batch) == content(as_series(past, targets=["target"]))
    assert not any("filled" in note for note in batch.notes)
    late = [note for note in batch.notes if "1 step later" in note]
    assert len(late) == later["item_id"].nunique()
    on_time = as_series(past, future=future[KEYS], targets=["target"])
    assert not any("later than" in note for note in on_time.notes)


def test_future_of_dates_index_keeps_dates() -> None:
    """A future with nothing but an index of dates is read as dates."""
    days = pd.date_range("2024-01-01", periods=STEPS + AHEAD)
    past = pd.DataFrame({"y": np.arange(float(STEPS))}, index=days[:STEPS])
    batch = as_series(past, future=pd.DataFrame(index=days[STEPS:]))
    assert content(batch) == content(as_series(past))
    expect_error("no rows", as_series, past, future=pd.DataFrame({"y": []}))


def test_future_that_misfits_data_is_refused() -> None:
    """A future that does not fit the data is refused."""
    past, future = panel()
    known = future[[*KEYS, "promo"]]
    stranger = pd.concat([known, known[:2].assign(item_id="z")])
    cases: list[tuple[pd.DataFrame, str]] = [
        (stranger, "future has .*'z'.*data"),
        (known.drop(columns="item_id"), "future has no column 'item_id'"),
        (known.drop(columns="timestamp"), "future has no column 'timestamp'"),
        (known.rename(columns={"timestamp": "ds"}), "future has no column 'timestamp'"),
        (known.assign(rain=1.0), "future has a column 'rain', whose past"),
        (known[:0], "future.* no rows"),
    ]
    for ahead, text in cases:
        expect_error(text, as_series, past, future=ahead, targets=["target"])
    # whole numbers as ids, that missing ones made decimals elsewhere
    numbered = past.assign(item_id=past.item_id.map(ord))
    ahead = known.assign(item_id=known.item_id.map(ord).astype(float))
    assert set(as_series(numbered, future=ahead, targets=["target"]).groups) == {
        "97",
        "98",
        "99",
    }
    expect_error(
        "future has .*'97.5'.*'97'",
        as_series,
        numbered,
        future=ahead.replace(97.0, 97.5),
        targets=["target"],
    )
    assert set(
        as_series(
            past, future=stranger[stranger.item_id != "z"], targets=["target"]
        ).lengths
    ) == {STEPS}


def test_unread_future_columns_are_named() -> None:
    """Columns of the future that are not read are named."""
    past, future = panel()
    unread = as_series(
        past, future=future.drop(columns="target"), known=["promo"], past=["price"]
    )
    assert any("future" in note and "'price'" in note for note in unread.notes)
    fine = as_series(
        past, future=future[[*KEYS, "promo"]], known=["promo"], past=["price"]
    )
    assert not any("future" in note for note in fine.notes)


def test_run_forecasts_steps_after_data() -> None:
    past, future = panel()
    item, ahead = (frame[frame.item_id == "a"] for frame in (past, future))
    item = item[[*KEYS, "target"]]
    lens = tsfm_lens.load("chronos2-nano")
    alone = lens.run(item, AHEAD)
    run = lens.run(item, AHEAD, future=ahead[KEYS])
    np.testing.assert_array_equal(run.forecast.quantiles, alone.forecast.quantiles)
    stamps = run.batch.timestamps(0, AHEAD)
    assert stamps is not None
    assert stamps[-AHEAD:].tolist() == ahead.timestamp.tolist()
    known = lens.run(past, 3, future=future[[*KEYS, "promo"]][:9], targets=["target"])
    expect_error("ends 0 steps after", lambda: known.forecast)


def test_numbers_of_steps_as_text_are_told_their_type() -> None:
    """The cure of text beside numbers makes numbers, and works."""
    steps = np.arange(45)
    whole = pd.DataFrame({"step": steps, "y": 1.0 * steps, "promo": steps % 7.0})
    options = {"time_column": "step", "targets": ["y"], "known": ["promo"]}
    future = whole[40:].drop(columns="y").astype({"step": str})
    expect_error(
        r"future\['step'\].astype\('int64'\)",
        lambda: as_series(whole[:40], future=future, **options),
    )
    future["step"] = future["step"].astype("int64")
    assert "known" in as_series(whole[:40], future=future, **options).roles


@pytest.mark.parametrize("text", ["data", "future"])
def test_text_beside_dates_names_both_frames(text: str) -> None:
    """The frame whose times are text is named, and the cure works."""
    frames = dict(zip(("data", "future"), panel(), strict=True))
    frames["future"] = frames["future"][[*KEYS, "promo"]]
    dates = frames[text]["timestamp"]
    frames[text] = frames[text].assign(timestamp=dates.astype(str))

    def read() -> SeriesBatch:
        return as_series(frames["data"], future=frames["future"], targets=["target"])

    expect_error(f"holds text in {text} and datetime64", read)
    frames[text]["timestamp"] = pd.to_datetime(frames[text]["timestamp"])
    assert "known" in read().roles
    # categories of text are text
    frames[text] = frames[text].assign(timestamp=dates.astype(str).astype("category"))
    expect_error(f"holds text in {text} and datetime64", read)
    other = "future" if text == "data" else "data"
    texts = frames[other]["timestamp"].astype(str)
    as_read = dict(frames)
    frames[other] = frames[other].assign(timestamp=texts)
    assert "known" in read().roles
    frames.update(as_read)
    # dates of Python beside those of pandas are dates
    frames[text] = frames[text].assign(timestamp=dates.dt.date)
    assert "known" in read().roles


@pytest.mark.parametrize("n_ids", [1, 2])
@pytest.mark.parametrize("as_file", [False, True])
def test_empty_ends_name_the_option_that_reads_them(
    tmp_path: Path, as_file: bool, n_ids: int
) -> None:
    # rows without a target at the end, as forecasters write known covariates
    days = pd.date_range("2021-01-01", periods=40, freq="D")
    parts = [
        pd.DataFrame(
            {
                "id": f"shop {index}",
                "date": days,
                "sales": np.where(np.arange(40) < 34, np.arange(40) % 7.0, np.nan),
                "promo": np.arange(40) % 3.0,
                "visits": np.where(np.arange(40) < 34, 1.5, np.nan),
            }
        )
        for index in range(n_ids)
    ]
    data: Any = pd.concat(parts)
    if as_file:
        data.to_csv(tmp_path / "shops.csv", index=False)
        data = tmp_path / "shops.csv"
    notes = as_series(data, targets="sales").notes
    note = next(note for note in notes if "missing values at the end" in note)
    advice = re.search(r"known=\[([^]]*)\]", note)
    assert advice is not None
    # what has no value there is no known covariate; of a file, columns that are not
    # named are not read, so that the note cannot name them
    assert advice[1] == ("…" if as_file else "'promo'")
    followed = as_series(data, targets="sales", known=["promo"])
    assert [len(f) for f in followed.futures if f is not None] == [6] * n_ids
    assert not any("missing values at the end" in note for note in followed.notes)
    assert f"--known {advice[1].strip(chr(39))}" in translate_options(note)
