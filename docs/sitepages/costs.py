"""The answer on the page of costs: four lines and ten models of its table."""

from __future__ import annotations

import pandas as pd

from sitepages.drawing import CACHE
from sitepages.writing import DOCS, table, write

PAGE = f"{CACHE.name}/costs.md"
SOURCE = DOCS / "costs.csv"
MODELS = (
    *("Chronos small", "Chronos-Bolt base, all 288 heads", "Chronos-2"),
    *("TimesFM 2.5", "TimesFM 3", "Toto 1.0", "Moirai 2.0-R small"),
    *("Timestral 28M", "TiRex 35m, no heads", "T5 small"),
)
"""Models of the ten rows, measured on a CPU; the file has all, and those on a GPU."""
IDLE = "idle lens / native forecast"
CAPTURE = "capture / native forward"
SPEED = "speed-up of ablations"


def write_costs() -> None:
    """Write the answer and the table, to be included."""
    write(PAGE, answer(pd.read_csv(SOURCE, dtype=str)) + "\n")


def answer(rows: pd.DataFrame) -> str:
    """The answer of a table of costs, whose cells are text, as MyST."""
    of = {device: own.set_index("model") for device, own in rows.groupby("device")}
    worst, worst_gpu = (own[IDLE].astype(float).idxmax() for own in of.values())
    lines = [
        "- **A forecast through a lens**, relative to the native one, in the median:"
        f" {_ratio(of, IDLE)}.",
        "- **A pass that records every stream and head**, relative to a native one:"
        f" {_ratio(of, CAPTURE)}.",
        "- **Ablating every head**, times faster than one pass per head:"
        f" {_ratio(of, SPEED)}. Outputs are equal to the last bit on a CPU.",
        f"- **Slowest lens**: {worst} on a CPU, {worst_gpu} on a GPU.",
    ]
    shown = of["CPU"].loc[[*MODELS]].reset_index().drop(columns="device").fillna("")
    return "\n\n".join(
        [
            "\n".join(lines),
            table(shown.columns, shown.values.tolist()),
            "All models, and a GPU: {download}`costs.csv`.",
        ]
    )


def _ratio(of: dict[str, pd.DataFrame], column: str) -> str:
    """Median and range of a column on each device."""
    told = []
    for device, rows in of.items():
        values = rows[column].dropna().astype(float)
        told.append(
            f"{values.median():.2f} ({values.min():.2f} to {values.max():.2f}) on a"
            f" {device}"
        )
    return ", ".join(told)
