"""Measure the embedded models on every bundled series, and write the table of
``tsfm_lens/zoo/README.md``.

python tools/measure_bundled.py
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tsfm_lens.data import SeriesBatch, bundled, bundled_info
from tsfm_lens.studies.method_scores.page import markdown, replace_section
from tsfm_lens.studies.recipes.evaluate import window_errors
from tsfm_lens.studies.recipes.export import open_pipeline
from tsfm_lens.zoo import checkpoint_path

PAGE = Path(__file__).parent.parent / "tsfm_lens" / "zoo" / "README.md"
START = "<!-- measured: bundled series -->"
STOP = "<!-- end: bundled series -->"
MODELS = ("chronos-nano", "bolt-nano", "chronos2-nano")
NAIVE = "seasonal naive"


def measure(model: str, series: SeriesBatch) -> pd.DataFrame:
    """Measure MASE over 24 steps, with a row per series.

    Columns are (method, windows): of seasonal naive and of the model, over the last
    window and as the mean over all.
    """
    errors = window_errors(open_pipeline(checkpoint_path(model)), series)
    errors = errors[["naive MASE", "MASE"]].set_axis([NAIVE, model], axis="columns")
    by_series = errors.groupby("series", sort=False)
    # windows go from the end of a series backwards
    summaries = {"last": by_series.first(), "mean": by_series.mean()}
    return pd.concat(summaries, axis="columns").swaplevel(axis="columns")


def write_row(name: str, errors: pd.Series) -> list[str]:
    """Write the cells of a series: the last window, and the mean over windows."""
    season = bundled_info(name).seasonality
    cells = [name, str(season) if season > 1 else "none"]
    for method in errors.index.unique(0):
        pair = []
        for windows in ("last", "mean"):
            text = f"{errors[method, windows]:.2f}"
            if errors[method, windows] < errors[NAIVE, windows]:
                text = f"**{text}**"
            pair.append(text)
        cells.append(", ".join(pair))
    return cells


def main() -> None:
    """Measure and write."""
    errors = pd.concat([measure(model, bundled()) for model in MODELS], axis="columns")
    # every model is compared on the same windows
    errors = errors.loc[:, ~errors.columns.duplicated()]
    rows = [write_row(str(name), numbers) for name, numbers in errors.iterrows()]
    head = ["series", "season, steps", NAIVE, *MODELS]
    replace_section(PAGE, START, STOP, markdown([head, *rows]))


if __name__ == "__main__":
    main()
