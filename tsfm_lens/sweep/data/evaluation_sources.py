"""Evaluation sets from a user's own series, the bundled ones, and gluonts datasets."""

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
    """Cut rolling windows at the end of any series, one set for each frequency and
    season, or bundled series.

    Args:
        series: names of bundled series, or anything that
            :func:`tsfm_lens.data.as_series` takes.
        horizon: steps of each label.
        windows: how many per item.
        stride: steps from one label to the next; the horizon if None, so that labels do
            not overlap.
        name: of the set; the file's name or "series" if None. Bundled series are named
            ``bundled/…``.
        reading: options of ``as_series``, such as ``freq``, ``variates`` and
            ``seasonality``.

    Raises:
        InputError: the series cannot be read or are too short; the message names the
            series.
        UnknownNameError: a list has names of bundled series and one that is none.

    Example:
        >>> [each.name for each in sweep.holdout_sets(["co2", "nile"], horizon=12)]
        ['bundled/co2', 'bundled/nile']
    """
    trimmed = horizon, windows, stride
    names = series
    if isinstance(series, str) and series in bundled_names():
        names = [series]
    if (
        isinstance(names, list | tuple)
        and names
        and all(isinstance(item, str) for item in names)
    ):
        infos = [bundled_info(item) for item in names]
        return [
            _sets(bundled(i.name), f"bundled/{i.name}", *trimmed, i.source, i.field)[0]
            for i in infos
        ]
    file = None
    if isinstance(series, str | Path):
        file = Path(series).name
    label, source = (
        (file.split(".")[0], f"file {file}")
        if file
        else ("series", "series of the caller")
    )
    return _sets(as_series(series, **reading), name or label, *trimmed, source)


def _sets(
    batch: SeriesBatch,
    name: str,
    horizon: int,
    windows: int,
    stride: int | None,
    source: str,
    domain: str = "",
) -> list[EvaluationSet]:
    """Make one set for each frequency and season length of a batch."""
    windows_of_kind: dict[tuple[str | None, int], list[Window]] = {}
    notes = list(batch.notes)
    for group, members in batch.rows_by_group().items():
        first = members[0]
        values = np.stack([batch.values[row] for row in members])
        trimmed, remarks = scored_windows(
            group,
            values,
            horizon=horizon,
            windows=windows,
            stride=stride,
            start=batch.starts[first],
        )
        notes += remarks
        windows_of_kind.setdefault(
            (batch.freqs[first], batch.seasonalities[first]), []
        ).extend(trimmed)
    freqs = [freq for freq, _ in windows_of_kind]
    sets = []
    for (freq, season), all_windows in windows_of_kind.items():
        if len(freqs) == 1:
            label = name
        else:
            label = f"{name}/{freq or 'unknown'}"
        label += f"/season-{season}" if freqs.count(freq) > 1 else ""
        sets.append(
            EvaluationSet(
                label,
                tuple(all_windows),
                horizon,
                freq,
                season,
                domain,
                source,
                tuple(notes),
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
        horizon, windows, stride, name: see :func:`holdout_sets`.
        freq: frequency, in any pandas spelling; that of the first entry's period if
            None.
        seasonality: season length in steps; gluonts' own for the frequency if None.
        domain, source: field that the series come from, and where they come from, in
            words.

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
        if item in ids:
            raise InputError(
                f"{name!r} has item {item!r} more than once; give each entry its own"
                " 'item_id'"
            )
        ids.add(item)
        start = entry.get("start")
        freq = (
            freq
            or (start.freqstr if isinstance(start, pd.Period) else None)
            or entry.get("freq")
        )
        values = np.atleast_2d(to_floats(entry["target"], f"series {item!r}"))
        stamp = None
        if start is not None and freq:
            stamp = find_start(start, freq)
        trimmed, remarks = scored_windows(
            item, values, horizon=horizon, windows=windows, stride=stride, start=stamp
        )
        all_windows += trimmed
        notes += remarks
    stamps = None
    if freq:
        stamps = stamp_frequency(freq)
    season = seasonality or find_season(stamps)
    return [
        EvaluationSet(
            name,
            tuple(all_windows),
            horizon,
            stamps,
            season,
            domain,
            source,
            tuple(notes),
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
    """Cut rolling windows at the end of a dataset on disk, as gluonts' FileDataset
    reads it.
    """
    position = local_path(path)
    parse_frequency(freq)
    entries = [
        entry for file in _gluonts_files(position) for entry in gluonts_rows(file)
    ]
    options: dict[str, Any] = {
        "freq": freq,
        "seasonality": seasonality,
        "domain": domain,
    }
    name, source = (
        name or position.name.split(".")[0],
        f"gluonts dataset {position.name}",
    )
    try:
        return gluonts_set(
            entries, horizon, windows, stride, name, source=source, **options
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _gluonts_files(place: Path) -> list[Path]:
    """List the files of a dataset, in the order of their names."""
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise InputError(f"there is no file or folder {str(place)!r}")
    splits = sorted(
        entry.name
        for entry in place.iterdir()
        if entry.is_dir() and entry.name in ("train", "test")
    )
    if splits:
        raise InputError(
            f"{str(place)!r} holds {' and '.join(splits)}; give the folder of one"
        )
    return sorted(
        file
        for file in place.rglob("*")
        if file.is_file() and not file.name.startswith(".")
    )
