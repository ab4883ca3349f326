"""What it costs over time: the benchmarks' history, drawn."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from sitepages.api import FOLDER
from sitepages.drawing import CACHE, ROOT
from sitepages.gallery import figure_html, write_figure
from sitepages.pictures import static_pictures
from sitepages.writing import plain, write
from tsfm_lens.viz.theme import TEMPLATE

PAGE = f"{FOLDER}/benchmarks.md"
HISTORY = ROOT / "benchmarks" / "history.csv"
# pixels
_HEIGHT = 420
_WIDTH = 620
# what is drawn, by the end of a measurement's name
KINDS = {
    "forecast, idle lens / native": (
        "Forecast through a lens without hooks, relative to the library's own"
    ),
    "capture by run_with_cache / native": (
        "Forward pass that records streams and heads, relative to a plain one"
    ),
    "one forward per head / ours": (
        "Speed-up of single-head ablations over one forward pass per head"
    ),
}


def write_history() -> None:
    """The page with a figure per kind of measurement."""
    history = pd.read_csv(HISTORY, dtype={"commit": str})
    # a commit may look like a number
    history["when"] = history["date"] + " " + history["commit"].fillna("")
    figures = {
        f"history-{position}": (kind, drawn(history, kind))
        for position, kind in enumerate(KINDS, start=1)
    }
    specs = {slug: figure.to_json() for slug, (_, figure) in figures.items()}
    pictures = static_pictures(specs, CACHE / "pictures")
    parts = [
        "# Costs over time",
        (
            "`python -m benchmarks` adds what it measures to `benchmarks/history.csv`,"
            " with date, version and commit. Machines differ and are shared, so steps"
            " of a few hundredths are noise. [](../../costs.md) has today's costs."
        ),
    ]
    for slug, (kind, _) in figures.items():
        write_figure(slug, specs[slug], pictures.get(slug))
        parts += [
            f"## {plain(KINDS[kind])}",
            figure_html(slug, kind, _HEIGHT, _WIDTH, "../../", slug in pictures),
        ]
    write(PAGE, "\n\n".join(parts) + "\n")


def drawn(history: pd.DataFrame, kind: str) -> go.Figure:
    """A line per architecture over the days on which it was measured."""

    rows = history[history["measurement"].str.endswith(kind)]
    model = rows["measurement"].str.extract(r"\) ([^:]+):")[0]
    fig = go.Figure()
    signs = ("circle", "square", "diamond", "triangle-up", "x", "star")
    for position, (name, own) in enumerate(rows.groupby(model, sort=False)):
        spread = None
        if own["low"].notna().any():
            spread = {
                "array": own["high"] - own["median"],
                "arrayminus": own["median"] - own["low"],
                "symmetric": False,
            }
        fig.add_scatter(
            x=own["when"],
            y=own["median"],
            error_y=spread,
            name=str(name),
            mode="lines+markers",
        )
        fig.data[-1].marker.update(symbol=signs[position % len(signs)], size=9)
    fig.update_layout(
        template=TEMPLATE,
        height=_HEIGHT,
        margin={"t": 40, "r": 190},
        meta={"min_width": _WIDTH},
    )
    # beside the panel: eleven names hide it
    fig.update_layout(
        legend={
            "orientation": "v",
            "x": 1.02,
            "xanchor": "left",
            "y": 1,
            "yanchor": "top",
        }
    )
    fig.update_xaxes(
        title="day and commit",
        type="category",
        categoryorder="array",
        categoryarray=history["when"].unique(),
    )
    fig.update_yaxes(
        title="times faster" if "ours" in kind else "ratio of times",
        type="log" if "ours" in kind else "linear",
    )
    return fig
