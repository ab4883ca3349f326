"""Benchmark of explanations: one function a method, scored on planted models, a row of a leaderboard each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import typer

from tsfm_lens.errors import InputError, LensError, unknown_name
from tsfm_lens.explain.attribution import METHODS, attribute_inputs
from tsfm_lens.explain.routes import input_routes
from tsfm_lens.probes import attention_patterns
from tsfm_lens.stats import mean_interval
from tsfm_lens.studies.method_scores.cases import REFERENCE, Case, cases
from tsfm_lens.training.command import run_command

__all__ = ["SHIPPED", "benchmark", "measured"]

Level = Literal["inputs", "routes"]
Scorer = Callable[[Case], Any]
"""Function from a case to scores, more meaning more important: (segment, step) or (segment,) for inputs, (component,)
for routes."""

START, STOP = "<!-- from the explanations -->\n", "<!-- end of the explanations -->"
_LEVELS = {"inputs": "Which inputs explain a forecast", "routes": "Through which heads and MLPs the input acts"}
PLANTED, UNTRAINED = "planted", "untrained"


@dataclass(frozen=True)
class Entry:
    """Method that ships, with its level and its function."""

    name: str
    level: Level
    score: Scorer


def benchmark(
    method: Scorer | str,
    level: Level = "inputs",
    *,
    name: str | None = None,
    pairs: Sequence[tuple[str, str]] | None = None,
    seeds: int = 3,
    series: int = 1,
    twins: bool = False,
) -> pd.DataFrame:
    """Score one method of explaining forecasts on every planted model.

    Args:
        method: a function of a case, or the name of one that ships, see :data:`SHIPPED`. A case has ``run`` (of one
            item), ``parts`` (its segments) and ``components`` (names of heads and MLPs); the function gives scores,
            more meaning more important: for "inputs" (segment, step), or one a segment for all steps, for "routes" one
            a component. It may raise an InputError for models that it cannot explain.
        level: "inputs" or "routes".
        name: of the method in the row; its own if None.
        pairs: (mechanism, architecture) of planted models; all if None.
        seeds: parametrisations of each.
        series: forecasts of each model.
        twins: also score it on untrained twins, where nothing was planted.

    Returns:
        One row: "method", "level"; "auroc", the chance that a true part scores above another one, with "low" and
        "high", its 95 % interval over models; "worst_rank" and "mean_rank" of true parts, "of" so many; "cases",
        "refused" (cases that the method cannot explain), "untrained" (AUROC there, the method's own chance level), and
        a column for each mechanism.

    Raises:
        InputError: no such level, scores of another shape, or no case that the method can explain.
        UnknownNameError: no such method.

    Example:
        >>> row = leaderboard.benchmark(lambda case: [abs(part.start) for part in case.parts], name="oldest first",
        ...     pairs=[("seasonal-copy", "chronos-bolt")], seeds=1, series=1)
        >>> row["method"].tolist()
        ['oldest first']
    """
    return leaderboard(measured(method, level, name=name, pairs=pairs, seeds=seeds, series=series, twins=twins))


def measured(
    method: Scorer | str,
    level: Level = "inputs",
    *,
    name: str | None = None,
    pairs: Sequence[tuple[str, str]] | None = None,
    seeds: int = 3,
    series: int = 1,
    twins: bool = False,
) -> pd.DataFrame:
    """Score one method, a row for each case; arguments and errors are those of :func:`benchmark`.

    Example:
        >>> rows = leaderboard.measured("random", pairs=[("seasonal-copy", "chronos-bolt")], seeds=1, series=2)
        >>> len(rows)
        2
    """
    if level not in _LEVELS:
        raise InputError(f"level={level!r} is not known, choose 'inputs' or 'routes'")
    score = _scorer(method, level) if isinstance(method, str) else method
    label = str(name or (method if isinstance(method, str) else getattr(method, "__name__", "a method")))
    rows: list[dict[str, Any]] = []
    for case in cases(pairs, seeds=seeds, series=series, twins=twins):
        about: dict[str, Any] = {"method": label, "level": level, "mechanism": case.mechanism}
        about |= {"architecture": case.architecture, "seed": case.seed, "series": case.number}
        about["condition"] = UNTRAINED if case.twin else PLANTED
        try:
            scores = np.asarray(score(case), dtype=float)
        except InputError:
            rows.append({**about, "refused": True})
            continue
        rows.append({**about, "refused": False, **_marks(case, level, scores, label)})
    table = pd.DataFrame(rows)
    if not len(table) or table["refused"].all():
        raise InputError(f"{label} explains none of the {len(table)} cases")
    return table


def _marks(case: Case, level: Level, scores: np.ndarray, label: str) -> dict[str, float]:
    """Measure how well scores agree with the truth; of inputs the mean over the forecast's steps.

    Raises:
        InputError: scores of another shape.
    """
    from tsfm_lens.studies.method_scores.marks import marks

    labels = case.true_parts if level == "inputs" else case.true_components.astype(float)[:, None]
    expected = (labels.shape[:1],) if level == "routes" else (labels.shape, labels.shape[:1])
    if scores.shape not in expected:
        raise InputError(
            f"{label} gave scores of shape {scores.shape}, expected {' or '.join(map(str, expected))}: "
            f"{'(segment, step), or one a segment' if level == 'inputs' else 'one a component'}"
        )
    by_step = scores.reshape(len(scores), -1) * np.ones((1, labels.shape[1]))
    rows = []
    for step in range(labels.shape[1]):
        counts = np.isfinite(labels[:, step])
        rows.append(marks(by_step[counts, step], labels[counts, step] > 0))
    table = pd.DataFrame(rows)
    return {str(name): float(table[name].mean()) for name in table}


def leaderboard(rows: pd.DataFrame) -> pd.DataFrame:
    """Summarise one line a method, best first within a level; see :func:`benchmark`."""
    lines = []
    for (level, method), group in rows.groupby(["level", "method"], sort=False):
        own, twin = group[group["condition"] == PLANTED], group[group["condition"] == UNTRAINED]
        mean, low, high = _over_models(own, "auroc")
        line: dict[str, Any] = {"method": method, "level": level, "auroc": mean, "low": low, "high": high}
        line |= {each: own[each].mean() for each in ("worst_rank", "mean_rank")}
        line |= {"of": own["candidates"].mean(), "cases": len(own), "refused": int(own["refused"].sum())}
        line["untrained"] = _over_models(twin, "auroc")[0] if len(twin) else np.nan
        line |= {str(mechanism): _over_models(of, "auroc")[0] for mechanism, of in own.groupby("mechanism")}
        lines.append(line)
    order = {level: number for number, level in enumerate(_LEVELS)}
    table = pd.DataFrame(lines)
    return table.sort_values(
        ["level", "auroc"], key=lambda column: column.map(order) if column.name == "level" else -column, kind="stable"
    ).reset_index(drop=True)


def _over_models(rows: pd.DataFrame, column: str) -> tuple[float, float, float]:
    """Average over models, each the mean over its cases, with the ends of the 95 % interval within 0 and 1."""
    by_model = rows.groupby(["mechanism", "architecture", "seed"])[column].mean().dropna().to_numpy(dtype=float)
    if not len(by_model):
        return np.nan, np.nan, np.nan
    mean, low, high = (float(each) for each in mean_interval(by_model))
    return mean, max(low, 0.0), min(high, 1.0)


# --- the methods that ship ------------------------------------------------------------------------------------


def _attribution(case: Case, method: str) -> np.ndarray:
    how: dict[str, Any] = {"method": method, "reference": REFERENCE, "parts": case.parts}
    values = attribute_inputs(case.run, **how)["attribution"].transpose("segment", "step", "quantile")
    return np.abs(values.values[..., int(np.argmin(np.abs(values["quantile"].values - 0.5)))])


def _route_sizes(case: Case) -> np.ndarray:
    """Compute the mean absolute effect through a component, all segments together."""
    routes = input_routes(case.run, parts=case.parts, reference=REFERENCE, components=case.components)
    return np.asarray(routes["size"].sum("segment").values)


def _route_estimates(case: Case) -> np.ndarray:
    """Estimate the effect through a component to first order."""
    routes = input_routes(case.run, parts=case.parts, reference=REFERENCE, components=case.components)
    if "estimate" not in routes:
        raise InputError("no gradients")
    return np.abs(routes["estimate"].transpose("component", "segment", "step").values).mean(-1).sum(-1)


def _peak_attention(case: Case) -> np.ndarray:
    """Return the largest mean attention of a head to any one token; MLPs attend to nothing."""
    lens, run = case.run.lens, case.run
    largest: dict[str, float] = {}
    for stack in lens.wiring.stacks:
        for kind in stack.attention_kinds():
            pattern = attention_patterns(run, stack=stack.name, kind=kind)["pattern"]
            others = [dim for dim in pattern.dims if dim not in ("layer", "head", "key")]
            most = pattern.mean(others).max("key")
            dot = f"{stack.name}." if stack.name else ""
            for layer in most["layer"].values:
                for head in most["head"].values:
                    largest[f"{dot}{layer}.{kind}.{head}"] = float(most.sel(layer=layer, head=head))
    return np.array([largest.get(name, 0.0) for name in case.components])


def _random(case: Case, level: Level) -> np.ndarray:
    size = len(case.parts if level == "inputs" else case.components)
    return np.random.default_rng([case.seed, case.number, len(case.mechanism)]).random(size)


def _newest(case: Case) -> np.ndarray:
    """Score the later segments as the more important, as every reader would guess."""
    return np.array([part.stop for part in case.parts], dtype=float)


def _entries() -> dict[tuple[str, str], Entry]:
    every = [
        *(Entry(name, "inputs", partial(_attribution, method=name)) for name in METHODS),
        Entry("newest first", "inputs", _newest),
        Entry("random", "inputs", partial(_random, level="inputs")),
        Entry("routes, exact", "routes", _route_sizes),
        Entry("routes, first order", "routes", _route_estimates),
        Entry("attention, its peak", "routes", _peak_attention),
        Entry("random", "routes", partial(_random, level="routes")),
    ]
    return {(each.level, each.name): each for each in every}


SHIPPED: Mapping[tuple[str, str], Entry] = _entries()
"""Every method that ships, by level and name."""


def _scorer(name: str, level: str) -> Scorer:
    if (level, name) not in SHIPPED:
        raise unknown_name("method", name, [each for of, each in SHIPPED if of == level])
    return SHIPPED[level, name].score


# --- the page ---------------------------------------------------------------------------------------------------


def tables(rows: pd.DataFrame) -> str:
    """Format the leaderboards of both levels as markdown."""
    board = leaderboard(rows)
    mechanisms = sorted(rows["mechanism"].unique())
    parts = []
    for level, title in _LEVELS.items():
        of_level = board[board["level"] == level]
        if not len(of_level):
            continue
        heads = ["method", "AUROC", "worst rank of a true one", "of", "cannot explain", "untrained: AUROC", *mechanisms]
        lines = [heads]
        for _, line in of_level.iterrows():
            marks = [_number(line.get(each, np.nan)) for each in mechanisms]
            auroc = f"{line['auroc']:.2f} ({line['low']:.2f}–{line['high']:.2f})"
            of = [f"{line['worst_rank']:.1f}", f"{line['of']:.1f}", f"{100 * line['refused'] / line['cases']:.0f} %"]
            lines.append([str(line["method"]), auroc, *of, _number(line["untrained"]), *marks])
        parts += [f"## {title}", _markdown(lines)]
    return "\n\n".join(parts) + "\n"


def _number(value: float) -> str:
    return f"{value:.2f}" if np.isfinite(value) else ""


def _markdown(table: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in table]
    return "\n".join([lines[0], "|" + "---|" * len(table[0]), *lines[1:]])


def main(
    out: Annotated[Path, typer.Option(help="the page; everything measured goes beside it as CSV")],
    *,
    seeds: Annotated[int, typer.Option(min=1, help="parametrisations of each mechanism")] = 3,
    series: Annotated[int, typer.Option(min=1, help="forecasts of each model")] = 1,
    only: Annotated[list[str] | None, typer.Option(help="methods; all that ship if none")] = None,
    read: Annotated[bool, typer.Option("--read", help="make the page of the CSV that is there")] = False,
) -> None:
    """Score every method of explaining forecasts on planted models, and write their table into the page.

    With ``--only``, what was measured of other methods before stays.
    """
    from tsfm_lens.studies.method_scores.page import put_between

    file = out.with_suffix(".explanations.csv")
    try:
        before = pd.read_csv(file) if (read or only) and file.exists() else None
        if read and before is None:
            raise InputError(f"nothing was measured for {out} yet; leave out --read")
        keys = [] if read else [key for key in SHIPPED if not only or key[1] in only]
        if only and not keys and not read:
            raise unknown_name("method", only[0], [name for _, name in SHIPPED])
        for level, name in keys:
            now = measured(name, level, seeds=seeds, series=series, twins=True)  # type: ignore[arg-type]
            others = None if before is None else before[(before["method"] != name) | (before["level"] != level)]
            before = now if others is None or not len(others) else pd.concat([others, now], ignore_index=True)
            # each method is written as soon as it is measured
            before.to_csv(file, index=False, float_format="%.3g")
        assert before is not None
        put_between(out, START, STOP, tables(before))
    except (LensError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    run_command(main)
