"""Calibration of what pages claim: significance, leaders and learned parts, on drawn
effects and on models.

The command writes a table a question as CSV beside a page, and into the page the answer
that follows from the tables.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
import xarray as xr

from tsfm_lens import probes
from tsfm_lens.core.errors import LensError
from tsfm_lens.core.estimates import corrected, estimated_effects, with_twins
from tsfm_lens.core.io import write_atomically
from tsfm_lens.core.stats import LEVEL, SMALLEST, holm, leader, sign_test
from tsfm_lens.data import SeriesBatch, bundled, bundled_names
from tsfm_lens.models import Lens, Run, load
from tsfm_lens.models.twins import reinitialised_twin, untrained_twin
from tsfm_lens.studies.method_scores.methods import worth_naming
from tsfm_lens.studies.method_scores.page import markdown, replace_section
from tsfm_lens.studies.method_scores.series import evaluation_case
from tsfm_lens.testing import tiny
from tsfm_lens.training.command import run_command
from tsfm_lens.zoo.planted import mechanisms, plant

Tables = dict[str, list[list[str]]]
"""Rows of cells by the name of their file; the first row has the heads."""
FILES = ("pages", "leaders", "learned", "parts", "stability")
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
START = "<!-- measured: calibration -->"
STOP = "<!-- end: calibration -->"
UNITS = (2, 4, 8, 16, 32, 64)
MEMBERS = 24
TRUE = 6  # members of a page that have an effect where power is measured
EMBEDDED = ("chronos-nano", "bolt-nano", "chronos2-nano")
TINY = ("chronos", "chronos-bolt", "timesfm-2.5", "moirai-2", "toto-1")
LONG = ("electricity", "pedestrians", "seattle_heat", "gasoline")
SHIFTS = (1, 2, 3, 4, 5)
# twins of a report with weights in random order, and with new ones
_OLD = 20
_NEW = 4
_SIZES = (2, 3, 8, 30)
_UNITS = (6, 9, 20)
_LOOKS = ("13 series", "13 series, 4 windows each", "40 windows of one series")


def _clustered(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Average four windows a series, which share most of what they are."""
    of_series = rng.normal(size=(*shape, 1)) + 0.3 * rng.normal(size=(*shape, 4))
    return np.asarray(of_series.mean(-1) + rng.normal(size=shape[1]))


DRAWS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "log-normal": lambda rng, shape: np.exp(1.5 * rng.normal(size=shape)) - 1,
    "t with 2 degrees": lambda rng, shape: rng.standard_t(2, size=shape),
    "outliers": lambda rng, shape: (
        rng.normal(size=shape) * np.where(rng.random(shape) < 0.1, 50, 1)
    ),
    "clustered": _clustered,
}
"""Effects (member, series) whose median is 0."""


def significant_pages(
    draw: Draw, units: int, *, trials: int = 1000, shift: float = 0.0, seed: int = 0
) -> float:
    """Compute the share of pages that call a member significant; with a shift, of
    shifted members so called.
    """
    rng = np.random.default_rng([seed, units])
    count = 0.0
    for _ in range(trials):
        effect = draw(rng, (MEMBERS, units))
        effect[:TRUE] += shift
        named = holm(sign_test(effect)) <= LEVEL
        count += float(named[:TRUE].mean()) if shift else float(named.any())
    return count / trials


def false_leaders(
    draw: Draw, members: int, units: int, *, trials: int = 1000, seed: int = 0
) -> float:
    """Compute how often one of several members, alike by definition, is called the
    leader.
    """
    rng = np.random.default_rng([seed, members, units])
    return (
        sum(
            leader(np.abs(draw(rng, (members, units)))) is not None
            for _ in range(trials)
        )
        / trials
    )


def compute_claims(run: Run) -> dict[str, xr.Dataset]:
    """Compute the effects that a page makes claims about."""
    run = run.alone()
    results = {"ablation_effects": probes.ablation_effects(run)}
    with suppress(LensError):
        results["attribution"] = probes.attribution(run)
    return corrected(results)


def learned_pages(
    lens: Lens, run_of: Callable[[Lens], Run], *, models: int = 20
) -> dict[str, float]:
    """Compute the share of untrained models of which a page claims that a part is
    learned.

    Models with the weights of ``lens`` in random order, and models with new weights,
    are each compared with 24 twins. Another order of weights in random order is a twin
    of the same kind, and so are other new weights.
    """
    makers = {
        "weights in random order": untrained_twin,
        "new weights": reinitialised_twin,
    }
    pools = {
        name: [
            compute_claims(run_of(maker(lens, seed))) for seed in range(models + _OLD)
        ]
        for name, maker in makers.items()
    }
    new = [
        compute_claims(run_of(reinitialised_twin(lens, 1000 + seed)))
        for seed in range(_NEW)
    ]
    return {
        name: float(
            np.mean(
                [claims_learned(pool[i], [*pool[models:], *new]) for i in range(models)]
            )
        )
        for name, pool in pools.items()
    }


def claims_learned(
    page: dict[str, xr.Dataset], twins: Sequence[dict[str, xr.Dataset]]
) -> bool:
    """Test if a page, compared with those of twins, calls any member learned."""
    compared = corrected(
        {
            key: with_twins(data, [control[key] for control in twins])
            for key, data in page.items()
        }
    )
    return any(
        bool(data[f"{name}_learned"].any())
        for data in compared.values()
        for name in estimated_effects(data)
    )


def significant_members(page: dict[str, xr.Dataset]) -> set[tuple[str, str, int]]:
    """List the members that a page calls significant."""
    return {
        (key, name, int(position))
        for key, data in page.items()
        for name in estimated_effects(data)
        for position in np.flatnonzero(data[f"{name}_significant"].values)
    }


def shifted_claims(
    lens: Lens,
    batches: Sequence[SeriesBatch],
    windows: int,
    shifts: Sequence[int] = SHIFTS,
) -> float:
    """Compute the share of significant members that are not so when all windows begin a
    few steps earlier.
    """

    def members(batch: SeriesBatch, steps: int = 0) -> set[tuple[str, str, int]]:
        values = tuple(value[: len(value) - steps] for value in batch.values)
        return significant_members(
            compute_claims(_run(replace(batch, values=values), 12, lens, windows))
        )

    plain = [members(batch) for batch in batches]
    pairs = [
        (batch, own, steps)
        for batch, own in zip(batches, plain, strict=True)
        for steps in shifts
    ]
    lost = sum(len(own - members(batch, steps)) for batch, own, steps in pairs)
    if any(plain):
        return lost / (len(shifts) * sum(map(len, plain)))
    return float("nan")


def _run(batch: SeriesBatch, horizon: int, lens: Lens, windows: int = 1) -> Run:
    how: dict[str, Any] = {"num_samples": 8} if lens.adapter.readout == "token" else {}
    return lens.run(batch, horizon, holdout=True, windows=windows, **how)


def planted_claims(seeds: int) -> Iterator[dict[str, Any]]:
    """Count by planted model the true parts of 1 % or more, those of them that a page
    names, and others that it names.

    Backups, which act only when another part is gone, count neither way.
    """
    for mechanism, architecture in mechanisms():
        for seed in range(seeds):
            planted = plant(mechanism, architecture, seed=seed, reads=None)
            case = evaluation_case(planted.lens(), planted.card, seed=seed)
            effects = probes.ablation_effects(case.clean, components=case.components)
            true, idle = (
                np.isin(effects["component"], planted.card.components(r))
                for r in ("mechanism", "backup")
            )
            named = worth_naming(effects, "mean_shift").values
            large = true & (effects["mean_shift_size"].values >= SMALLEST)
            counts = {
                "true": large,
                "named": large & named,
                "others": named & ~true & ~idle,
            }
            yield {"model": architecture, "models": 1} | {
                name: int(count.sum()) for name, count in counts.items()
            }


def _simulated(trials: int) -> Tables:
    """Measure pages of drawn effects, in %.

    "pages": false pages, and power at a shift of one unit, by the number of series;
    "leaders": false leaders among members that are alike, worst of 6, 9 and 20 series.
    """
    heads = ["effects"]
    for units in UNITS:
        heads += [f"false pages, {units} series", f"power, {units} series"]
    pages = [heads]
    leaders = [["effects", *(f"{k} members" for k in _SIZES)]]
    for name, draw in DRAWS.items():
        line = [name]
        for n in UNITS:
            false = significant_pages(draw, n, trials=trials)
            power = significant_pages(draw, n, trials=trials // 5, shift=1.0)
            line += [f"{100 * false:.1f}", f"{100 * power:.0f}"]
        pages.append(line)
        worst = [
            max(false_leaders(draw, k, n, trials=trials) for n in _UNITS)
            for k in _SIZES
        ]
        leaders.append([name, *(f"{100 * share:.1f}" for share in worst)])
    return {"pages": pages, "leaders": leaders}


def _of_models(models: int, seeds: int) -> Tables:
    """Measure pages of models.

    "learned": pages of untrained models that call a part learned, in %; "parts": parts
    that an ablation page of planted models names; "stability": significant members that
    are not so when all windows begin 1 to 5 steps earlier, in %.
    """
    batch = bundled(*bundled_names()).tail(76)
    learned = [
        ["model", "models of each kind", "weights in random order", "new weights"]
    ]
    for name in (*EMBEDDED, *TINY):
        if name in EMBEDDED:
            lens = load(name)
        else:
            lens = load(tiny(name), check=False)
        shares = learned_pages(
            lens,
            partial(_run, batch, min(12, lens.adapter.longest_pass)),
            models=models,
        )
        learned.append(
            [name, str(models), *(f"{100 * share:.0f}" for share in shares.values())]
        )
    counts = pd.DataFrame(planted_claims(seeds)).groupby("model", as_index=False).sum()
    heads = [
        "architecture",
        "planted models",
        "true parts of 1 % or more",
        "of them named",
        "others named",
    ]
    looks = (
        ([batch], 1),
        ([bundled(*bundled_names())], 4),
        ([bundled(name) for name in LONG], 40),
    )
    stability = [["model", *_LOOKS]]
    for name in EMBEDDED:
        lost = (shifted_claims(load(name), *look) for look in looks)
        stability.append([name, *(f"{100 * share:.1f}" for share in lost)])
    return {
        "learned": learned,
        "parts": [heads, *counts.astype(str).values.tolist()],
        "stability": stability,
    }


def write_page(page: Path, tables: Tables) -> None:
    """Write tables beside a page, and the answer that follows from them into it."""
    for name, table in tables.items():
        text = pd.DataFrame(table).to_csv(index=False, header=False)
        write_atomically(page.with_suffix(f".{name}.csv"), text.encode())
    replace_section(page, START, STOP, answer(tables) + "\n")


def read_tables(page: Path) -> Tables:
    """Read the tables beside a page."""
    found = {}
    for name in FILES:
        with page.with_suffix(f".{name}.csv").open(newline="") as lines:
            found[name] = [*csv.reader(lines)]
    return found


def answer(tables: Tables) -> str:
    """Format the answer: four lines, ten rows, and where the long tables are."""
    pages, leaders, learned, parts, stability = (
        pd.DataFrame(rows[1:], columns=rows[0]).set_index(rows[0][0]).astype(float)
        for rows in (tables[name] for name in FILES)
    )
    false = pages.filter(like="false pages")
    models = learned["models of each kind"].iloc[0]
    kinds = {
        f"{name}, {kind}": float(learned.loc[name, kind])
        for name in learned.index
        for kind in learned.columns[1:]
    }
    mean = np.mean([*kinds.values()])
    worst = max(kinds, key=kinds.__getitem__)
    few = false.iloc[:, : UNITS.index(8) + 1].max().max()
    power = {n: float(pages[f"power, {n} series"]["normal"]) for n in (16, 32)}
    windows = stability.columns[-1]
    of_series = stability.iloc[:, :-1].to_numpy().ravel().tolist()
    true, named = (int(parts[name].sum()) for name in parts.columns[1:3])
    others = int(parts["others named"].sum())
    rows = [
        ["claim", "measured", "promised"],
        ["false pages, worst of all cases", f"{false.max().max():g} %", "5 %"],
        ["false pages, 8 series or fewer", f"{few:g} %", "0 %"],
        *(
            [
                f"effects of one unit found, {n} normal series",
                f"{power[n]:g} %",
                "",
            ]
            for n in power
        ),
        ["false leader of two members", f"{leaders.iloc[:, 0].max():g} %", "5 %"],
        ["untrained pages that call a part learned, mean", f"{mean:.1f} %", "5 %"],
        [f"the same, worst ({worst})", f"{kinds[worst]:g} %", ""],
        ["planted parts of 1 % or more that are named", f"{named} of {true}", ""],
        ["idle parts that are named", f"{others}", "0"],
        [
            f"significant members lost if windows move, {windows}",
            _spread(stability[windows]),
            "",
        ],
    ]
    lines = [
        (
            "**Significant**: of pages with 24 members and no effect, at most"
            f" {false.max().max():g} % call one significant. With fewer than ten series"
            " nothing is."
        ),
        (
            f"**Learned**: {_spread([*kinds.values()])} of the pages of untrained"
            f" models call a part learned, of {models:g} models each; the mean is"
            f" {mean:.1f} %."
        ),
        (
            f"**Named**: ablation pages name {named} of {true} planted parts of 1 % or"
            f" more, and {others} others."
        ),
        (
            f"**Stable**: {_spread(of_series)} of the significant members of 13 series"
            " are lost if all windows move by 1 to 5 steps; of 40 windows of"
            f" one series, {_spread(stability.iloc[:, -1])}."
        ),
    ]
    files = ", ".join(f"{{download}}`calibration.{name}.csv`" for name in FILES)
    listed = "\n".join(f"- {line}" for line in lines)
    return f"{listed}\n\n{markdown(rows)}\n\nAll tables: {files}."


def _spread(values: Sequence[float] | pd.Series) -> str:
    return f"{min(values):g} to {max(values):g} %"


def main(
    out: Annotated[Path, typer.Option(help="page whose answer is written anew")],
    *,
    trials: Annotated[
        int, typer.Option(min=5, help="simulated pages of each kind")
    ] = 1000,
    models: Annotated[
        int, typer.Option(min=1, help="untrained models of each kind")
    ] = 20,
    seeds: Annotated[
        int, typer.Option(min=1, help="planted models of each mechanism")
    ] = 4,
    read: Annotated[
        bool, typer.Option("--read", help="make the page of the CSV that is there")
    ] = False,
) -> None:
    """Measure how often pages claim what is not so; write tables, and the answer."""
    if read:
        tables = read_tables(out)
    else:
        tables = _simulated(trials) | _of_models(models, seeds)
    write_page(out, tables)


if __name__ == "__main__":
    run_command(main)
