"""Benchmark of explanations on planted models.

One function is one method, and gets one row of a leaderboard: read :func:`benchmark`.
:data:`SHIPPED` holds the methods that come with the package. Probes are scored in
:mod:`tsfm_lens.studies.method_scores.scores`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import pandas as pd
import typer

from tsfm_lens.core.errors import InputError, LensError, unknown_name
from tsfm_lens.core.stats import mean_interval
from tsfm_lens.explain.attribution import METHODS, input_attribution
from tsfm_lens.explain.routes import input_routes, list_branches
from tsfm_lens.explain.segments import Segment, segments
from tsfm_lens.models.run import Run
from tsfm_lens.probes import attention_patterns
from tsfm_lens.studies.method_scores.marks import marks
from tsfm_lens.studies.method_scores.page import (
    PLANTED,
    UNTRAINED,
    markdown,
    replace_section,
    write_table,
)
from tsfm_lens.studies.method_scores.series import evaluation_case, untrained
from tsfm_lens.training.command import run_command
from tsfm_lens.zoo.planted import mechanisms, plant
from tsfm_lens.zoo.planted.card import Card
from tsfm_lens.zoo.planted.draft import SPAN
from tsfm_lens.zoo.planted.rules import CovariateTimes, Gate, LocalMean

__all__ = ["SHIPPED", "benchmark", "measured"]

REFERENCE = "mean"
"""Reference that replaces a masked step in the benchmark."""
PARTS = 8
"""Number of segments that the past of a case's target is cut into."""
MANY = 8
"""Factor by which naive orders are scored on more forecasts than other methods."""
# parts whose task begins so write the same whatever the values of the series, so that
# no influence of the input passes through them
_CONSTANT = ("marks ", "tells the step")


@dataclass(frozen=True, eq=False)
class ExplanationCase:
    """Forecast of a planted model, or of an untrained model of the same kind.

    Attributes:
        mechanism, architecture, seed: planted model.
        number: position of the series among those of the model.
        twin: whether the untrained model forecasts.
        run: run of the one series with its covariates.
        parts: segments of its input.
        components: names of the heads and MLPs.
        true_parts: (segment, step), 1 where the mechanism reads the segment for the
            step, 0 where not, NaN where it only decides whether a gate is open.
        true_components: (component,), whether the input acts through it.
    """

    mechanism: str
    architecture: str
    seed: int
    number: int
    twin: bool
    run: Run
    parts: tuple[Segment, ...]
    components: tuple[str, ...]
    true_parts: np.ndarray
    true_components: np.ndarray

    @property
    def model(self) -> str:
        """Name of the model, the same for all cases of it."""
        condition = ", untrained" if self.twin else ""
        return f"{self.mechanism} in {self.architecture}, seed {self.seed}{condition}"


def cases(
    pairs: Sequence[tuple[str, str]] | None = None,
    *,
    seeds: int = 4,
    series: int = 1,
    twins: bool = False,
) -> Iterator[ExplanationCase]:
    """Yield every case of the benchmark, model by model; see :func:`benchmark`."""
    for mechanism, architecture in mechanisms() if pairs is None else pairs:
        for seed in range(seeds):
            for is_twin in (False, True) if twins else (False,):
                yield from _make_cases(mechanism, architecture, seed, is_twin, series)


# reads=None: the seed chooses which part of the context the mechanism reads
_plant = lru_cache(maxsize=2)(partial(plant, reads=None))


@lru_cache(maxsize=256)
def _make_cases(
    mechanism: str, architecture: str, seed: int, is_twin: bool, series: int
) -> tuple[ExplanationCase, ...]:
    """Make the cases of a planted model or of its untrained twin, one a series."""
    planted = _plant(mechanism, architecture, seed=seed)
    card = planted.card
    if is_twin:
        lens = untrained(planted, seed)
    else:
        lens = planted.lens()
    noise = 0.05
    if isinstance(card.rule, CovariateTimes):
        # its series are random walks and white noise already
        noise = 0.0
    run = evaluation_case(lens, card, series=series, noise=noise, seed=seed).clean
    # a backup acts only if the part that it stands in for is gone: it is not scored
    backups = set(card.components("backup"))
    names = tuple(name for name in map(str, list_branches(lens)) if name not in backups)
    carriers = {
        part.component
        for part in card.parts
        if part.role == "mechanism" and not part.does.startswith(_CONSTANT)
    }
    is_carrier = np.array([name in carriers for name in names])
    forecasts = []
    for number in range(series):
        item_run = run.item(number)
        # covariates are cut into stretches like the target
        parts = segments(run, number, parts=PARTS, season=1, others="stretches")
        forecasts.append(
            ExplanationCase(
                mechanism=mechanism,
                architecture=architecture,
                seed=seed,
                number=number,
                twin=is_twin,
                run=item_run,
                parts=parts,
                components=names,
                true_parts=_label_segments(card, item_run, parts),
                true_components=is_carrier,
            )
        )
    return tuple(forecasts)


def _label_segments(card: Card, run: Run, parts: Sequence[Segment]) -> np.ndarray:
    """Label the segments that the rule reads; see ``ExplanationCase.true_parts``."""
    rule = card.rule
    values = [np.asarray(value) for value in run.batch.values]
    target = values[0]
    if isinstance(rule, CovariateTimes):
        source = run.batch.roles.index("known")
        weights = rule.inputs(target, values[source], card.horizon)
    else:
        source = 0
        weights = rule.inputs(target, card.horizon)
    # segments count from the forecast start, weights from the start of the context
    n_past = len(target)
    stretches = [slice(part.start + n_past, part.stop + n_past) for part in parts]

    def has_weight(step_weights: np.ndarray) -> np.ndarray:
        """Test which stretches have a weight other than 0, (segment, step).

        ``step_weights`` are (step, time).
        """
        return np.stack(
            [np.abs(step_weights[:, stretch]).any(1) for stretch in stretches]
        )

    is_of_source = np.array([part.row == source for part in parts])[:, None]
    labels = (has_weight(weights) & is_of_source).astype(float)
    if isinstance(rule, Gate):
        # the gate compares the last two periods, which a mean over both reads
        mean_of_both = LocalMean(width=2 * rule.period, ago=rule.ago)
        decides = has_weight(mean_of_both.inputs(target, card.horizon))
        labels[decides & (labels == 0)] = np.nan
    return labels


Level = Literal["inputs", "routes"]
Scorer = Callable[[ExplanationCase], Any]
"""Function from a case to scores, more meaning more important: (segment, step) or
(segment,) for inputs, (component,) for routes."""

START = "<!-- from the explanations -->\n"
STOP = "<!-- end of the explanations -->"
_TITLES = {
    "inputs": "Which inputs explain a forecast",
    "routes": "Through which heads and MLPs the input acts",
}


def benchmark(
    method: Scorer | str,
    level: Level = "inputs",
    *,
    name: str | None = None,
    **cases_of: Any,
) -> pd.DataFrame:
    """Score one method of explaining forecasts on every planted model.

    Args:
        method: a function of a case, or the name of one that ships, see
            :data:`SHIPPED`. A case has ``run`` (of one item), ``parts`` (its segments)
            and ``components`` (names of heads and MLPs); the function gives scores,
            more meaning more important: for "inputs" (segment, step), or one a segment
            for all steps, for "routes" one a component. It may raise an InputError for
            models that it cannot explain.
        level: explain by "inputs" (segments) or "routes" (components).
        name: name of the method in the row; its own if None.
        cases_of: ``pairs``, (mechanism, architecture) of planted models, all if None;
            ``seeds``, parametrisations of each; ``series``, forecasts of each model;
            ``twins``, also score it on untrained twins.

    Returns:
        One row. "auroc" is the mean over models of the AUROC of the scores, "low" and
        "high" are its 95 % interval. "worst_rank" and "mean_rank" are the ranks of the
        true segments or components among "of" candidates. "cases" and "refused" count
        all cases and those that the method cannot explain. "untrained" is the AUROC on
        untrained twins, the method's own chance level. Each mechanism has a column
        with its AUROC.

    Raises:
        InputError: no such level, scores of another shape, or no case that the method
            can explain.
        UnknownNameError: no such method.

    Example:
        >>> def oldest_first(case):
        ...     return [abs(part.start) for part in case.parts]
        >>> models = {"pairs": [("seasonal-copy", "chronos-bolt")], "seeds": 1}
        >>> row = leaderboard.benchmark(oldest_first, name="oldest first", **models)
        >>> row["method"].tolist()
        ['oldest first']
    """
    return leaderboard(measured(method, level, name=name, **cases_of))


def measured(
    method: Scorer | str,
    level: Level = "inputs",
    *,
    name: str | None = None,
    **cases_of: Any,
) -> pd.DataFrame:
    """Score one method, with one row for each case.

    Arguments and errors are those of :func:`benchmark`.

    Example:
        >>> models = {"pairs": [("seasonal-copy", "chronos-bolt")], "seeds": 1}
        >>> rows = leaderboard.measured("random", series=2, **models)
        >>> len(rows)
        2
    """
    if level not in get_args(Level):
        raise InputError(f"level={level!r} is not known, choose 'inputs' or 'routes'")
    if isinstance(method, str) and (level, method) not in SHIPPED:
        raise unknown_name(
            "method",
            method,
            [shipped for method_level, shipped in SHIPPED if method_level == level],
        )
    if isinstance(method, str):
        score = SHIPPED[level, method]
        own_name = method
    else:
        score = method
        own_name = getattr(method, "__name__", "a method")
    label = str(name or own_name)
    rows: list[dict[str, Any]] = []
    for case in cases(**cases_of):
        columns: dict[str, Any] = {
            "method": label,
            "level": level,
            "mechanism": case.mechanism,
            "architecture": case.architecture,
            "seed": case.seed,
            "series": case.number,
            "condition": UNTRAINED if case.twin else PLANTED,
            "date": str(dt.date.today()),
        }
        try:
            scores = np.asarray(score(case), dtype=float)
        except InputError:
            rows.append({**columns, "refused": True})
            continue
        agreement = _compare_with_truth(case, level, scores, label)
        rows.append({**columns, "refused": False, **agreement})
    table = pd.DataFrame(rows)
    if not len(table) or table["refused"].all():
        raise InputError(f"{label} explains none of the {len(table)} cases")
    return table


def _compare_with_truth(
    case: ExplanationCase, level: Level, scores: np.ndarray, label: str
) -> dict[str, float]:
    """Measure how well scores agree with the truth.

    Scores of inputs are compared at each forecast step, and the measures averaged.
    """
    expected: tuple[tuple[int, ...], ...]
    if level == "inputs":
        labels = case.true_parts
        expected = (labels.shape, labels.shape[:1])
        meaning = "(segment, step), or one a segment"
    else:
        labels = case.true_components.astype(float)[:, None]
        expected = (labels.shape[:1],)
        meaning = "one a component"
    if scores.shape not in expected:
        raise InputError(
            f"{label} gave scores of shape {scores.shape}, expected"
            f" {' or '.join(map(str, expected))}: {meaning}"
        )
    # scores without a step axis hold for every step
    by_step = np.broadcast_to(scores.reshape(len(scores), -1), labels.shape)
    measures = []
    for step_scores, step_labels in zip(by_step.T, labels.T, strict=True):
        is_labelled = np.isfinite(step_labels)
        measures.append(marks(step_scores[is_labelled], step_labels[is_labelled] > 0))
    table = pd.DataFrame(measures)
    return {str(name): float(table[name].mean()) for name in table}


def leaderboard(rows: pd.DataFrame) -> pd.DataFrame:
    """Summarise each method in one line, best first within a level.

    See :func:`benchmark` for the columns.
    """
    lines = []
    for (level, method), group in rows.groupby(["level", "method"], sort=False):
        planted = group[group["condition"] == PLANTED]
        untrained_rows = group[group["condition"] == UNTRAINED]
        mean, low, high = _over_models(planted, "auroc")
        line: dict[str, Any] = {
            "method": method,
            "level": level,
            "auroc": mean,
            "low": low,
            "high": high,
        }
        line |= {
            column: planted[column].mean() for column in ("worst_rank", "mean_rank")
        }
        line |= {
            "of": planted["candidates"].mean(),
            "cases": len(planted),
            "refused": int(planted["refused"].sum()),
        }
        line["untrained"] = (
            _over_models(untrained_rows, "auroc")[0] if len(untrained_rows) else np.nan
        )
        line |= {
            str(mechanism): _over_models(mechanism_rows, "auroc")[0]
            for mechanism, mechanism_rows in planted.groupby("mechanism")
        }
        lines.append(line)
    # levels in the order of their names
    table = pd.DataFrame(lines).sort_values(
        ["level", "auroc"], ascending=[True, False], kind="stable"
    )
    return table.reset_index(drop=True)


def _over_models(rows: pd.DataFrame, column: str) -> tuple[float, float, float]:
    """Average over models, each the mean over its cases.

    Returns:
        The mean, and the bounds of its 95 % interval within 0 and 1.
    """
    by_model = (
        rows.groupby(["mechanism", "architecture", "seed"])[column]
        .mean()
        .dropna()
        .to_numpy(dtype=float)
    )
    if not len(by_model):
        return np.nan, np.nan, np.nan
    mean, low, high = (float(value) for value in mean_interval(by_model))
    return mean, max(low, 0.0), min(high, 1.0)


# --- the methods that ship


def _attribution(case: ExplanationCase, method: str) -> np.ndarray:
    options: dict[str, Any] = {
        "method": method,
        "reference": REFERENCE,
        "parts": case.parts,
    }
    attribution = input_attribution(case.run, **options)["attribution"]
    values = attribution.transpose("segment", "step", "quantile")
    median = int(np.argmin(np.abs(values["quantile"].values - 0.5)))
    return np.abs(values.values[..., median])


def _routes(case: ExplanationCase, exact: bool) -> np.ndarray:
    """Measure the mean absolute effect through each component.

    It is summed over segments, and exact or estimated to first order.
    """
    routes = input_routes(
        case.run, parts=case.parts, reference=REFERENCE, components=case.components
    )
    if exact:
        return np.asarray(routes["size"].sum("segment").values)
    if "estimate" not in routes:
        raise InputError("no gradients")
    estimates = routes["estimate"].transpose("component", "segment", "step").values
    return np.abs(estimates).mean(-1).sum(-1)


def _peak_attention(case: ExplanationCase) -> np.ndarray:
    """Return the largest mean attention of each head to any one token.

    MLPs have no attention, and get 0.
    """
    lens = case.run.lens
    run = case.run
    largest: dict[str, float] = {}
    for stack in lens.wiring.stacks:
        for kind in stack.attention_kinds():
            pattern = attention_patterns(run, stack=stack.name, kind=kind)["pattern"]
            other_dims = [
                dim for dim in pattern.dims if dim not in ("layer", "head", "key")
            ]
            peaks = pattern.mean(other_dims).max("key")
            prefix = ""
            if stack.name:
                prefix = f"{stack.name}."
            for layer in peaks["layer"].values:
                for head in peaks["head"].values:
                    largest[f"{prefix}{layer}.{kind}.{head}"] = float(
                        peaks.sel(layer=layer, head=head)
                    )
    return np.array([largest.get(name, 0.0) for name in case.components])


def _random(case: ExplanationCase, level: Level) -> np.ndarray:
    size = len(case.parts if level == "inputs" else case.components)
    # the length of its name stands for the mechanism in the seed
    rng = np.random.default_rng([case.seed, case.number, len(case.mechanism)])
    return rng.random(size)


def _score_by_values(measure: Callable[[np.ndarray], Any]) -> Scorer:
    """Return a method that scores a segment by a measure of its own values.

    The values are standardised by the past of their series.
    """

    def score(case: ExplanationCase) -> np.ndarray:
        batch = case.run.batch
        scores = []
        futures = batch.known_future(case.run.horizon)
        for part in case.parts:
            past = np.asarray(batch.values[part.row])
            values = np.concatenate([past, futures[part.row]])
            standardised = (values - past.mean()) / past.std()
            n_past = len(past)
            scores.append(
                measure(standardised[part.start + n_past : part.stop + n_past])
            )
        return np.array(scores)

    return score


NAIVE: Mapping[str, Scorer] = {
    "newest first": lambda case: np.array(
        [part.stop for part in case.parts], dtype=float
    ),
    "oldest first": lambda case: np.array(
        [-part.start for part in case.parts], dtype=float
    ),
    # steps count back from the forecast start: the middle of a context is -SPAN / 2
    "middle first": lambda case: np.array(
        [-abs(part.start + part.stop + SPAN) for part in case.parts], dtype=float
    ),
    "farthest from the mean first": _score_by_values(
        lambda values: np.abs(values).mean()
    ),
    "largest values first": _score_by_values(np.mean),
    "most varied first": _score_by_values(np.std),
}
"""Orders of segments that ignore the model.

The reverse of an order is as naive: an AUROC far below 0.5 tells as much as one above.
"""
SHIPPED: Mapping[tuple[str, str], Scorer] = {
    **{("inputs", name): partial(_attribution, method=name) for name in METHODS},
    **{("inputs", name): order for name, order in NAIVE.items()},
    ("inputs", "random"): partial(_random, level="inputs"),
    ("routes", "routes, exact"): partial(_routes, exact=True),
    ("routes", "routes, first order"): partial(_routes, exact=False),
    ("routes", "attention, its peak"): _peak_attention,
    ("routes", "random"): partial(_random, level="routes"),
}
"""Every method that ships, by level and name."""


# --- the page


def tables(rows: pd.DataFrame) -> str:
    """Format the leaderboards as markdown, and where that of naive orders is."""
    board = long_table(rows)
    parts = []
    for level, title in _TITLES.items():
        lines = [line[1:] for line in board if line[0] in ("level", level)]
        if len(lines) > 1:
            parts += [f"### {title}", markdown(lines)]
    parts.append(
        "Orders of the inputs that ignore the model are in"
        " {download}`planted.explanations.methods.csv`."
    )
    return "\n\n".join(parts) + "\n"


def long_table(rows: pd.DataFrame) -> list[list[str]]:
    """Format all methods, rows of cells of which the first are the heads."""
    board = leaderboard(rows)
    board.loc[board["method"].isin(NAIVE), "level"] = "naive"
    mechanism_names = sorted(rows["mechanism"].unique())
    lines = [
        [
            "level",
            "method",
            "AUROC",
            "worst rank of a true one",
            "of",
            "cannot explain",
            "untrained: AUROC",
            *mechanism_names,
        ]
    ]
    for _, line in board.iterrows():
        aurocs = [
            line["untrained"],
            *(line.get(mechanism, np.nan) for mechanism in mechanism_names),
        ]
        lines.append(
            [
                str(line["level"]),
                str(line["method"]),
                f"{line['auroc']:.2f} ({line['low']:.2f}–{line['high']:.2f})",
                f"{line['worst_rank']:.1f}",
                f"{line['of']:.1f}",
                f"{100 * line['refused'] / line['cases']:.0f} %",
                *(f"{value:.2f}" if np.isfinite(value) else "" for value in aurocs),
            ]
        )
    return lines


def main(
    out: Annotated[
        Path, typer.Option(help="the page; everything measured goes beside it as CSV")
    ],
    *,
    seeds: Annotated[
        int, typer.Option(min=1, help="parametrisations of each mechanism")
    ] = 4,
    series: Annotated[int, typer.Option(min=1, help="forecasts of each model")] = 1,
    only: Annotated[
        list[str] | None, typer.Option(help="methods; all that ship if none")
    ] = None,
    since: Annotated[
        str, typer.Option(help="measure what has an earlier date again, YYYY-MM-DD")
    ] = "",
    read: Annotated[
        bool, typer.Option("--read", help="make the page of the CSV that is there")
    ] = False,
) -> None:
    """Score every method of explaining forecasts on planted models.

    Their table is written into the page.
    """
    file = out.with_suffix(".explanations.csv")
    try:
        table = None
        done: set[tuple[str, str]] = set()
        if file.exists():
            table = pd.read_csv(file)
            oldest = table.groupby(["level", "method"])["date"].min()
            done = set(oldest[oldest >= since].index)
        if read and table is None:
            raise InputError(f"nothing was measured for {out} yet; leave out --read")
        if read:
            keys = []
        else:
            keys = [key for key in SHIPPED if not only or key[1] in only]
        if only and not keys and not read:
            raise unknown_name("method", only[0], [name for _, name in SHIPPED])
        for level, name in keys:
            if (level, name) in done:
                continue
            # orders that look at no model cost nothing, and are the same on twins
            is_naive = name in NAIVE
            method_rows = measured(
                name,
                level,  # type: ignore[arg-type]
                seeds=seeds,
                series=MANY * series if is_naive else series,
                twins=not is_naive,
            )
            other_rows = None
            if table is not None:
                is_other = (table["method"] != name) | (table["level"] != level)
                other_rows = table[is_other]
            if other_rows is None or not len(other_rows):
                table = method_rows
            else:
                table = pd.concat([other_rows, method_rows], ignore_index=True)
            # each method is written as soon as it is measured
            table.to_csv(file, index=False, float_format="%.3g")
        assert table is not None
        replace_section(out, START, STOP, tables(table))
        write_table(out.with_suffix(".explanations.methods.csv"), long_table(table))
    except (LensError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    run_command(main)
