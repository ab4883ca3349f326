"""What is declared a category stays one, from every carrier; quantities in text are
never coded in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tsfm_lens
from refusals import expect_error
from tiny_lenses import fresh
from tsfm_lens import explain
from tsfm_lens.data import SeriesBatch, as_series, read_series
from tsfm_lens.models import Lens
from tsfm_lens.testing import assert_close

STEPS = 40
AHEAD = 6
LEVELS = [0.1, 0.5, 0.9]
KEYS = {"id_column": "id", "time_column": "timestamp"}
KINDS: dict[str, list[Any]] = {
    "digits": ["3", "1", "10", "2"],
    "leading zeros": ["01", "1", "001"],
    "decimals": ["1.5", "-2", "1e3"],
    "words": ["tv", "none", "radio"],
    "words beside digits": ["1", "2", "H"],
    "truth values": [True, False, False],
    "codes": [7, 3, 11],
}


@pytest.fixture(scope="module")
def nano() -> Lens:
    return tsfm_lens.load("chronos2-nano")


def sales(kind: Sequence[Any], dtype: Any = None, gaps: bool = False) -> pd.DataFrame:
    """Two items whose targets go down where the covariate goes up; the targets are
    empty over the future.
    """
    rng = np.random.default_rng(len(kind))
    parts = []
    for name in ("north", "south"):
        positions = rng.integers(len(kind), size=STEPS + AHEAD)
        # every level occurs in the past of each item
        positions[: len(kind)] = range(len(kind))
        cells = np.array(kind, dtype=object)[positions]
        if gaps:
            cells[[5, 17]] = None
        target = 20 - 3.0 * positions + rng.normal(size=len(positions)) / 10
        target[STEPS:] = np.nan
        stamps = pd.date_range("2024-01-01", periods=len(positions))
        other = rng.normal(size=len(positions)) + positions
        other[STEPS:] = np.nan
        frame = pd.DataFrame({"id": name, "timestamp": stamps, "y": target, "z": other})
        parts.append(frame.assign(kind=pd.Series(cells, dtype=object)))
    full = pd.concat(parts, ignore_index=True)
    if dtype is None:
        return full
    return full.astype({"kind": dtype})


def predicted(
    lens: Lens, past: pd.DataFrame, future: pd.DataFrame, targets: Sequence[str]
) -> np.ndarray:
    """Forecasts (target of an item, quantile, step) of the library's own reading of
    frames.
    """
    found = lens.native.predict_df(
        past.reset_index(drop=True),
        future_df=future.reset_index(drop=True),
        id_column="id",
        target=list(targets) if len(targets) > 1 else targets[0],
        prediction_length=AHEAD,
        quantile_levels=LEVELS,
    )
    values = found[list(map(str, LEVELS))].to_numpy()
    return values.reshape(-1, AHEAD, len(LEVELS)).transpose(0, 2, 1)


def of_library(
    lens: Lens, frame: pd.DataFrame, targets: Sequence[str] = ("y",)
) -> np.ndarray:
    ahead = frame["y"].isna()
    unused = [name for name in ("y", "z") if name not in targets]
    past = frame[~ahead]
    future = frame[ahead]
    return predicted(
        lens, past.drop(columns=unused), future.drop(columns=["y", "z"]), targets
    )


def of_lens(lens: Lens, batch: SeriesBatch) -> np.ndarray:
    return lens.forecast(batch, AHEAD, quantiles=LEVELS).quantiles[batch.is_target]


def assert_alike(found: np.ndarray, expected: np.ndarray) -> None:
    assert_close(found, expected, depth=1000, dtype=np.float32)


def read(data: Any, **options: Any) -> SeriesBatch:
    if "variates" in options:
        names = options
    else:
        names = {"targets": ["y"], **options}
    return as_series(data, known=["kind"], **KEYS, **names)


def arrow(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


def polars(frame: pd.DataFrame, kind: Callable[[Any], Any] | None = None) -> Any:
    library = pytest.importorskip("polars")
    table = library.from_arrow(arrow(frame))
    if kind is None:
        return table
    return table.with_columns(library.col("kind").cast(kind(library)))


def dictionary(frame: pd.DataFrame) -> pa.Table:
    table = arrow(frame)
    position = table.schema.get_field_index("kind")
    return table.set_column(position, "kind", table["kind"].dictionary_encode())


def parquet(frame: pd.DataFrame, folder: Path) -> SeriesBatch:
    pq.write_table(arrow(frame), folder / "sales.parquet")
    return read_series(folder / "sales.parquet", targets="y", known="kind", **KEYS)


def entries(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Items as Chronos-2's dicts."""
    items = []
    for name, rows in frame.groupby("id", sort=False):
        cells = rows["kind"].to_numpy()
        past = {"kind": cells[:STEPS]}
        future = {"kind": cells[STEPS:]}
        target = rows["y"].to_numpy()[:STEPS]
        items.append(
            {
                "item_id": name,
                "target": target,
                "past_covariates": past,
                "future_covariates": future,
            }
        )
    return items


CARRIERS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "objects": lambda frame: frame,
    "pandas strings": lambda frame: frame.astype({"kind": "string"}),
    "pandas categories": lambda frame: frame.astype({"kind": "category"}),
    "Arrow": arrow,
    "Arrow dictionary": dictionary,
    "pandas on Arrow": lambda frame: arrow(frame).to_pandas(types_mapper=pd.ArrowDtype),
    "polars": polars,
    "polars enum": lambda frame: polars(
        frame, lambda library: library.Enum(sorted(frame["kind"].dropna().unique()))
    ),
}
OF_TEXT = [name for name, kind in KINDS.items() if isinstance(kind[0], str)]


@pytest.mark.parametrize("name", OF_TEXT)
def test_text_stays_categories_in_every_carrier(
    nano: Lens, name: str, tmp_path: Path
) -> None:
    frame = sales(KINDS[name], gaps=True)
    expected = of_library(nano, frame)
    batches = {carrier: read(make(frame)) for carrier, make in CARRIERS.items()}
    batches |= {
        "Parquet": parquet(frame, tmp_path),
        "entries": as_series(entries(frame)),
    }
    for carrier, batch in batches.items():
        assert batch.categories[1] is not None, carrier
        assert {*batch.categories[1]} == {*KINDS[name]}, carrier
        assert_alike(of_lens(nano, batch), expected)
        assert any(
            "'kind'" in note and all(repr(level) in note for level in KINDS[name])
            for note in batch.notes
        )


@pytest.mark.parametrize("name", ["truth values", "codes"])
@pytest.mark.parametrize("dtype", ["declared", "natural", "category", "nullable"])
def test_truth_values_keep_their_type(nano: Lens, name: str, dtype: str) -> None:
    """Truth values and codes are read as their type says."""
    is_truth = name == "truth values"
    dtypes = {"category": "category", "nullable": "boolean" if is_truth else "Int64"}
    frame = sales(KINDS[name], dtypes.get(dtype, bool if is_truth else int))
    if dtype == "declared":
        declared = {"categories": "kind"}
    else:
        declared = {}
    batch = read(frame, **declared)
    if is_truth:
        levels = ("False", "True")
    else:
        levels = ("3", "7", "11")
    coded = is_truth or dtype in ("declared", "category")
    assert batch.categories[1] == (levels if coded else None)
    reference = frame
    if declared:
        reference = frame.astype({"kind": "category"})
    assert_alike(of_lens(nano, batch), of_library(nano, reference))
    if is_truth:
        # a model that knows no categories can read them
        np.testing.assert_array_equal(
            np.r_[batch.values[1], batch.futures[1]],
            frame["kind"].astype(float)[: STEPS + AHEAD],
        )
        entry = as_series(entries(frame))
        assert_alike(of_lens(nano, entry), of_library(nano, frame))


@pytest.mark.parametrize("levels", [[11, 3, 7], ["b", "c", "a"], [2.0, 1.0]], ids=str)
def test_several_targets_share_category_codes(nano: Lens, levels: list[Any]) -> None:
    """With several targets, categories are coded as the library codes them."""
    frame = sales(levels)
    # the items have not the same levels, and the codes are those of all
    frame.loc[(frame["id"] == "south") & (frame["kind"] == levels[-1]), "kind"] = (
        levels[0]
    )
    for dtype in (pd.CategoricalDtype([*levels, "spare"]), "category"):
        declared = frame.astype({"kind": dtype})
        batch = read(declared, variates=["y", "z"])
        assert_alike(of_lens(nano, batch), of_library(nano, declared, ["y", "z"]))


@pytest.mark.parametrize("name", ["digits", "codes"])
@pytest.mark.parametrize("future", ["same", "fewer", "new", "plain"])
def test_future_frame_keeps_category_declaration(
    nano: Lens, name: str, future: str
) -> None:
    """A frame of the future keeps the categories declared for the past."""
    frame = sales(KINDS[name]).drop(columns="z")
    ahead = frame["y"].isna()
    past = frame[~ahead].astype({"kind": "category"})
    later = frame[ahead]
    later = later.drop(columns="y")
    if future == "fewer":
        later = later.assign(kind=KINDS[name][0])
    if future == "new":
        later.loc[later.index[0], "kind"] = 99 if name == "codes" else "99"
    if future != "plain":
        later = later.astype({"kind": "category"})
    batch = as_series(past, future=later, targets=["y"], **KEYS)
    assert_alike(of_lens(nano, batch), predicted(nano, past, later, ["y"]))


@pytest.mark.parametrize("later_carrier", CARRIERS)
def test_past_and_future_containers_may_differ(later_carrier: str) -> None:
    """The past and the future may come in different kinds of containers."""
    frame = sales(KINDS["leading zeros"])
    ahead = frame["y"].isna()
    later = CARRIERS[later_carrier](
        frame[ahead].drop(columns=["y", "z"]).reset_index(drop=True)
    )
    for carrier, make in CARRIERS.items():
        past = make(frame[~ahead].reset_index(drop=True))
        batch = as_series(past, future=later, targets=["y"], **KEYS)
        levels = batch.categories[1]
        assert levels is not None, carrier
        assert {*levels} == {*KINDS["leading zeros"]}, carrier
        for position, name in ((1, "north"), (3, "south")):
            codes = np.r_[batch.values[position], batch.futures[position]].astype(int)
            assert [levels[code] for code in codes] == frame.loc[
                frame["id"] == name, "kind"
            ].tolist(), carrier
        assert any("'kind'" in note and "'001'" in note for note in batch.notes), (
            carrier
        )


def test_timestral_reads_frame_as_codes() -> None:
    """Timestral reads a frame as it reads entries of codes."""
    lens = fresh("timestral")
    frame = sales(KINDS["digits"])
    items = entries(frame)
    targets = np.stack([item["target"] for item in items])[:, None]
    full = (
        np.unique(frame["kind"], return_inverse=True)[1].reshape(2, 1, -1).astype(float)
    )
    theirs = lens.native.forecast(
        targets, AHEAD, categorical_known_covariates=full, symmetric_averaging=False
    )
    expected = theirs.quantiles.flatten(0, 1).transpose(1, 2)
    for batch in (
        read(frame),
        as_series(items),
        read(frame.astype({"kind": int}), categories=["kind"]),
    ):
        np.testing.assert_array_equal(
            lens.forecast(batch, AHEAD).quantiles[batch.is_target], expected
        )


@pytest.mark.parametrize("name", ["digits", "decimals", "truth values"])
def test_text_files_hold_numbers_unless_declared(
    nano: Lens, name: str, tmp_path: Path
) -> None:
    """Columns of text files are numbers unless they are declared categories."""
    frame = sales(KINDS[name])
    frame.to_csv(tmp_path / "sales.csv", index=False)
    how: dict[str, Any] = {"targets": "y", "known": "kind", **KEYS}
    plain = read_series(tmp_path / "sales.csv", **how)
    np.testing.assert_array_equal(plain.values[1], frame["kind"].astype(float)[:STEPS])
    assert (plain.categories[1] is not None) == (name == "truth values")
    declared = read_series(tmp_path / "sales.csv", categories="kind", **how)
    expected = of_library(nano, frame.astype({"kind": str}))
    assert_alike(of_lens(nano, declared), expected)


def test_truth_words_are_truth_values() -> None:
    """Words for truth values are read as truth values."""
    frame = sales(KINDS["truth values"])
    text = read(frame.assign(kind=frame["kind"].astype(str).str.lower()))
    assert text.categories[1] == ("False", "True")
    np.testing.assert_array_equal(text.values[1], read(frame).values[1])


QUANTITIES = [
    ["$9.50", "$10.00"],
    ["12 %", "5%"],
    ["1 000 kg", "2 500 kg"],
    ["(5.00)", "3.00"],
    ["9,50 zł", "8,00 zł"],
    ["1,234.50", "2.5"],
    ["9.50 EUR", "8 USD"],
    ["5", "7", "9 %"],
    ["3-", "4-"],
]
LABELS = [
    ["Q1", "Q2"],
    ["10:30", "11:30"],
    ["18-25", "26-40"],
    ["x", "9 %", "y", "z"],
    ["2024-W05", "2024-W06"],
]


def small(
    cells: Sequence[str], carrier: str, folder: Path
) -> tuple[Callable[..., SeriesBatch], Any]:
    """A reader and a table of a few rows in a carrier."""
    frame = pd.DataFrame(
        {"y": np.arange(12.0), "price": np.resize(np.array(cells, dtype=object), 12)}
    )
    how: dict[str, Any] = {"targets": ["y"], "past": ["price"]}
    if carrier == "file":
        frame.to_csv(folder / "prices.csv", index=False, sep=";")
        return (
            lambda **more: read_series(
                folder / "prices.csv", delimiter=";", **how, **more
            )
        ), frame
    if carrier == "entry":
        item = {"target": frame["y"], "past_covariates": {"price": frame["price"]}}
        return (lambda **more: as_series([item], **more)), frame
    table: Any = {"polars": polars, "Arrow": arrow}.get(carrier, lambda frame: frame)(
        frame
    )
    return (lambda **more: as_series(table, **how, **more)), frame


@pytest.mark.parametrize("carrier", ["pandas", "Arrow", "polars", "file", "entry"])
def test_refused_text_quantities_come_with_advice(carrier: str, tmp_path: Path) -> None:
    """Quantities written as text are refused, and the advice given works."""
    for cells in QUANTITIES:
        call, frame = small(cells, carrier, tmp_path)
        expect_error("'price'.* holds .*", call)
        batch = call(categories=["price"])
        levels = batch.categories[1]
        assert levels == tuple(sorted(set(cells))), cells
        assert [levels[int(code)] for code in batch.values[1]] == frame[
            "price"
        ].tolist()
        if carrier == "pandas":
            declared = frame.astype({"price": "category"})
            assert (
                as_series(declared, targets=["y"], past=["price"]).categories[1]
                == levels
            )


@pytest.mark.parametrize("carrier", ["pandas", "Arrow", "polars", "file", "entry"])
def test_labels_with_digits_are_categories(carrier: str, tmp_path: Path) -> None:
    for cells in LABELS:
        call, _ = small(cells, carrier, tmp_path)
        batch = call()
        assert batch.categories[1] == tuple(sorted(set(cells)))
        assert any(repr(cells[0]) in note for note in batch.notes)


def test_words_beside_numbers_are_refused(
    tmp_path: Path,
) -> None:
    """Words among the numbers of a file are refused, and the advice given works."""
    call, frame = small(["5", "closed", "7"], "file", tmp_path)
    expect_error(r"'price' holds 'closed' in row 3 .*'5'.*categories=\['price'\]", call)
    assert call(categories=["price"]).categories[1] == ("5", "7", "closed")
    frame["price"] = frame["price"].replace({"closed": None})
    frame.to_csv(tmp_path / "prices.csv", index=False, sep=";")
    np.testing.assert_array_equal(call().values[1][:3], [5, np.nan, 7])


def test_only_covariates_are_declared() -> None:
    frame = pd.DataFrame({"y": np.arange(9.0), "code": [1, 2, 3] * 3})
    item = {"target": np.arange(9.0), "past_covariates": {"code": [1, 2, 3] * 3}}
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (frame, {"targets": ["y"], "categories": ["code"]}, "'code'.* no covariate"),
        (frame, {"past": ["code"], "categories": ["cod"]}, "'cod'.*'code'"),
        ([item], {"categories": ["cod"]}, "'cod'.*'code'"),
        (np.arange(9.0), {"categories": ["code"]}, "categories=.*names columns"),
    ]
    for data, options, text in cases:
        expect_error(text, as_series, data, **options)
    assert as_series([item], categories="code").categories[1] == ("1", "2", "3")


def test_levels_cover_all_entries(nano: Lens) -> None:
    """The levels of entries are those of all entries together."""
    rng = np.random.default_rng(3)
    pools = (["a", "c"], ["b", "c", "d"], ["d", "a"])
    items = [
        {
            "target": rng.normal(size=(2, 30)),
            "past_covariates": {"kind": np.resize(pool, 30)},
        }
        for pool in pools
    ]
    batch = as_series(items)
    assert batch.categories[2::3] == (("a", "b", "c", "d"),) * 3
    theirs = np.stack(nano.native.predict(items, prediction_length=AHEAD))
    ours = nano.forecast(batch, AHEAD).quantiles[batch.is_target]
    assert_alike(ours, theirs.reshape(ours.shape[0], -1, AHEAD)[:, -ours.shape[1] :])


def test_truth_values_have_words_or_numbers(nano: Lens) -> None:
    """A truth value can be named by its word or by its number."""
    run = nano.run(read(sales(KINDS["truth values"])), AHEAD).select("north")
    effects = [
        explain.what_if(run, {"kind": edit}, routes=False)["changed_forecast"].values
        for edit in ("=True", "1", 1, True, "true", [1] * AHEAD)
    ]
    for effect in effects[1:]:
        np.testing.assert_array_equal(effect, effects[0])
    other = explain.what_if(run, {"kind": 0}, routes=False)["changed_forecast"].values
    assert np.abs(other - effects[0]).max() > 1e-3


@pytest.mark.parametrize("targets", [["y"], ["y", "z"]])
@pytest.mark.parametrize("name", ["words", "truth values"])
def test_categories_are_numbered_over_whole_history(
    name: str, targets: list[str]
) -> None:
    """A run numbers the categories by the whole history."""
    lens = fresh("chronos-2")
    frame = sales(KINDS[name], gaps=name == "words")
    early = frame.groupby("id").cumcount()
    steps = STEPS - 10
    # the categories were worth something else before the steps that the model sees
    frame["y"] = np.where(
        early < STEPS - steps, 90 * pd.factorize(frame["kind"])[0], frame["y"]
    )
    lens.adapter.context_length = lens.adapter.settings.context_length = steps
    expected = of_library(lens, frame, targets)
    batch = read(frame, **({"variates": targets} if len(targets) > 1 else {}))
    run = lens.run(batch, AHEAD)
    assert max(run.batch.lengths) == steps
    for found in (batch, run.batch):
        assert_alike(of_lens(lens, found), expected)
    assert_alike(run.point[run.batch.is_target], expected[:, 1])
    earlier = batch.split(AHEAD)[0]
    window = lens.run(batch, AHEAD, holdout=True, windows=2).batch
    rows = range(len(batch))
    assert_alike(of_lens(lens, window.select(rows)), of_lens(lens, earlier))
