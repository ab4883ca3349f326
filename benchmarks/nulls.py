"""How often effects beyond their draws are claimed, in planted and untrained models.

``python -m benchmarks.nulls --out docs/nulls.csv --page docs/concepts/findings.md``
writes a row for each page (a result of one model), and their counts into the
documentation. A row that is in the file is not measured again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
import xarray as xr

from tsfm_lens import probes
from tsfm_lens.core.nulls import DRAWS, claimed
from tsfm_lens.hooks.component import writers
from tsfm_lens.models import Lens
from tsfm_lens.models.twins import make_twin
from tsfm_lens.studies.dictionaries.__main__ import Rows
from tsfm_lens.studies.method_scores.page import markdown, replace_section
from tsfm_lens.training.command import run_command
from tsfm_lens.zoo.planted import Card, draw_contexts, mechanisms, plant
from tsfm_lens.zoo.planted.rules import Gate, LinearTrend

ARCHITECTURES = ("chronos-bolt", "chronos")
STACKS = ("encoder", "decoder")
DIRECTION = "direction"
COPIES = 10
"""Untrained copies of each planted direction; every fifth has new weights."""
FEW = (0, 1, 4)
"""Numbers of untrained copies whose components are ablated."""
SHUFFLED = "weights in random order"
NEW = "new weights"
TWINS = 24
TIME = 128
SHORT = 64
READ = [-1]
"""Position of the token from which the decoder of Chronos-Bolt reads a property."""
HEADS = [
    "pages of",
    "copies in random order that claim",
    "copies with new weights",
    "either, with twins",
    "planted parts",
    "significant",
    "of them beyond draws",
    "of them learned",
]
PARTS = ["planted", "significant", "beyond", "learned"]
START = "<!-- measured: nulls -->\n"
STOP = "<!-- end: nulls -->"


def gate_pair(rule: Gate, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw a series whose last two periods agree, and one in which they do not.

    The other has the values of the first, some in another order, so that level and
    spread are the same.
    """
    period = rule.period
    while True:
        opened = rng.uniform(0.5, 2.0) * rng.standard_normal(TIME)
        last = rng.standard_normal(period)
        opened[-2 * period :] = np.tile(last, 2)
        shut = opened.copy()
        shut[-2 * period : -period] = rng.permutation(last)
        if rule.margin(opened) > 0.05 and rule.margin(shut) < -0.05:
            return opened, shut


def trend_pair(
    rule: LinearTrend, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a series that rises, and the same with its early values elsewhere."""
    rising = rng.standard_normal(TIME)
    end = TIME - rule.lag
    early = slice(end - rule.width, end)
    rising[early] = rising[-rule.width :].mean() - rng.normal(1, 0.2, rule.width)
    level = rising.copy()
    level[: rule.width], level[early] = rising[early], rising[: rule.width]
    return rising, level


PAIRS: dict[str, Any] = {"gate": gate_pair, "trend": trend_pair}


def count_claims(data: xr.Dataset, name: str, planted: np.ndarray) -> dict[str, int]:
    """Count the claims of a page, and those of its planted members.

    Args:
        data: result with draws, and perhaps with twins.
        name: of the effect.
        planted: whether a member was planted, in the shape of the members.

    Returns:
        ``claims`` of the page without twins, and ``claims_twins`` with them; of
        ``planted`` members, how many are ``significant``, of these how many ``beyond``
        their draws, and of these how many ``learned``, where there are twins.
    """
    significant = planted & data[f"{name}_significant"].values
    beyond = claimed(data.drop_vars(f"{name}_learned", errors="ignore"), name).values
    counts = {
        "claims": beyond.sum(),
        "planted": planted.sum(),
        "significant": significant.sum(),
        "beyond": (planted & beyond).sum(),
    }
    if f"{name}_learned" in data:
        learned = claimed(data, name).values
        counts["claims_twins"] = learned.sum()
        counts["learned"] = (planted & learned).sum()
    return {key: int(count) for key, count in counts.items()}


def component_page(
    lens: Lens, card: Card, number: int | None, stack: str, series: int
) -> xr.Dataset:
    """Ablate heads and MLPs of a stack, beside draws and with twins."""
    if number is not None:
        lens = make_twin(lens, number)
    length = max(SHORT, card.context[0])
    contexts = draw_contexts(card.rule, series, (length, length), seed=card.seed)
    run = lens.run(list(contexts), card.horizon, rollout=False, twins=TWINS)
    return probes.ablation_effects(
        run, components=writers(lens.wiring, stack), nulls=DRAWS
    )


def direction_page(
    lens: Lens, card: Card, number: int | None, series: int
) -> xr.Dataset:
    """Exchange the direction of a planted property, beside draws."""
    rng = np.random.default_rng(card.seed)
    pairs = [PAIRS[card.mechanism](card.rule, rng) for _ in range(series)]
    runs = [lens.run(list(batch), card.horizon) for batch in zip(*pairs, strict=True)]
    # a run of a twin may have pairs of equal forecasts, another one is refused then
    if number is not None:
        runs = [run.twin(number) for run in runs]
    return probes.direction(*runs, tokens=READ, doses=[-1, 1], nulls=DRAWS)


def measure_page(
    mechanism: str,
    architecture: str,
    seed: int,
    number: int | None,
    what: str,
    *,
    series: int,
) -> dict[str, object]:
    """Measure one page of a planted model, or of its untrained copy of a number."""
    planted = plant(mechanism, architecture, seed=seed)
    lens, card = planted.lens(), planted.card
    condition = "planted"
    if number is not None:
        condition = SHUFFLED
        if NEW in make_twin(lens, number).model_id:
            condition = NEW
    if what == DIRECTION:
        data = direction_page(lens, card, number, series)
        name = "agreement"
        members = data["change"].values == "interchange"
    else:
        data = component_page(lens, card, number, what, series)
        name = "mean_shift"
        members = np.isin(data["component"].values, card.components("mechanism"))
    return {
        "model": f"{mechanism} in {architecture}",
        "seed": seed,
        "condition": condition,
        "what": what,
        "series": series,
        # nothing was planted in an untrained copy
        **count_claims(data, name, members & (number is None)),
    }


def pages(
    seeds: int, copies: Sequence[int], directions: int
) -> Iterator[tuple[str, str, int, int | None, str]]:
    """Name what every page is of: mechanism, architecture, seed, copy and kind."""
    for mechanism in PAIRS:
        for seed in range(directions):
            for number in (None, *range(COPIES)):
                yield mechanism, ARCHITECTURES[0], seed, number, DIRECTION
    for architecture in ARCHITECTURES:
        for mechanism, other in mechanisms():
            if other != architecture:
                continue
            for seed in range(seeds):
                for stack in STACKS:
                    for number in (None, *copies):
                        yield mechanism, architecture, seed, number, stack


def table(rows: pd.DataFrame) -> list[list[str]]:
    """Count claims over pages: rows of a table, the heading first."""
    found = [HEADS]
    kinds = rows["model"].str.partition(" in ")[2] + ", " + rows["what"]
    for kind, group in rows.groupby(kinds):
        condition = group["condition"]
        untrained = group[condition != "planted"]
        cells = [
            str(kind),
            share_of_pages(group.loc[condition == SHUFFLED, "claims"]),
            share_of_pages(group.loc[condition == NEW, "claims"]),
            share_of_pages(untrained["claims_twins"]),
        ]
        # what was not compared with twins has no number of learned parts
        parts = group.loc[condition == "planted", PARTS].sum(min_count=1)
        cells += [f"{count:g}".replace("nan", "") for count in parts]
        found.append(cells)
    return found


def share_of_pages(claims: pd.Series) -> str:
    """Say how many pages claim anything, of those that were measured."""
    measured = claims.dropna()
    if measured.empty:
        return ""
    return f"{(measured > 0).sum()} of {len(measured)}"


def main(
    out: Annotated[Path, typer.Option(help="CSV file, one row a page")],
    page: Annotated[Path, typer.Option(help="page whose table is written anew")],
    *,
    seeds: Annotated[int, typer.Option(min=1, help="models of each mechanism")] = 1,
    copy: Annotated[
        list[int] | None,
        typer.Option(
            help="number of an untrained copy of each model, once for each; every"
            f" fifth has new weights; by default {FEW}"
        ),
    ] = None,
    directions: Annotated[
        int, typer.Option(min=1, help="planted directions of each mechanism")
    ] = 5,
    series: Annotated[int, typer.Option(min=10, help="series of each page")] = 16,
) -> None:
    """Measure how often effects beyond their draws are claimed, and write a table."""
    rows = Rows(out)
    for mechanism, architecture, seed, number, what in pages(
        seeds, copy or FEW, directions
    ):
        condition = "planted" if number is None else f"untrained {number}"
        rows.add(
            f"{mechanism} in {architecture} {seed}, {condition}, {what}",
            partial(
                measure_page,
                mechanism,
                architecture,
                seed,
                number,
                what,
                series=series,
            ),
        )
    replace_section(page, START, STOP, markdown(table(rows.rows)) + "\n")


if __name__ == "__main__":
    run_command(main)
