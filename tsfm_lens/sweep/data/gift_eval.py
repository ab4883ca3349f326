"""GIFT-Eval: its 97 configurations, read from the folders of the benchmark.

Read :func:`gift_eval` first; :func:`gift_eval_folder` reads another dataset that is
stored in the same way. Horizons, numbers of windows and seasons follow the benchmark's
rules. Nothing is fetched.
"""

from __future__ import annotations

import math
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.data.batch import find_season
from tsfm_lens.data.files import local_path
from tsfm_lens.data.frequencies import find_start, parse_frequency, stamp_frequency
from tsfm_lens.data.stored import StoredSeries, read_folder
from tsfm_lens.sweep.data.evaluation import (
    EvaluationSet,
    Window,
    matching,
    rolling_windows,
    steps_needed,
)

VARIABLE = "GIFT_EVAL"
"""Environment variable with the benchmark's folder."""
TERMS = {"short": 1, "medium": 10, "long": 15}
"""Factor of each term on the horizon of the short one."""
HORIZONS = {"M": 12, "W": 8, "D": 30, "H": 48, "T": 48, "S": 60}
"""Steps of the short term, by letter of the frequency."""
M4_HORIZONS = {"A": 6, "Q": 8, "M": 18, "W": 13, "D": 14, "H": 48}
"""The same for the datasets of M4."""
TEST_SHARE = 0.1
"""Share of the shortest series from which the number of windows follows."""
MOST_WINDOWS = 20
"""Limit of the windows of one item."""


@dataclass(frozen=True)
class GiftEvalConfig:
    """One configuration of the benchmark.

    Attributes:
        key: "dataset/frequency/term" as in the leaderboard's table.
        folder: of the stored dataset, in the benchmark's folder.
        term: "short", "medium" or "long".
        freq: frequency as the key spells it.
        horizon: steps of each label.
        seasonality: steps of a season, by which MASE scales errors.
        variates: series per item.
        domain: field of the data.
    """

    key: str
    folder: str
    term: str
    freq: str
    horizon: int
    seasonality: int
    variates: int
    domain: str


def find_source(dataset: str) -> str:
    """Return the collection that a dataset is taken from.

    It is "ett1" for "ett1/H/short", and for the other frequencies and terms of ett1.
    """
    parts = dataset.split("/")
    if len(parts) > 1 and parts[-1] in TERMS:
        return parts[0]
    return dataset


def gift_eval_horizon(folder: str, freq: str, term: str = "short") -> int:
    """Return the number of steps that the benchmark forecasts."""
    if term not in TERMS:
        raise unknown_name("term", term, TERMS)
    horizons = HORIZONS
    # the benchmark tells the datasets of M4 by their names, too
    if "m4" in folder:
        horizons = M4_HORIZONS
    letter = parse_frequency(freq)[1]
    if letter not in horizons:
        raise InputError(
            f"GIFT-Eval has no horizon for frequency {freq!r}, only for"
            f" {', '.join(horizons)}; give one"
        )
    return horizons[letter] * TERMS[term]


@cache
def gift_eval_configs() -> tuple[GiftEvalConfig, ...]:
    """List the 97 configurations, in the order of the benchmark."""
    configs = []
    file = files("tsfm_lens.sweep.data") / "benchmarks" / "gift_eval.csv"
    with file.open(encoding="utf-8") as handle:
        table = pd.read_csv(handle, keep_default_na=False)
    for row in table.to_dict("records"):
        _, freq, term = row["key"].split("/")
        horizon = gift_eval_horizon(row["folder"], freq, term)
        season = find_season(stamp_frequency(freq))
        metadata = {name: row[name] for name in ("key", "folder", "variates", "domain")}
        configs.append(
            GiftEvalConfig(
                **metadata, term=term, freq=freq, horizon=horizon, seasonality=season
            )
        )
    return tuple(configs)


def gift_eval(
    path: str | Path | None = None,
    configs: str | Sequence[str] = ("*",),
    *,
    missing: Literal["error", "skip"] = "error",
) -> list[EvaluationSet]:
    """Read the test windows of GIFT-Eval from its folders.

    There is one set per configuration, as the leaderboard has them.

    Args:
        path: the benchmark's folder; that of the environment variable ``GIFT_EVAL`` if
            None.
        configs: names or patterns of keys, as in ``ett1/H/short``, ``m4_*``,
            ``*/short`` or ``ett1/H`` (all its terms).
        missing: whether a configuration without a folder is an error, or left out with
            a warning.

    Returns:
        The sets, in the order of the leaderboard.

    Raises:
        InputError: there is no benchmark folder, or a dataset in it is missing or
            damaged.
        UnknownNameError: a pattern fits no configuration; the message has the nearest
            keys.

    Source:
        Aksu et al. 2024, "GIFT-Eval: A Benchmark For General Time Series Forecasting
        Model Evaluation".

    Example:
        >>> sweep.gift_eval("path/to/gift-eval", "m4_*")  # doctest: +SKIP
    """
    by_key = {config.key: config for config in gift_eval_configs()}
    keys = matching(
        "GIFT-Eval configuration",
        configs,
        list(by_key),
        "gift_eval_configs() lists all 97.",
    )
    selection = [by_key[key] for key in keys]
    location = path
    if path is None:
        location = os.environ.get(VARIABLE)
    if not location:
        raise InputError(
            "where is GIFT-Eval? Give its folder, or set the environment variable"
            f" {VARIABLE} to it. It is the dataset Salesforce/GiftEval on the Hugging"
            " Face hub."
        )
    root = local_path(location)
    if not root.is_dir():
        origin = ""
        if path is None:
            origin = f", to which {VARIABLE} is set"
        raise InputError(f"there is no folder {str(root)!r}{origin}")
    absent = [config for config in selection if not (root / config.folder).is_dir()]
    if absent:
        folders = ", ".join(dict.fromkeys(config.folder for config in absent))
        message = (
            f"{str(root)!r} lacks {len(absent)} of {len(selection)} configurations: no"
            f" folder {folders}"
        )
        if missing == "error" or len(absent) == len(selection):
            raise InputError(
                f'{message}. missing="skip" leaves out those that are not there.'
            )
        # so that nobody takes a mean over these sets for that over all 97
        warnings.warn(message, stacklevel=2)
    sets = []
    # only the last folder is kept, since the terms of a dataset follow one another
    read_folder_once = lru_cache(maxsize=1)(read_folder)
    for config in selection:
        if config in absent:
            continue
        folder = config.folder
        rows = read_folder_once(root / folder)
        # the stored frequency may be anchored, as W-SUN is
        freq = rows[0].freq or config.freq
        variates = len(rows[0].values)
        if parse_frequency(freq)[:2] != parse_frequency(config.freq)[:2]:
            raise InputError(
                f"{root / folder} has frequency {freq!r}, expected {config.freq!r} for"
                f" {config.key}"
            )
        if variates != config.variates:
            raise InputError(
                f"{root / folder} has {variates} variates, expected {config.variates}"
                f" for {config.key}"
            )
        sets.append(
            _set(
                rows,
                config.key,
                folder,
                freq,
                config.horizon,
                config.domain,
                f"GIFT-Eval, {folder}",
            )
        )
    return sets


def gift_eval_folder(
    path: str | Path,
    term: str = "short",
    *,
    name: str | None = None,
    horizon: int | None = None,
    freq: str | None = None,
    domain: str = "",
) -> list[EvaluationSet]:
    """Read the test windows of any dataset that is stored as GIFT-Eval stores its own.

    They are one set, cut by the benchmark's rules.

    Args:
        path: folder with state.json.
        term: "short", "medium" or "long".
        name: of the set; folder and term if None.
        horizon: steps of each label; the benchmark's for frequency and term if None.
        freq: frequency; the stored one if None.
        domain: field of the data.

    Returns:
        The one set, in a list.

    Raises:
        InputError: the folder is missing or damaged, or frequency or horizon are
            unknown.

    Example:
        >>> folder = "path/to/gift-eval/us_births/D"
        >>> sweep.gift_eval_folder(folder, "short")  # doctest: +SKIP
    """
    folder = local_path(path)
    rows = read_folder(folder)
    freq = freq or rows[0].freq
    if freq is None:
        raise InputError(f"{str(folder)!r} has no column 'freq'; give freq=…")
    horizon = horizon or gift_eval_horizon(folder.name, freq, term)
    source = f"stored dataset {folder.name}, windows as in GIFT-Eval"
    return [
        _set(
            rows,
            name or f"{folder.name}/{term}",
            folder.name,
            freq,
            horizon,
            domain,
            source,
        )
    ]


def _set(
    rows: list[StoredSeries],
    name: str,
    folder: str,
    freq: str,
    horizon: int,
    domain: str,
    source: str,
) -> EvaluationSet:
    """Cut the windows of all rows; a second item "a" is named "a#2"."""
    freqs = {row.freq for row in rows if row.freq}
    # an anchor, such as SUN in W-SUN, may differ, so it is left out
    if len({parse_frequency(frequency)[:2] for frequency in freqs}) > 1:
        raise InputError(
            f"the series of {folder!r} have different frequencies:"
            f" {', '.join(sorted(freqs))}"
        )
    # as many windows as cover the share of the shortest series
    shortest = min(row.values.shape[1] for row in rows)
    covering = math.ceil(TEST_SHARE * shortest / horizon)
    if "m4" in folder:
        # the benchmark has one test window for each series of M4
        windows = 1
    else:
        windows = min(max(1, covering), MOST_WINDOWS)
    # windows of labels that follow one another, as in the benchmark
    min_length = steps_needed(horizon, windows, horizon)
    all_windows: list[Window] = []
    notes: list[str] = []
    times: Counter[str] = Counter()
    for row in rows:
        times[row.item] += 1
        if times[row.item] == 1:
            item = row.item
        else:
            item = f"{row.item}#{times[row.item]}"
        if row.values.shape[1] < min_length:
            notes.append(
                f"{item}: left out, its {row.values.shape[1]} steps are too few for"
                f" {windows} windows"
            )
            continue
        start = find_start(row.start, freq)
        item_windows = list(
            rolling_windows(item, row.values, horizon, windows, start=start)
        )
        # they stay: the benchmark counts them, and they add nothing to its sums
        empty = sum(not np.isfinite(window.label).any() for window in item_windows)
        if empty:
            notes.append(f"{item}: {empty} of {windows} windows have no value to score")
        all_windows += item_windows
    if not all_windows:
        raise InputError(
            f"every series of {folder!r} is shorter than {min_length} steps, too few"
            f" for horizon {horizon}"
        )
    alias = stamp_frequency(freq)
    return EvaluationSet(
        name,
        tuple(all_windows),
        horizon,
        alias,
        find_season(alias),
        domain,
        source,
        tuple(notes),
    )
