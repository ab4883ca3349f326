"""How often effects beyond their draws are claimed, in planted and untrained models.

``python -m benchmarks.nulls --out docs/nulls.csv --page docs/concepts/findings.md``
writes a row for each page (a result of one model), and their counts into the
documentation. A row that is in the file is not measured again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
import xarray as xr

from tsfm_lens import probes
from tsfm_lens.core.nulls import DRAWS, claimed
from tsfm_lens.hooks.component import writers
from tsfm_lens.models import Lens, Run
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
PLANTED = "planted"
SHUFFLED = "weights in random order"
NEW = "new weights"
SERIES = 16
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


def count_claims(data: xr.Dataset, name: str, planted: xr.DataArray) -> dict[str, int]:
    """Count the claims of a page, and those of its planted members.

    Args:
        data: result with draws, and perhaps with twins.
        name: of the effect.
        planted: true of members that were planted.

    Returns:
        ``claims`` of the page without twins, and ``claims_twins`` with them; of
        ``planted`` members, how many are ``significant``, of these how many ``beyond``
        their draws, and of these how many ``learned``, where there are twins.
    """
    learned = f"{name}_learned"
    beyond = claimed(data.drop_vars(learned, errors="ignore"), name)
    marks = {
        "claims": beyond,
        "planted": planted,
        "significant": planted & data[f"{name}_significant"],
        "beyond": planted & beyond,
    }
    if learned in data:
        marks["claims_twins"] = claimed(data, name)
        marks["learned"] = planted & marks["claims_twins"]
    return {key: int(mark.sum()) for key, mark in marks.items()}


def component_page(lens: Lens, card: Card, stack: str) -> xr.Dataset:
    """Ablate heads and MLPs of a stack, beside draws and with twins."""
    length = max(SHORT, card.context[0])
    contexts = draw_contexts(card.rule, SERIES, (length, length), seed=card.seed)
    run = lens.run(list(contexts), card.horizon, rollout=False, twins=TWINS)
    parts = writers(lens.wiring, stack)
    return probes.ablation_effects(run, components=parts, nulls=DRAWS)


def pair_of_runs(lens: Lens, card: Card) -> list[Run]:
    """Run a model on series with a planted property, and on others without."""
    rng = np.random.default_rng(card.seed)
    pairs = [PAIRS[card.mechanism](card.rule, rng) for _ in range(SERIES)]
    return [lens.run(list(batch), card.horizon) for batch in zip(*pairs, strict=True)]


def measure_page(
    mechanism: str, architecture: str, seed: int, copy: int | None, what: str
) -> dict[str, object]:
    """Measure one page of a planted model, or of its untrained copy of a number."""
    planted = plant(mechanism, architecture, seed=seed)
    lens, card = planted.lens(), planted.card
    subject, condition = lens, PLANTED
    if copy is not None:
        subject = make_twin(lens, copy)
        condition = NEW if NEW in subject.model_id else SHUFFLED
    if what == DIRECTION:
        runs = pair_of_runs(lens, card)
        # a run of a copy may have pairs of equal forecasts, which others may not
        if copy is not None:
            runs = [run.twin(copy) for run in runs]
        data = probes.direction(*runs, tokens=READ, doses=[-1, 1], nulls=DRAWS)
        name, members = "agreement", data["change"] == "interchange"
    else:
        data = component_page(subject, card, what)
        name = "mean_shift"
        members = data["component"].isin(card.components("mechanism"))
    # nothing was planted in an untrained copy
    true = members & (copy is None)
    return {
        "mechanism": mechanism,
        "architecture": architecture,
        "seed": seed,
        "condition": condition,
        "what": what,
        **count_claims(data, name, true),
    }


def pages(seeds: int, directions: int) -> Iterator[tuple[Any, ...]]:
    """List what pages are of: mechanism, architecture, seed, copy, and kind."""
    bolt = ARCHITECTURES[:1]
    copies = (None, *range(COPIES))
    yield from product(PAIRS, bolt, range(directions), copies, [DIRECTION])
    for name in ARCHITECTURES:
        planted = [mechanism for mechanism, other in mechanisms() if other == name]
        yield from product(planted, [name], range(seeds), (None, *FEW), STACKS)


def table(rows: pd.DataFrame) -> list[list[str]]:
    """Count claims over pages: rows of a table, the heading first."""
    found = [HEADS]
    for kind, group in rows.groupby(["architecture", "what"]):
        condition = group["condition"]
        # of what was not compared with twins nothing is known to be learned
        parts = group.loc[condition == PLANTED, PARTS].sum(min_count=1)
        cells = [
            share_of_pages(group.loc[condition == SHUFFLED, "claims"]),
            share_of_pages(group.loc[condition == NEW, "claims"]),
            share_of_pages(group.loc[condition != PLANTED, "claims_twins"]),
            *(f"{count:g}".replace("nan", "") for count in parts),
        ]
        found.append([", ".join(kind), *cells])
    return found


def share_of_pages(claims: pd.Series) -> str:
    """Say how many pages claim anything, of those that were measured, if any were."""
    measured = claims.dropna()
    if measured.empty:
        return ""
    return f"{(measured > 0).sum()} of {len(measured)}"


def main(
    out: Annotated[Path, typer.Option(help="CSV file, one row a page")],
    page: Annotated[Path, typer.Option(help="page whose table is written anew")],
    *,
    seeds: Annotated[int, typer.Option(help="models of each mechanism")] = 1,
    directions: Annotated[int, typer.Option(help="directions of each kind")] = 5,
) -> None:
    """Measure how often effects beyond their draws are claimed, and write a table."""
    rows = Rows(out)
    for key in pages(seeds, directions):
        mechanism, architecture, seed, copy, what = key
        name = f"{mechanism} in {architecture}, seed {seed}, copy {copy}, {what}"
        rows.add(name.replace("copy None", PLANTED), partial(measure_page, *key))
    replace_section(page, START, STOP, markdown(table(rows.rows)) + "\n")


if __name__ == "__main__":
    run_command(main)
