"""Verdicts on the claims of each paper, and printed numbers of the first beside ours,
from the recorded answers of ``reproduce``; and what the queue has still to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sitepages.drawing import CACHE
from sitepages.writing import plain, table, write
from tsfm_lens.studies.papers.answers import read_answer
from tsfm_lens.studies.papers.items import BY_ID, PAPERS, Item
from tsfm_lens.studies.papers.verdicts import FAILS, UNDECIDED, Tested, Verdict
from tsfm_lens.studies.queue.driver import RECORDS, Queue, unfinished
from tsfm_lens.studies.queue.orders import all_cells

MODELS = ("bolt-nano", "chronos-nano")
METRICS = {
    "MASE": "MASE",
    "NRMSE": "NRMSE",
    "sMAPE": "SMAPE",
    "CRPS": "CRPS",
    "MSIS": "MSIS",
}
RECIPES = {
    "TimesFM 2.5, 28 % of heads, 2 MLPs": "timesfm-28",
    "Toto, 29 % of heads": "toto-29",
    "Toto, 29 % of heads, 1 MLP": "toto-29-1mlp",
    "Toto, 43 % of heads": "toto-43",
    "Chronos-Bolt, 28 % of heads, 6 MLPs": "bolt-28-6mlp",
    "Chronos-Bolt, 42 % of heads, 6 MLPs": "bolt-42-6mlp",
}
"""Recipes of the rows of tables 1 and 4; the paper leaves some open."""
HEADER = ("id", "claim", "verdict", "what decides, or why it is open")


def write_verdicts() -> None:
    """Write a table of verdicts for each paper, one of printed numbers, and one of runs
    that are planned.
    """
    for paper, content in PAPERS.items():
        rows = [row for item in content["items"] for row in _rows(item)]
        write(f"{CACHE.name}/verdicts-{paper}.md", table(HEADER, rows) + "\n")
    header = ("recipe", "metric", "printed", *MODELS, "as many parts at random")
    write(f"{CACHE.name}/heavy.md", table(header, _heavy()) + "\n")
    write(f"{CACHE.name}/unfinished.md", describe_open_runs() + "\n")


def describe_open_runs(records: Path = RECORDS) -> str:
    """Tabulate the records that lack planned runs, with the hours that these need."""
    queue = Queue(all_cells(Path()), records, records)
    on = {
        cell.record: "a GPU" if cell.needs_cuda else "one core"
        for cell in unfinished(queue)
    }
    if not on:
        return "All planned runs are done."
    status = queue.status().query("done < cells").reset_index()
    rows = [
        [
            row["record"],
            f"{row['done']:.0f} of {row['cells']:.0f}",
            f"{row['hours left']:.1f}",
            on[row["record"]],
        ]
        for row in status.to_dict("records")
    ]
    return table(("record", "planned runs that are done", "hours left", "on"), rows)


def _rows(item: Item) -> Iterator[list[str]]:
    """Yield a row for every claim of an item."""
    answer = read_answer(item)
    if answer is None:
        return
    for name, verdict in answer[0].claims.items():
        claim = item.words.get(name, name)
        yield [item.id, plain(claim), verdict.outcome, plain(_deciding(verdict))]


def _deciding(verdict: Verdict) -> str:
    """What the parts of a verdict came to, grouped by their outcome."""
    if len(verdict.parts) == 1:
        return _margin(verdict.parts[0])
    by_outcome: dict[str, list[str]] = {}
    for part in verdict.parts:
        reason = ""
        if part.why and part.outcome in (FAILS, UNDECIDED):
            reason = f" ({part.why})"
        by_outcome.setdefault(part.outcome, []).append(part.name + reason)
    return "; ".join(
        f"{outcome}: {', '.join(names)}" for outcome, names in by_outcome.items()
    )


def _margin(part: Tested) -> str:
    span = part.interval
    if span is None or np.isnan(span.estimate):
        return part.why
    ends = ""
    if np.isfinite(span.low):
        ends = f" ({span.low:.3g} to {span.high:.3g})"
    reason = ""
    if part.why:
        reason = f"{part.why}; "
    return f"{reason}{part.of}: {span.estimate:.3g}{ends}"


def _heavy() -> Iterator[list[str]]:
    """Yield the printed changes of table 4 beside those of the small models."""
    item = BY_ID["S3-T4"]
    printed = {value.quantity: value.paper for value in item.values}
    answer = read_answer(item)
    assert answer is not None
    ours = answer[0].values
    for row, recipe in RECIPES.items():
        for metric, label in METRICS.items():
            found = [
                ours.get(f"{recipe}, {model}: change of {metric}") for model in MODELS
            ]
            if None in found:
                continue
            random = [
                ours.get(f"{recipe}, {model}: change of {metric}, parts at random")
                for model in MODELS
            ]
            numbers = (printed[f"{row}: change of {label}"], *found)
            cells = [f"{number:+.1f} %" for number in numbers]
            null = ", ".join(f"{number:+.1f} %" for number in random if number)
            yield [row, label, *cells, null]
