"""Trial of the verdict on explanations: how many true and wrong explanations of drawn forecasts it accepts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
import xarray as xr

from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError
from tsfm_lens.explain import attribute_inputs, deletion_curves, untrained_twin, verdict
from tsfm_lens.models import Run, load
from tsfm_lens.studies.method_scores.page import markdown, put_between
from tsfm_lens.studies.method_scores.series import evaluation_case
from tsfm_lens.training.command import run_command
from tsfm_lens.zoo.planted import mechanisms, plant

STEPS, HORIZON, SEASON = 96, 16, 24
START, STOP = "<!-- from the trial -->\n", "<!-- end of the trial -->"


def drawn_run(number: int, seed: int) -> Run:
    """Draw two series and forecast them: by the covariate model in every second case, else by a planted model."""
    if number % 2 == 0:
        rng = np.random.default_rng([seed, number])
        return load("chronos2-nano").run(as_series([_item(rng), _item(rng)], seasonality=SEASON), HORIZON)
    pairs = mechanisms()
    mechanism, architecture = pairs[number // 2 % len(pairs)]
    made = plant(mechanism, architecture, seed=1000 * seed + number)
    noise = 0.0 if mechanism == "covariate" else 0.05
    return evaluation_case(made.lens(), made.card, series=2, noise=noise, seed=1000 * seed + number).clean.in_one_pass()


def _item(rng: np.random.Generator) -> dict[str, Any]:
    """Draw a target of a season and a known covariate, which both move it by amounts drawn, beside an idle one."""
    known, idle = rng.normal(size=(2, STEPS + HORIZON))
    season, slope = rng.uniform(1, 5, 2) * rng.choice([-1, 1], 2)
    target = 20 + slope * known[:STEPS] + season * np.sin(2 * np.pi * (np.arange(STEPS) / SEASON + rng.random()))
    past = {"idle": idle[:STEPS], "known": known[:STEPS]}
    return {"target": target, "past_covariates": past, "future_covariates": {"known": known[STEPS:]}}


def explanations(run: Run, seed: int) -> dict[str, xr.Dataset]:
    """Explain the first forecast truly and wrongly: by changes of the true explanation, and by those of others."""
    true = attribute_inputs(run, parts=6).transpose("segment", "step", "quantile", ...)
    effects, order = true["attribution"].values, np.arange(true.sizes["segment"])
    first = int(np.abs(effects).mean((1, 2)).argmax())
    second = int(np.random.default_rng(seed).choice(np.delete(order, first)))
    order[[first, second]] = second, first
    wrong = {
        "signs flipped": -effects,
        "given to another segment": effects[order],
        "equal sizes": np.sign(effects) * np.abs(effects).mean(),
        "another series'": attribute_inputs(run, 1, parts=6)["attribution"].values,
    }
    # some models without learned weights forecast no number
    with suppress(InputError):
        twin = replace(run, lens=untrained_twin(run.lens, seed), forced_path=None, _of=None)
        wrong["untrained twin's"] = attribute_inputs(twin, parts=6)["attribution"].values
    return {"true": true} | {name: true.assign(attribution=(true["attribution"].dims, v)) for name, v in wrong.items()}


def trial(cases: int, seed: int, first: int = 0) -> pd.DataFrame:
    """Judge every explanation of drawn forecasts: a row for each, with the verdict in a word and its marks.

    Example:
        >>> trial.trial(1, 0)["verdict"].tolist()[:2]
        ['holds', 'fails']
    """
    rows = []
    for number in range(first, first + cases):
        run = drawn_run(number, seed)
        # the controls' twin is another than the wrong explanation's
        curves = deletion_curves(run, explanations(run, 1000 * seed + number + 1), orders=1, seed=number)
        for place, kind in enumerate(curves["explanation"].values):
            one = curves.isel(explanation=[place])
            marks = {name: one[name].item() for name in ("r2", "slope", "sign_agreement")}
            about = {"case": number, "model": run.lens.model_id, "explanation": kind, "verdict": verdict(one)[0]}
            rows.append(about | marks | dict(zip(one["control"].values, one["control_r2"].values[0], strict=True)))
    return pd.DataFrame(rows)


def accepted(rows: pd.DataFrame) -> pd.DataFrame:
    """Count the explanations of each kind that hold: of all models, of the covariate model and of planted ones."""
    holds, covariate = rows["verdict"] == "holds", rows["model"] == "chronos2-nano"
    groups = {"all": holds, "chronos2-nano": holds[covariate], "planted models": holds[~covariate]}
    counts = {name: each.groupby(rows["explanation"], sort=False) for name, each in groups.items()}
    return pd.DataFrame({name: by.sum().astype(str) + " of " + by.size().astype(str) for name, by in counts.items()})


def main(
    out: Annotated[Path, typer.Option(help="the page; everything measured goes beside it as CSV")],
    *,
    cases: Annotated[int, typer.Option(min=1, help="drawn forecasts")] = 200,
    first: Annotated[int, typer.Option(min=0, help="number of the first of them")] = 0,
    seed: Annotated[int, typer.Option(help="of the draws")] = 1,
) -> None:
    """Judge true and wrong explanations of drawn forecasts, and write how many hold into the page."""
    rows = trial(cases, seed, first)
    rows.to_csv(out.with_suffix(".csv"), index=False, float_format="%.3g")
    found = accepted(rows).reset_index()
    put_between(out, START, STOP, markdown([list(found.columns), *found.values.tolist()]))


if __name__ == "__main__":
    run_command(main)
