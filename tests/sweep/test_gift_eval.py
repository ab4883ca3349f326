"""GIFT-Eval: configurations, windows and metrics as the benchmark's, from folders in
its own layout.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from gluonts.dataset.common import ListDataset
from gluonts.dataset.split import split
from numpy.testing import assert_array_equal

from refusals import expect_error
from tsfm_lens.sweep import gift_eval, gift_eval_configs, gift_eval_folder
from tsfm_lens.sweep.data.gift_eval import gift_eval_horizon


def write_folder(
    folder: Path,
    series: Sequence[np.ndarray],
    freq: str,
    start: str = "2016-07-01",
    *,
    shards: int = 1,
    ids: Sequence[str] | None = None,
    unit: str = "s",
    backwards: bool = False,
) -> Path:
    """Write a stored dataset: shards of Arrow streams and their order in state.json."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{k:05d}-of-{shards:05d}.arrow" for k in range(shards)]
    if backwards:
        names = names[::-1]
    stamp = pd.Timestamp(start).to_datetime64().astype(f"datetime64[{unit}]")
    several = series[0].ndim > 1
    if several:
        kind = pa.list_(pa.list_(pa.float32()), len(series[0]))
    else:
        kind = pa.list_(pa.float32())
    for name, rows in zip(
        names, np.array_split(np.arange(len(series)), shards), strict=True
    ):
        values = [series[row].astype(np.float32) for row in rows]
        columns = {
            "item_id": pa.array([ids[row] if ids else f"item_{row}" for row in rows]),
            "start": pa.array(np.array([stamp] * len(rows)), pa.timestamp(unit)),
            "freq": pa.array([freq] * len(rows)),
            "target": pa.array(
                [list(value) for value in values] if several else values, kind
            ),
        }
        table = pa.table(columns)
        with (
            pa.OSFile(str(folder / name), "wb") as sink,
            pa.ipc.new_stream(sink, table.schema) as stream,
        ):
            # two batches a shard, where there are rows enough
            stream.write_table(table, max_chunksize=max(1, (len(rows) + 1) // 2))
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": name} for name in names]})
    )
    return folder


# rows of the benchmark's table: folder, key without the term, horizons by term, season,
# variates, domain
TABLE = """
m4_yearly m4_yearly/A 6 1 1 Econ/Fin
m4_weekly m4_weekly/W 13 1 1 Econ/Fin
m4_hourly m4_hourly/H 48 24 1 Econ/Fin
electricity/15T electricity/15T 48/480/720 96 1 Energy
solar/W solar/W 8 1 1 Energy
us_births/M us_births/M 12 12 1 Healthcare
temperature_rain_with_missing temperature_rain/D 30 1 1 Nature
LOOP_SEATTLE/5T loop_seattle/5T 48/480/720 288 1 Transport
SZ_TAXI/H sz_taxi/H 48 24 1 Transport
ett1/H ett1/H 48/480/720 24 7 Energy
jena_weather/10T jena_weather/10T 48/480/720 144 21 Nature
bizitobs_application bizitobs_application/10S 60/600/900 360 2 Web/CloudOps
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]
# frequencies as the stored files spell them, where it is not the key's
ANCHORED = {"A": "A-DEC", "Q": "Q-DEC", "W": "W-TUE"}


def walks(lengths: list[int], variates: int = 0, seed: int = 0) -> list[np.ndarray]:
    """Random walks in single precision, some with gaps; without an axis of variates if
    there are none.
    """
    rng = np.random.default_rng(seed)
    found = []
    for number, length in enumerate(lengths):
        walk = rng.normal(size=(variates, length) if variates else length).cumsum(
            axis=-1
        )
        gaps = rng.random(walk.shape) < 0.1 * (number % 2)
        found.append(np.where(gaps, np.nan, walk).astype(np.float32))
    return found


def test_the_97_configurations() -> None:
    configs = {config.key: config for config in gift_eval_configs()}
    assert [
        sum(c.term == term for c in configs.values())
        for term in ("short", "medium", "long")
    ] == [55, 21, 21]
    for folder, key, horizons, season, variates, domain in ROWS:
        of_key = [entry for entry in configs if entry.rpartition("/")[0] == key]
        assert [configs[entry].horizon for entry in of_key] == list(
            map(int, horizons.split("/"))
        )
        for item in map(configs.get, of_key):
            assert (item.folder, item.seasonality, item.variates) == (
                folder,
                int(season),
                int(variates),
            )
            assert item.domain == domain


def test_whole_benchmark_is_read_from_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole benchmark is read from the layout of its folders."""
    for config in gift_eval_configs():
        # the last term of a folder is the longest
        series = walks(
            [config.horizon * 3 + 8, config.horizon * 3 + 5],
            config.variates if config.variates > 1 else 0,
        )
        write_folder(
            tmp_path / config.folder, series, ANCHORED.get(config.freq, config.freq)
        )
    monkeypatch.setenv("GIFT_EVAL", str(tmp_path))
    found = gift_eval()
    for config, item in zip(gift_eval_configs(), found, strict=True):
        assert (item.name, item.horizon, item.seasonality) == (
            config.key,
            config.horizon,
            config.seasonality,
        )
        assert item.domain == config.domain
        # stamped by the day after the one on which the stored weeks end
        assert item.freq == "W-WED" or config.freq != "W"
        assert {w.n_variates for w in item.windows} == {config.variates}
        assert {w.item for w in item.windows} == {"item_0", "item_1"}
    long = [config.key for config in gift_eval_configs() if config.term == "long"]
    assert [entry.name for entry in gift_eval(configs="*/long")] == long
    named = [entry.name for entry in gift_eval(configs=("ett1/H", "m4_w*"))]
    assert named == [
        "m4_weekly/W/short",
        *(f"ett1/H/{term}" for term in ("short", "medium", "long")),
    ]


@pytest.mark.parametrize(
    ("folder", "freq", "variates"),
    [("solar/H", "H", 0), ("m4_daily", "D", 0), ("ett1/D", "D", 7)],
)
@pytest.mark.parametrize("shards", [1, 3])
def test_windows_are_the_benchmarks(
    tmp_path: Path, folder: str, freq: str, variates: int, shards: int
) -> None:
    series = walks([430, 351, 517, 402, 380], variates)
    write_folder(
        tmp_path / folder,
        series,
        freq,
        "2016-07-01 03:00",
        shards=shards,
        backwards=True,
    )
    (found,) = gift_eval(
        tmp_path, f"{folder}/*short" if "/" in folder else f"{folder}/*"
    )
    horizon = found.horizon
    windows = {"solar/H": 1, "m4_daily": 1, "ett1/D": 2}[folder]
    entries = ListDataset(
        [
            {"start": "2016-07-01 03:00", "target": s, "item_id": f"item_{i}"}
            for i, s in enumerate(series)
        ],
        freq="h" if freq == "H" else freq,
        one_dim_target=not variates,
    )
    expected = list(
        split(entries, offset=-horizon * windows)[1].generate_instances(
            horizon, windows=windows
        )
    )
    assert len(found) == len(expected)
    for ours, (context, label) in zip(found.windows, expected, strict=True):
        assert ours.item == context["item_id"]
        assert ours.start == context["start"].start_time
        assert_array_equal(ours.context, np.atleast_2d(context["target"]))
        assert_array_equal(ours.label, np.atleast_2d(label["target"]))
        assert ours.context.dtype == np.float32


def test_other_datasets_in_the_layout(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "own", walks([100, 101], 2), "W-WED", ids=["x", "x"], unit="ns"
    )
    (found,) = gift_eval_folder(folder)
    assert (found.name, found.freq, found.horizon, found.seasonality) == (
        "own/short",
        "W-THU",
        8,
        1,
    )
    assert [w.item for w in found.windows[::2]] == ["x", "x#2"]
    assert found.windows[0].start == pd.Timestamp("2016-06-30")
    (other,) = gift_eval_folder(
        folder, name="mine", horizon=20, freq="H", domain="tests"
    )
    assert (other.name, other.freq, other.horizon, other.seasonality) == (
        "mine",
        "h",
        20,
        24,
    )
    (long,) = gift_eval_folder(
        write_folder(tmp_path / "m4_own", walks([800]), "H"), "long"
    )
    assert (long.horizon, len(long)) == (720, 1)


def test_short_series_are_skipped_and_named(tmp_path: Path) -> None:
    """Series that are too short are left out and named."""
    folder = write_folder(tmp_path / "restaurant", walks([30, 100, 31]), "D")
    (found,) = gift_eval_folder(folder)
    assert [w.item for w in found.windows] == ["item_1", "item_2"]
    assert found.windows[1].context.shape == (1, 1)
    assert found.notes == ("item_0: left out, its 30 steps are too few for 1 windows",)
    expect_error(
        "every series of 'restaurant' is shorter than 701 steps",
        gift_eval_folder,
        folder,
        horizon=700,
    )


def test_where_is_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GIFT_EVAL", raising=False)
    expect_error("environment variable GIFT_EVAL", gift_eval)
    monkeypatch.setenv("GIFT_EVAL", str(tmp_path / "nowhere"))
    expect_error(r"there is no folder .*nowhere', to which GIFT_EVAL is set", gift_eval)
    write_folder(tmp_path / "ett1/H", walks([300], 7), "H")
    for way in ("error", "skip"):
        expect_error(
            r"lacks 97 of 97 .* m4_yearly, m4_quarterly",
            gift_eval,
            tmp_path / "ett1",
            missing=way,
        )
    expect_error(
        r"lacks 2 of 3 configurations: no folder solar/D, ett1/D",
        gift_eval,
        tmp_path,
        ("ett1/[HD]/short", "solar/D"),
    )
    with pytest.warns(
        UserWarning, match=r"lacks 2 of 3 configurations: no folder solar/D, ett1/D"
    ):
        found = gift_eval(tmp_path, ("ett1/[HD]/short", "solar/D"), missing="skip")
    assert [item.name for item in found] == ["ett1/H/short"]
    expect_error(
        r"'ett1/h/short'\. Closest: .*ett1/H/short", gift_eval, tmp_path, "ett1/h/short"
    )


def test_other_data_than_the_configurations(tmp_path: Path) -> None:
    write_folder(tmp_path / "ett1/H", walks([300], 7), "15T")
    expect_error(
        "has frequency '15T', expected 'H' for ett1/H/short",
        gift_eval,
        tmp_path,
        "ett1/H/short",
    )
    write_folder(tmp_path / "ett2/H", walks([300], 6), "H")
    expect_error(
        "has 6 variates, expected 7 for ett2/H/short",
        gift_eval,
        tmp_path,
        "ett2/H/short",
    )
    expect_error(
        "'moon' is not a frequency",
        gift_eval_folder,
        write_folder(tmp_path / "moon", walks([300]), "moon"),
    )
    expect_error("no horizon for frequency 'B'", gift_eval_horizon, "own", "B")
    expect_error("Closest: short", gift_eval_horizon, "own", "H", "shrt")


def test_damaged_folders(tmp_path: Path) -> None:
    full = write_folder(tmp_path / "own", walks([60] * 5), "D", shards=2)

    def broken(name: str) -> Path:
        return Path(shutil.copytree(full, tmp_path / name))

    (no_state := broken("a") / "state.json").unlink()
    expect_error("is not a dataset of save_to_disk", gift_eval_folder, no_state.parent)
    (odd := broken("b") / "state.json").write_text("{}")
    expect_error("lists no data files", gift_eval_folder, odd.parent)
    (shard := broken("c") / "data-00001-of-00002.arrow").unlink()
    expect_error(
        r"data-00001-of-00002\.arrow is not a complete Arrow stream",
        gift_eval_folder,
        shard.parent,
    )
    expect_error(
        "is not a dataset of save_to_disk", gift_eval_folder, tmp_path / "none"
    )


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """A stream that ends between two batches would otherwise read as a short one."""
    folder = write_folder(tmp_path / "own", walks([40] * 4), "D")
    file = folder / "data-00000-of-00001.arrow"
    full = file.read_bytes()
    assert len(gift_eval_folder(folder, horizon=5)[0]) == 4
    for length in range(0, len(full), 8):
        file.write_bytes(full[:length])
        expect_error(
            r"data-00000-of-00001\.arrow .*Copy it again",
            gift_eval_folder,
            folder,
            horizon=5,
        )


ODD = {
    "no target": (
        pa.table({"item_id": ["a"], "values": [[1.0]]}),
        "no column 'target'; it has item_id, values",
    ),
    "null target": (
        pa.table({"item_id": ["a", "b"], "target": [[1.0], None]}),
        "series 'b' has no target",
    ),
    "ragged": (
        pa.table({"target": [[[1.0, 2.0], [1.0]]]}),
        r"series '0' has variates of \[1, 2\] steps",
    ),
    "text": (pa.table({"target": [["x"]]}), "holds string, expected numbers"),
    "scalar": (pa.table({"target": [1.0]}), "holds double, expected lists"),
    "no rows": (
        pa.table({"target": pa.array([], pa.list_(pa.float32()))}),
        "has no series",
    ),
    "no freq": (pa.table({"target": [[1.0, 2.0]]}), "no column 'freq'"),
    "two freqs": (
        pa.table({"target": [[1.0] * 9] * 2, "freq": ["D", "H"]}),
        "different frequencies: D, H",
    ),
}


@pytest.mark.parametrize(("table", "message"), ODD.values(), ids=ODD)
def test_odd_columns(tmp_path: Path, table: pa.Table, message: str) -> None:
    folder = write_folder(tmp_path / "odd", walks([9]), "D")
    with pa.ipc.new_stream(
        str(folder / "data-00000-of-00001.arrow"), table.schema
    ) as stream:
        stream.write_table(table)
    expect_error(message, gift_eval_folder, folder, horizon=2)


@pytest.mark.parametrize("values", [[1.0, None, 3.0, 4.0], [1, 2, 3, 4]])
def test_nulls_integers_and_missing_ids_read(tmp_path: Path, values: list) -> None:
    """Nulls and integers are read as numbers; rows without an id are numbered."""
    folder = write_folder(tmp_path / "odd", walks([9]), "D")
    table = pa.table({"target": [values] * 3, "freq": ["D"] * 3})
    with pa.ipc.new_stream(
        str(folder / "data-00000-of-00001.arrow"), table.schema
    ) as stream:
        stream.write_table(table, max_chunksize=2)
    (found,) = gift_eval_folder(folder, horizon=1)
    assert [(window.item, window.start) for window in found.windows] == [
        ("0", None),
        ("1", None),
        ("2", None),
    ]
    assert_array_equal(found.windows[0].context[0], np.array(values[:3], dtype=float))
