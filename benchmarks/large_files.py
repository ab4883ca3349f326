"""One large file from end to end: read, forecast and worth of a covariate, by the
command line and by the library.

python -m benchmarks.large_files [--series 2000] [--steps 1000] [--horizon 48] [--worth
2000] [--items 200]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks.apart import apart, status

# of the table of items
_STEPS = 192
_AHEAD = 24


def table(series: int, steps: int, horizon: int) -> pd.DataFrame:
    """A long table of hourly loads that follow a temperature, which is known over the
    horizon as well.
    """
    rng = np.random.default_rng(0)
    hours = np.arange(steps + horizon)
    temperature = (
        12
        + 8 * np.sin(hours / 24 * 2 * np.pi)
        + rng.normal(size=(series, steps + horizon))
    )
    load = (
        50
        + 10 * np.sin(hours / 24 * 2 * np.pi + 1)
        - 1.5 * temperature
        + rng.normal(size=temperature.shape)
    )
    load[:, steps:] = np.nan
    stamps = pd.date_range("2026-01-01", periods=steps + horizon, freq="h")
    ids = np.repeat([f"site {i}" for i in range(series)], steps + horizon)
    columns = {"load": load.ravel(), "temperature": temperature.ravel()}
    return pd.DataFrame({"site": ids, "time": np.tile(stamps, series), **columns})


def _short_series(series: int, steps: int) -> pd.DataFrame:
    """A long table of many short series."""
    rng = np.random.default_rng(0)
    stamps = pd.date_range("2026-01-01", periods=steps, freq="D")
    ids = np.repeat([f"site {i}" for i in range(series)], steps)
    load = (50 + rng.normal(size=series * steps)).round(4)
    return pd.DataFrame({"site": ids, "time": np.tile(stamps, series), "load": load})


def command(threads: int, *words: str) -> tuple[float, int]:
    """Seconds of a command on so many threads, imports included, and the most bytes
    that it held.
    """
    from typer.testing import CliRunner

    from tsfm_lens.cli.common import app

    torch.set_num_threads(threads)
    started = time.perf_counter()
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return time.perf_counter() - started, status("VmHWM")


def library(model: str, file: str, horizon: int) -> tuple[float, int]:
    """Seconds of pandas and the library's own pipeline on the same file, in batches of
    32 series, and bytes.
    """
    import tsfm_lens

    started = time.perf_counter()
    frame = pd.read_csv(file, parse_dates=["time"])
    pipeline = tsfm_lens.load(model).adapter.native
    parts = []
    for _, one in frame.groupby("site", sort=False):
        past = one["temperature"].to_numpy()
        target = one["load"].dropna().to_numpy()
        known = {"temperature": past[len(target) :]}
        parts.append(
            {
                "target": target,
                "past_covariates": {"temperature": past[: len(target)]},
                "future_covariates": known,
            }
        )
    pipeline.predict_quantiles(parts, prediction_length=horizon, batch_size=64)
    return time.perf_counter() - started, status("VmHWM")


def around_forecast(
    model: str, file: str, horizon: int
) -> tuple[dict[str, float], int]:
    """Seconds of a processor that reading, forecasting, framing and writing take, of
    many short series, and the most bytes that were held.
    """
    import tsfm_lens
    from tsfm_lens.core.spreadsheets import to_csv

    torch.set_num_threads(1)
    lens = tsfm_lens.load(model)
    # what is imported on first use is no cost of the file
    tsfm_lens.as_series(_short_series(2, 50), id_column="site", time_column="time")
    marks = [time.process_time()]
    series = tsfm_lens.as_series(
        file, id_column="site", time_column="time", targets=["load"]
    )
    marks.append(time.process_time())
    forecast = lens.forecast(series, horizon)
    marks.append(time.process_time())
    frame = forecast.to_frame()
    marks.append(time.process_time())
    to_csv(frame)
    marks.append(time.process_time())
    spent = np.diff(marks).tolist()
    parts = ("read", "forecast", "frame", "write")
    return dict(zip(parts, spent, strict=True)), status("VmHWM")


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each part."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None
    )
    for name, default in (
        ("series", 2000),
        ("steps", 1000),
        ("horizon", 48),
        ("worth", 2000),
        ("items", 200),
        ("short", 20_000),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--model", default="chronos2-nano")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "loads.csv"))
        fewer = str(Path(folder, "fewer.csv"))
        full = table(given.series, given.steps, given.horizon)
        full.to_csv(file, index=False, float_format="%.4f")
        full[: given.worth * (given.steps + given.horizon)].to_csv(
            fewer, index=False, float_format="%.4f"
        )
        reading = [
            "--id-column",
            "site",
            "--time-column",
            "time",
            "--targets",
            "load",
            "--known",
            "temperature",
        ]
        reading += ["--horizon", str(given.horizon)]
        page = ["--sections", "covariate_use", "--out", str(Path(folder, "page"))]
        rows: dict[str, tuple[Callable[..., tuple[float, int]], list[Any]]] = {
            "the library alone": (library, [given.model, file, given.horizon]),
            "tsfm-lens forecast --csv": (
                command,
                [1, "forecast", given.model, "--data", file, *reading, "--csv"],
            ),
            f"tsfm-lens explain --sections covariate_use, {given.worth} series": (
                command,
                [1, "explain", given.model, "--data", fewer, *reading, *page],
            ),
        }
        items = str(Path(folder, "items.csv"))
        table(given.items, _STEPS, _AHEAD).to_csv(
            items, index=False, float_format="%.4f"
        )
        page[1] = "input_effects,covariate_use,forecast"
        rows[
            f"tsfm-lens explain --sections {page[1]}, {given.items} series × {_STEPS},"
            " two threads"
        ] = (
            command,
            [
                2,
                "explain",
                given.model,
                "--data",
                items,
                *reading[:-1],
                str(_AHEAD),
                *page,
            ],
        )
        short = str(Path(folder, "short.csv"))
        _short_series(given.short, 50).to_csv(short, index=False)
        seconds_by_part, _ = apart(around_forecast, "bolt-nano", short, 12)
        spent = ", ".join(f"{part} {s:.1f}" for part, s in seconds_by_part.items())
        rest = sum(seconds_by_part.values()) - seconds_by_part["forecast"]
        ratio = rest / seconds_by_part["forecast"]
        print(
            f"{given.short} series × 50 around their forecast: {ratio:.2f} ({spent} s)"
        )
        for name, (work, text) in rows.items():
            seconds, held = apart(work, *text)
            print(f"{name}: {seconds:.1f} s, {held / 2**20:,.0f} MiB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
