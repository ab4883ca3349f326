"""How often parts of planted models match across architectures, in a table.

``python -m benchmarks.matching --out PAGE`` plants one mechanism in several
architectures, and others beside it, compares all by
:func:`tsfm_lens.probes.compare_models`, and writes the table into the page. Series are
those on which the mechanisms differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
import xarray as xr

from tsfm_lens import probes
from tsfm_lens.data import as_series
from tsfm_lens.models import Run
from tsfm_lens.studies.method_scores.page import markdown, replace_section
from tsfm_lens.training.command import run_command
from tsfm_lens.zoo.planted import Card, plant
from tsfm_lens.zoo.planted.rules import draw_contexts

HORIZON = 8
SERIES = 18
LENGTH = 96 + HORIZON
# a seed draws the period too: those of a row copy the value 24 steps back
COPIES = (
    {"chronos": 0, "chronos-bolt": 1, "chronos-2": 1, "moirai-2": 1},
    {"chronos": 3, "chronos-bolt": 3, "chronos-2": 3, "moirai-2": 3},
    {"chronos": 6, "chronos-bolt": 4, "chronos-2": 4, "moirai-2": 4},
)
OTHERS = ("trend", "local-mean")
START = "<!-- from the matching -->\n"
STOP = "<!-- end of the matching -->"
SHARES = ("matched", "planted")


@dataclass(frozen=True)
class _Model:
    card: Card
    run: Run


def twins(seeds: dict[str, int]) -> dict[str, _Model]:
    """Models of one mechanism in several architectures."""
    cards = {name: ("seasonal-copy", name, seed) for name, seed in seeds.items()}
    return _run(cards.values(), ["seasonal-copy"])


def strangers(seeds: dict[str, int]) -> dict[str, _Model]:
    """The same beside models of other mechanisms."""
    copies = [("seasonal-copy", name, seed) for name, seed in seeds.items()]
    others = [
        (mechanism, name, seeds[name])
        for mechanism in OTHERS
        for name in ("chronos", "chronos-bolt")
    ]
    return _run([*copies, *others], ["seasonal-copy", *OTHERS])


def _run(
    cells: Iterable[tuple[str, str, int]], drawn: Sequence[str]
) -> dict[str, _Model]:
    """Plant models, and run all on series that are drawn for some mechanisms."""
    planted = {
        f"{mechanism} in {architecture}": plant(mechanism, architecture, seed=seed)
        for mechanism, architecture, seed in cells
    }
    contexts = []
    for mechanism in drawn:
        name = next(name for name in planted if name.startswith(mechanism))
        rule = planted[name].card.rule
        count = SERIES // len(drawn)
        contexts += draw_contexts(rule, count, (LENGTH, LENGTH), seed=5)
    batch = as_series([context[:-HORIZON] for context in contexts])
    truth = np.stack([context[-HORIZON:] for context in contexts])
    models = {}
    for name, model in planted.items():
        lens = model.lens()
        lens.model_id = name
        models[name] = _Model(model.card, lens.run(batch, HORIZON, truth=truth))
    return models


def matches(models: dict[str, _Model]) -> pd.DataFrame:
    """A row for each planted part that moves the forecast and each other model."""
    runs = [model.run for model in models.values()]
    found = probes.compare_models(runs, draws=1)
    rows = []
    for name, other in permutations(models, 2):
        for part in models[name].card.components("mechanism"):
            cell = found.sel(part=f"{name}: {part}", other_model=other)
            if np.isfinite(cell["similarity"]):
                rows.append(_row(name, other, cell, models[other].card))
    return pd.DataFrame(rows)


def _row(name: str, other: str, cell: xr.Dataset, card: Card) -> dict[str, object]:
    mechanisms = {model.partition(" in ")[0] for model in (name, other)}
    match = str(cell["match"].values)
    is_matched = bool(cell["matched"])
    return {
        "mechanisms": " and ".join(sorted(mechanisms)),
        "matched": is_matched,
        "to a planted part": is_matched and match in card.components("mechanism"),
        "similarity": float(cell["similarity"]),
    }


def table(samples: Sequence[dict[str, int]] = COPIES) -> pd.DataFrame:
    """Share of parts that match, by the mechanisms of both models."""
    tables = [
        matches(make(seeds)).assign(series=label)
        for seeds in samples
        for label, make in (("of the copy", twins), ("of all", strangers))
    ]
    grouped = pd.concat(tables).groupby(["series", "mechanisms"])
    return grouped.agg(
        parts=("matched", "size"),
        matched=("matched", "mean"),
        planted=("to a planted part", "mean"),
        similarity=("similarity", "median"),
    )


def page_rows(found: pd.DataFrame) -> list[list[str]]:
    """Rows of the page, the heading first."""
    rows = [["series", "models", "parts compared", "matched", "to a planted part"]]
    for row in found.reset_index().to_dict("records"):
        shares = [f"{row[name]:.0%}".replace("%", " %") for name in SHARES]
        rows.append([row["series"], row["mechanisms"], str(row["parts"]), *shares])
    return rows


def main(
    out: Annotated[Path, typer.Option(help="the page that has the table")],
) -> None:
    """Write how often planted parts match into the page."""
    replace_section(out, START, STOP, markdown(page_rows(table())))


if __name__ == "__main__":
    run_command(main)
