"""Trial of the verdict on explanations: how many true and wrong explanations of drawn
forecasts it accepts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.data import as_series
from tsfm_lens.explain import (
    deletion_curves,
    input_attribution,
    input_routes,
    route_faithfulness,
    untrained_twin,
    verdict,
)
from tsfm_lens.explain.faithfulness import matched_sets, named_routes
from tsfm_lens.models import Run, load
from tsfm_lens.studies.method_scores.page import markdown, replace_section
from tsfm_lens.studies.method_scores.series import evaluation_case
from tsfm_lens.training.command import run_command
from tsfm_lens.zoo.planted import mechanisms, plant

STEPS = 96
HORIZON = 16
SEASON = 24
MARKS = {
    "inputs": ("r2", "slope", "sign_agreement"),
    "routes": (
        "necessity",
        "sufficiency",
        "necessity_p",
        "sufficiency_p",
        "prediction_error",
    ),
}
"""Numbers by which they are judged."""
PLANTED = "planted models"
START = "<!-- from the trial -->\n"
STOP = "<!-- end of the trial -->"


def drawn_run(number: int, seed: int) -> Run:
    """Draw two series and forecast them: by the covariate model in every second case,
    else by a planted model.
    """
    if number % 2 == 0:
        rng = np.random.default_rng([seed, number])
        return load("chronos2-nano").run(
            as_series([_item(rng), _item(rng)], seasonality=SEASON), HORIZON
        )
    pairs = mechanisms()
    mechanism, architecture = pairs[number // 2 % len(pairs)]
    model = plant(mechanism, architecture, seed=1000 * seed + number)
    noise = 0.05
    if mechanism == "covariate":
        noise = 0.0
    return evaluation_case(
        model.lens(), model.card, series=2, noise=noise, seed=1000 * seed + number
    ).clean.in_one_pass()


def _item(rng: np.random.Generator) -> dict[str, Any]:
    """Draw a target of a season and a known covariate, which both move it by amounts
    drawn, beside an idle one.
    """
    driver, idle = rng.normal(size=(2, STEPS + HORIZON))
    season, slope = rng.uniform(1, 5, 2) * rng.choice([-1, 1], 2)
    target = (
        20
        + slope * driver[:STEPS]
        + season * np.sin(2 * np.pi * (np.arange(STEPS) / SEASON + rng.random()))
    )
    past = {"idle": idle[:STEPS], "known": driver[:STEPS]}
    return {
        "target": target,
        "past_covariates": past,
        "future_covariates": {"known": driver[STEPS:]},
    }


@dataclass(frozen=True, eq=False)
class Explanation:
    """Effects of the inputs, their routes, and the components that are named of these,
    if others than the largest.
    """

    inputs: xr.Dataset
    routes: xr.Dataset
    named: Mapping[str, Sequence[str]] | None = None

    @classmethod
    def of(cls, run: Run, item: int = 0) -> Explanation:
        """Explain the forecast of one item."""
        inputs = input_attribution(run, item, parts=6).transpose(
            "segment", "step", "quantile", ...
        )
        return cls(inputs, input_routes(run, item, parts=6))

    def changed(self, effects: Any, routes: xr.Dataset) -> Explanation:
        """Return an explanation of the same segments by other effects and routes."""
        inputs = self.inputs.assign(
            attribution=(self.inputs["attribution"].dims, effects)
        )
        return Explanation(inputs, routes.assign_coords(self.routes.coords))


def explanations(run: Run, seed: int) -> dict[str, Explanation]:
    """Explain the first forecast truly and wrongly: by changes of the true explanation,
    and by those of others.

    Equal sizes are on trial with the true routes, and routes through other components
    with the true effects.
    """
    true = Explanation.of(run)
    rng = np.random.default_rng(seed)
    effects = true.inputs["attribution"].values
    routes = true.routes
    order = np.arange(true.inputs.sizes["segment"])
    first = int(np.abs(effects).mean((1, 2)).argmax())
    second = int(rng.choice(np.delete(order, first)))
    order[[first, second]] = second, first
    rest = {
        segment: [
            str(matched_set)
            for matched_set in matched_sets(
                run.lens, run.lens.components(*names), 1, rng
            )[0]
        ]
        for segment, names in named_routes(routes).items()
        if names
    }
    neighbour = Explanation.of(run, 1)
    result = {
        "true": true,
        "signs flipped": true.changed(-effects, routes.assign(total=-routes["total"])),
        "given to another segment": true.changed(
            effects[order], routes.isel(segment=order)
        ),
        "equal sizes": true.changed(np.sign(effects) * np.abs(effects).mean(), routes),
        "through other components": replace(true, named=rest),
        "another series'": true.changed(
            neighbour.inputs["attribution"].values, neighbour.routes
        ),
    }
    # some models without learned weights forecast no number
    with suppress(InputError):
        control = Explanation.of(
            replace(
                run, lens=untrained_twin(run.lens, seed), forced_path=None, _of=None
            )
        )
        result["untrained twin's"] = true.changed(
            control.inputs["attribution"].values, control.routes
        )
    return result


def trial(cases: int, seed: int, first: int = 0) -> pd.DataFrame:
    """Judge every explanation of drawn forecasts, inputs and routes together: a row for
    each, with its marks.

    Beside the verdict stand those of inputs and routes alone, NaN where no route stands
    out of the noise. Marks are of the routes of the segment that matters most.

    Example:
        >>> trial.trial(1, 0, first=3)["verdict"].tolist()[:2]
        ['holds', 'fails']
    """
    rows = []
    for number in range(first, first + cases):
        run = drawn_run(number, seed)
        model = PLANTED
        if number % 2 == 0:
            model = run.lens.model_id
        # the controls' twin is another than the wrong explanation's
        tried = explanations(run, 1000 * seed + number + 1)
        curves = deletion_curves(
            run,
            {kind: entry.inputs for kind, entry in tried.items()},
            0,
            orders=1,
            seed=number,
        )
        for position, (kind, item) in enumerate(tried.items()):
            proofs = {"inputs": curves.isel(explanation=[position])}
            # wrong routes may do nothing at all
            with suppress(InputError), np.errstate(all="ignore"):
                proofs["routes"] = route_faithfulness(
                    run, item.routes, 0, named=item.named, seed=number
                )
            about = {
                "case": number,
                "model": model,
                "explanation": kind,
                "verdict": verdict(*proofs.values())[0],
            }
            alone = {level: verdict(proof)[0] for level, proof in proofs.items()}
            marks = {
                name: proof[name].values[0]
                for level, proof in proofs.items()
                for name in MARKS[level]
            }
            rows.append(about | alone | marks)
    return pd.DataFrame(rows)


def accepted(rows: pd.DataFrame) -> pd.DataFrame:
    """Count the explanations of each kind that hold, and that hold or hold in part: of
    all models and each group.
    """
    counts = {}
    for group in ("all", *rows["model"].unique()):
        of = rows
        if group != "all":
            of = rows[rows["model"] == group]
        for text, mark in (
            ("hold", of["verdict"] == "holds"),
            ("hold or in part", of["verdict"] != "fails"),
        ):
            by = mark.groupby(of["explanation"], sort=False)
            counts[f"{group}: {text}"] = (
                by.sum().astype(str) + " of " + by.size().astype(str)
            )
    return pd.DataFrame(counts)


def main(
    out: Annotated[
        Path, typer.Option(help="the page; everything measured goes beside it as CSV")
    ],
    *,
    cases: Annotated[int, typer.Option(min=1, help="drawn forecasts")] = 200,
    first: Annotated[
        int,
        typer.Option(
            min=0, help="number of the first of them; the CSV's before it stay"
        ),
    ] = 0,
    seed: Annotated[int, typer.Option(help="of the draws")] = 1,
) -> None:
    """Judge true and wrong explanations of drawn forecasts, and write how many hold
    into the page.
    """
    rows = trial(cases, seed, first)
    record = out.with_suffix(".csv")
    if first and record.exists():
        before = pd.read_csv(record)
        rows = pd.concat([before[before["case"] < first], rows])
    rows.to_csv(record, index=False, float_format="%.3g")
    table = accepted(rows).reset_index()
    replace_section(
        out, START, STOP, markdown([list(table.columns), *table.values.tolist()])
    )


if __name__ == "__main__":
    run_command(main)
