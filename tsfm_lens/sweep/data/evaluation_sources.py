"""Evaluation sets from a user's own series, the bundled ones, and gluonts datasets.

Read :func:`holdout_sets` first. Reading files is left to :mod:`tsfm_lens.data`, and the
cutting of windows to :mod:`tsfm_lens.sweep.data.evaluation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.core.errors import InputError
from tsfm_lens.data.batch import SeriesBatch, find_season
from tsfm_lens.data.bundled import bundled, bundled_info, bundled_names
from tsfm_lens.data.coerce import as_series
from tsfm_lens.data.files import local_path
from tsfm_lens.data.frequencies import find_start, parse_frequency, stamp_frequency
from tsfm_lens.data.stored import gluonts_rows
from tsfm_lens.data.values import to_floats
from tsfm_lens.sweep.data.evaluation import EvaluationSet, Window, scored_windows


def holdout_sets(
    series: Any,
    horizon: int,
    windows: int = 1,
    stride: int | None = None,
    name: str | None = None,
    **reading: Any,
) -> list[EvaluationSet]:
    """Cut rolling windows at the end of any series, or of bundled ones.

    There is one set for each frequency and season, or for each bundled series.

    Args:
        series: names of bundled series, or anything that
            :func:`tsfm_lens.data.as_series` takes.
        horizon: steps of each label, the values that a forecast is scored against.
        windows: number of windows of each item.
        stride: steps from one label to the next; the horizon if None, so that labels do
            not overlap.
        name: name of the set; the file's name or "series" if None. Sets of bundled
            series are named ``bundled/…``.
        reading: options of ``as_series``, such as ``freq``, ``variates`` and
            ``seasonality``.

    Returns:
        The sets, with their windows.

    Raises:
        InputError: the series cannot be read or are too short; the message names the
            series.
        UnknownNameError: an entry in a list of names is no bundled series.

    Example:
        >>> sets = sweep.holdout_sets(["co2", "nile"], horizon=12)
        >>> [evaluation_set.name for evaluation_set in sets]
        ['bundled/co2', 'bundled/nile']
    """
    rolling: dict[str, Any] = {
        "horizon": horizon,
        "windows": windows,
        "stride": stride,
    }
    # any other text is a path; in a list, where paths are not taken, an unknown name is
    # an error
    if isinstance(series, str) and series in bundled_names():
        series = [series]
    if (
        isinstance(series, list | tuple)
        and series
        and all(isinstance(item, str) for item in series)
    ):
        sets = []
        for info in [bundled_info(item) for item in series]:
            sets_of_series = _make_sets(
                bundled(info.name),
                f"bundled/{info.name}",
                source=info.source,
                domain=info.field,
                **rolling,
            )
            # a bundled series has one frequency and one season, so one set
            sets.append(sets_of_series[0])
        return sets
    default_name = "series"
    source = "series of the caller"
    if isinstance(series, str | Path) and Path(series).name:
        file = Path(series).name
        default_name = file.split(".")[0]
        source = f"file {file}"
    batch = as_series(series, **reading)
    return _make_sets(batch, name or default_name, source=source, **rolling)


def _make_sets(
    batch: SeriesBatch,
    name: str,
    *,
    horizon: int,
    windows: int,
    stride: int | None,
    source: str,
    domain: str = "",
) -> list[EvaluationSet]:
    """Make one set for each frequency and season length of a batch."""
    windows_by_season: dict[tuple[str | None, int], list[Window]] = {}
    notes_by_season: dict[tuple[str | None, int], list[str]] = {}
    for item, rows in batch.rows_by_group().items():
        # the series of an item share time axis, frequency and season
        first = rows[0]
        values = np.stack([batch.values[row] for row in rows])
        item_windows, remarks = scored_windows(
            item,
            values,
            horizon=horizon,
            windows=windows,
            stride=stride,
            start=batch.starts[first],
        )
        # a set has one frequency and one season, by which its errors are scaled
        freq_and_season = batch.freqs[first], batch.seasonalities[first]
        notes_by_season.setdefault(freq_and_season, []).extend(remarks)
        windows_by_season.setdefault(freq_and_season, []).extend(item_windows)
    freqs = [freq for freq, _ in windows_by_season]
    sets = []
    for (freq, season), season_windows in windows_by_season.items():
        # names tell several sets apart by frequency, and by season where that is shared
        set_name = name
        if len(freqs) > 1:
            set_name += f"/{freq or 'unknown'}"
        if freqs.count(freq) > 1:
            set_name += f"/season-{season}"
        sets.append(
            EvaluationSet(
                name=set_name,
                windows=tuple(season_windows),
                horizon=horizon,
                freq=freq,
                seasonality=season,
                domain=domain,
                source=source,
                notes=(*batch.notes, *notes_by_season[freq, season]),
            )
        )
    return sets


def gluonts_set(
    dataset: Iterable[Mapping[str, Any]],
    horizon: int,
    windows: int = 1,
    stride: int | None = None,
    name: str = "gluonts",
    *,
    freq: str | None = None,
    seasonality: int | None = None,
    domain: str = "",
    source: str = "gluonts dataset of the caller",
) -> list[EvaluationSet]:
    """Cut rolling windows at the end of a gluonts dataset, as one set.

    Args:
        dataset: entries with "target" (time,) or (variate, time), "start" and perhaps
            "item_id".
        horizon: steps of each label, the values that a forecast is scored against.
        windows: number of windows of each item.
        stride: steps from one label to the next; the horizon if None, so that labels do
            not overlap.
        name: name of the set.
        freq: frequency, in any pandas spelling; that of the first entry's period if
            None.
        seasonality: season length in steps; gluonts' own for the frequency if None.
        domain: what field the series are of, in words.
        source: where the series come from, in words.

    Returns:
        The one set, in a list.

    Raises:
        InputError: an entry has no target or too few steps, an id occurs twice, or
            there is no entry.

    Example:
        >>> entry = {"target": np.arange(48.0), "start": pd.Period("2020-01", freq="M")}
        >>> sweep.gluonts_set([entry], horizon=12, windows=2)[0].seasonality
        12
    """
    all_windows: list[Window] = []
    ids: set[str] = set()
    notes: list[str] = []
    for number, entry in enumerate(dataset):
        item = str(entry.get("item_id", number))
        if "target" not in entry:
            raise InputError(
                f"entry {item!r} of {name!r} has no 'target'; it has"
                f" {', '.join(map(str, entry))}"
            )
        # rows of a sweep are told apart by item
        if item in ids:
            raise InputError(
                f"{name!r} has item {item!r} more than once; give each entry its own"
                " 'item_id'"
            )
        ids.add(item)
        start = entry.get("start")
        period_freq = start.freqstr if isinstance(start, pd.Period) else None
        # the first entry that has a frequency decides for all
        freq = freq or period_freq or entry.get("freq")
        # (variate, time)
        values = np.atleast_2d(to_floats(entry["target"], f"series {item!r}"))
        first_stamp = None
        if start is not None and freq:
            first_stamp = find_start(start, freq)
        item_windows, remarks = scored_windows(
            item,
            values,
            horizon=horizon,
            windows=windows,
            stride=stride,
            start=first_stamp,
        )
        all_windows += item_windows
        notes += remarks
    alias = None
    if freq:
        alias = stamp_frequency(freq)
    return [
        EvaluationSet(
            name=name,
            windows=tuple(all_windows),
            horizon=horizon,
            freq=alias,
            seasonality=seasonality or find_season(alias),
            domain=domain,
            source=source,
            notes=tuple(notes),
        )
    ]


def gluonts_file(
    path: str | Path,
    horizon: int,
    windows: int = 1,
    stride: int | None = None,
    name: str | None = None,
    *,
    freq: str,
    seasonality: int | None = None,
    domain: str = "",
) -> list[EvaluationSet]:
    """Cut rolling windows at the end of a dataset on disk.

    ``path`` is a file, or a folder of files, that gluonts' FileDataset reads; the other
    arguments are those of :func:`gluonts_set`.

    Returns:
        The one set, in a list.
    """
    location = local_path(path)
    # a wrong frequency is refused before the files are read
    parse_frequency(freq)
    entries = [
        entry for file in _gluonts_files(location) for entry in gluonts_rows(file)
    ]
    options: dict[str, Any] = {
        "freq": freq,
        "seasonality": seasonality,
        "domain": domain,
    }
    name = name or location.name.split(".")[0]
    source = f"gluonts dataset {location.name}"
    try:
        return gluonts_set(
            entries, horizon, windows, stride, name, source=source, **options
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _gluonts_files(location: Path) -> list[Path]:
    """List the files of a dataset, in the order of their names."""
    if location.is_file():
        return [location]
    if not location.is_dir():
        raise InputError(f"there is no file or folder {str(location)!r}")
    splits = sorted(
        entry.name
        for entry in location.iterdir()
        if entry.is_dir() and entry.name in ("train", "test")
    )
    # the entries of train are the beginnings of those of test, so together they would
    # count twice
    if splits:
        raise InputError(
            f"{str(location)!r} holds {' and '.join(splits)}; give the folder of one"
        )
    return sorted(
        file
        # as gluonts' FileDataset reads a folder, with folders inside it
        for file in location.rglob("*")
        if file.is_file() and not file.name.startswith(".")
    )
