"""Page of scores: tables between marks of a page whose sentences stay.

:func:`write_page` writes them, and long tables as CSV files beside the page;
:func:`tables` and :func:`explanation_tables` format them. Nothing is measured here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.io import write_atomically
from tsfm_lens.core.stats import mean_interval
from tsfm_lens.studies.method_scores.explanations import NAIVE
from tsfm_lens.studies.method_scores.methods import METHODS, ROUTES, SEGMENTS

START = "<!-- from the scores -->\n"
STOP = "<!-- end of the scores -->"
EXPLAINED = (
    "<!-- from the explanations -->\n",
    "<!-- end of the explanations -->",
)
"""Marks of the tables of explanations."""
TITLES = {
    SEGMENTS: "Which inputs explain a forecast",
    ROUTES: "Through which heads and MLPs the input acts",
}
LEVELS = {
    "nodes": "heads and MLPs",
    "edges": "edges",
    "inputs": "stretches of the past",
    "repaired": "the part that a backup compensates",
    "pairs": "two parts that compensate for each other",
}
"""What methods find, by level."""
ANSWER = (
    "zero ablation, of the range",
    "mean ablation",
    "activation patching, denoise",
    "attribution patching, denoise",
    "direct attribution, integrated",
    "circuit, greedy, zeroed",
    "sharp heads",
    "path patching",
    "self-repair",
    "attention rollout",
)
"""Methods in the ten rows of the page; the files have all."""
DECOYS = {
    "lifts": "raises all logits equally",
    "copying head": "attends where the copying head attends",
    "loud|times": "writes much to unread directions",
    "noise|nothing|the same": "attends sharply and writes almost nothing",
}
"""Kinds of decoys by a pattern in their sentence on the card.

The first pattern that matches counts.
"""
METHOD = ["level", "method"]
PLANTED = "planted"
NOISY_SERIES = "noisy-series"
NOISY_WEIGHTS = "noisy-weights"
UNTRAINED = "untrained"
CONDITIONS = (PLANTED, NOISY_SERIES, NOISY_WEIGHTS, UNTRAINED)
"""Conditions of planting, and of the series that a model is run on."""


@dataclass(frozen=True)
class ScoreTables:
    """Scores of methods, decoys that they fall for, and scores of explanations.

    Each is a tidy table, without rows where nothing was measured.
    """

    methods: pd.DataFrame
    decoys: pd.DataFrame
    explanations: pd.DataFrame


def write_page(scores: ScoreTables, page: Path) -> None:
    """Put tables between the marks of a page, and long ones beside it.

    A page that is not there is made of them alone.
    """
    if not page.exists():
        marks = f"{START}{STOP}\n{''.join(EXPLAINED)}"
        page.write_text(f"# Planted mechanisms\n\n{marks}\n")
    if len(scores.methods):
        replace_section(page, START, STOP, tables(scores))
    if len(scores.explanations):
        replace_section(page, *EXPLAINED, explanation_tables(scores.explanations))
    for name, table in long_tables(scores).items():
        text = table.to_csv(index=False)
        write_atomically(page.with_suffix(f".{name}.csv"), text.encode())


def replace_section(page: Path, start: str, stop: str, text: str) -> None:
    """Replace what stands between two marks of a page."""
    content = ""
    if page.exists():
        content = page.read_text()
    if content.count(start) != 1 or content.count(stop) != 1:
        raise InputError(
            f"{page} has no marks {start.strip()} and {stop}, between which tables"
            " are put"
        )
    before, rest = content.split(start)
    _, after = rest.split(stop)
    write_atomically(page, f"{before}{start}\n{text}\n{stop}{after}".encode())


def tables(scores: ScoreTables) -> str:
    """Format the answer: four lines, ten methods, and where the long tables are."""
    summaries = _summarise(scores.methods, _CELLS).reset_index("level")
    names = [name for name in ANSWER if name in summaries.index]
    shown = summaries.loc[names]
    cells = shown.assign(level=shown["level"].map(LEVELS))[["level", *_SHOWN]]
    heads = ["method", "finds", "AUROC", "untrained", "claims right", "complete"]
    table = [heads, *cells.reset_index().values.tolist()]
    files = (
        "All tables: {download}`planted.models.csv`, {download}`planted.methods.csv`,"
        " {download}`planted.kinds.csv`."
    )
    parts = [_answer(summaries), markdown(table), files]
    return "\n\n".join(parts) + "\n"


def _answer(summaries: pd.DataFrame) -> str:
    """State in four lines what the scores say of the methods that were measured."""
    sentences = {
        "zero ablation, of the range": (
            "**Zero ablation**, as a share of the range of the series, ranks a true"
            " head or MLP above a false one with probability {AUROC}; {claims right}"
            " of what it names is true, and it names {claims complete} of what is true."
        ),
        "activation patching, denoise": (
            "**Activation patching** sees only what differs between two series:"
            " {AUROC}, with {claims right} of its claims right."
        ),
        "sharp heads": (
            "**Attention is a weaker sign**: of the heads that attend sharply,"
            " {claims right} belong to the mechanism; in untrained models,"
            " {untrained claimed} of the heads attend sharply."
        ),
        "zero ablation": (
            "**Untrained models show effects, too**: there {untrained claimed} of the"
            " parts have a significant effect when set to zero, and these effects,"
            " not divided by the range, rank them at {untrained AUROC}; chance is 0.5."
        ),
    }
    lines = [
        f"- {sentence.format_map(summaries.loc[name])}"
        for name, sentence in sentences.items()
        if name in summaries.index
    ]
    return "\n".join(lines)


def long_tables(scores: ScoreTables) -> dict[str, pd.DataFrame]:
    """Format the cells of all tables, by the name of their file."""
    rows = scores.methods
    found = {}
    if len(rows):
        found = {"models": _about(rows), "methods": _all_methods(rows)}
    if len(scores.decoys):
        found["kinds"] = _decoys(scores.decoys)
    if len(scores.explanations):
        found["explanations.methods"] = _explanations(scores.explanations)
    return found


def explanation_tables(rows: pd.DataFrame) -> str:
    """Format scores of explanations as markdown, and say where naive orders are."""
    board = _explanations(rows)
    parts = []
    for level, title in TITLES.items():
        lines = board[board["level"] == level].drop(columns="level")
        if len(lines):
            parts += [f"### {title}", markdown([[*lines], *lines.values.tolist()])]
    parts.append(
        "Orders of the inputs that ignore the model are in"
        " {download}`planted.explanations.methods.csv`."
    )
    return "\n\n".join(parts) + "\n"


def _explanations(rows: pd.DataFrame) -> pd.DataFrame:
    """Format a line for each explanation, the best first within a level."""
    rows = rows.assign(level=rows["level"].mask(rows["method"].isin(NAIVE), "naive"))
    planted = _under(PLANTED, rows)
    by_mechanism = _split(planted, "mechanism", _hundredths)
    means = planted.groupby(METHOD, sort=False)["auroc"].mean()
    order = means.sort_values(ascending=False, kind="stable").index
    table = pd.concat([_summarise(rows, _EXPLANATION_CELLS), by_mechanism], axis=1)
    return _named(METHOD, table.loc[order])


def _all_methods(rows: pd.DataFrame) -> pd.DataFrame:
    """Format a line for each method: its summary, and AUROC by mechanism and condition.

    Conditions are over the models that were measured under all of them.
    """
    conditions = _conditions(rows)
    model = rows.groupby(["mechanism", "architecture", "seed"])["condition"]
    complete = rows[model.transform("nunique") == len(conditions)]
    by_mechanism = _split(_under(PLANTED, rows), "mechanism", _interval)
    by_condition = _split(complete, "condition", _interval).reindex(columns=conditions)
    parts = [
        _summarise(rows, _CELLS),
        by_mechanism.add_prefix("AUROC, "),
        by_condition.add_prefix("AUROC under all conditions, "),
    ]
    table = pd.concat(parts, axis=1).sort_index(key=_place, kind="stable")
    return _named(METHOD, table)


def _about(rows: pd.DataFrame) -> pd.DataFrame:
    """Format parametrisations by condition, and the errors of the planted models.

    Errors are in mean absolute values of the context.
    """
    model = ["mechanism", "architecture"]
    seeds = rows.groupby([*model, "condition"])["seed"].nunique()
    counts = seeds.unstack(fill_value=0)[_conditions(rows)].astype(str)
    planted = _under(PLANTED, rows).groupby(model)
    noisy = rows[rows["weight_noise"] > 0].groupby(model)
    table = counts.assign(
        **{
            "largest error of the planted forecasts": planted["error"].apply(_largest),
            "noise on the weights": noisy["weight_noise"].apply(_bounds),
            "largest error then": noisy["error"].apply(_largest),
        }
    )
    return _named(model, table)


def _split(
    rows: pd.DataFrame, column: str, form: Callable[[pd.Series], str]
) -> pd.DataFrame:
    """Format AUROC of each method by the members of a column."""
    return rows.groupby([*METHOD, column])["auroc"].apply(form).unstack()


def _named(names: list[str], table: pd.DataFrame) -> pd.DataFrame:
    """Fill the empty cells of a table, whose index becomes columns of the names."""
    return table.fillna("").reset_index(names=names)


def _largest(values: pd.Series) -> str:
    return f"{values.max():.1e}"


def _bounds(values: pd.Series) -> str:
    ends = dict.fromkeys(f"{100 * end:g} %" for end in (values.min(), values.max()))
    return "–".join(ends)


def _under(condition: str, rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["condition"] == condition]


def _summarise(rows: pd.DataFrame, cells: Cells) -> pd.DataFrame:
    """Format a row of cells for each method."""
    parts = {}
    for head, (condition, column, form) in cells.items():
        groups = _under(condition, rows).groupby(METHOD)
        parts[head] = groups[column].apply(form)
    return pd.DataFrame(parts).fillna("")


_SHOWN = ("AUROC", "untrained AUROC", "claims right", "claims complete")


def _conditions(rows: pd.DataFrame) -> list[str]:
    """List the conditions that were measured."""
    return [one for one in CONDITIONS if one in set(rows["condition"])]


def _decoys(decoys: pd.DataFrame) -> pd.DataFrame:
    """Format the share of decoys that a method ranks among the true ones, or claims.

    A cell has the share among as many top scores as there are true parts; after the
    slash, the share claimed.
    """
    groups = decoys.groupby(["method", decoys["decoy"].map(_kind)])
    shares = groups[["fooled", "claimed"]].agg(_share)
    # some methods claim nothing
    table = shares.agg(" / ".join, axis=1).str.removesuffix(" / ").unstack()
    kinds = [kind for kind in DECOYS.values() if kind in table]
    return _named(["method"], table[kinds].sort_index(key=_place, kind="stable"))


def _kind(does: str) -> str:
    """Return the kind of a decoy, by the sentence on its card."""
    for text, kind in DECOYS.items():
        if re.search(text, does):
            return kind
    raise InputError(
        f"a decoy {does!r} is of no known kind; its words belong in DECOYS"
    )


def _place(names: pd.Index) -> pd.Index:
    """Return places of levels or methods as they are declared; others come last."""
    declared = {name: place for place, name in enumerate((*LEVELS, *METHODS))}
    return names.map(declared).fillna(len(declared))


def _interval(values: pd.Series) -> str:
    """Format mean and 95 % interval over parametrisations; "" of none.

    Both are within 0 and 1.
    """
    numbers = values.dropna().to_numpy(dtype=float)
    if not len(numbers):
        return ""
    mean, low, high = map(float, mean_interval(numbers))
    if high - low < 0.005:
        return f"{mean:.2f}"
    return f"{mean:.2f} ({max(low, 0.0):.2f}–{min(high, 1.0):.2f})"


def _share(values: pd.Series) -> str:
    return _mean(100 * values.astype(float), "{:.0f} %")


def _hundredths(values: pd.Series) -> str:
    return _mean(values, "{:.2f}")


def _mean(values: pd.Series, form: str = "{:.1f}") -> str:
    if values.notna().any():
        return form.format(values.mean())
    return ""


def markdown(table: list[list[str]]) -> str:
    """Format rows of cells, the first being the heads, as a markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in table]
    return "\n".join([lines[0], "|" + "---|" * len(table[0]), *lines[1:]])


Cells = dict[str, tuple[str, str, Callable[[pd.Series], str]]]
"""By head, of which condition a column is averaged, and how."""
_CELLS: Cells = {
    "in scope": (PLANTED, "scope", _share),
    "AUROC": (PLANTED, "auroc", _interval),
    "precision at the true size": (PLANTED, "precision", _interval),
    "worst rank of a true one": (PLANTED, "worst_rank", _mean),
    "of": (PLANTED, "candidates", _mean),
    "claims right": (PLANTED, "claim_precision", _share),
    "claims complete": (PLANTED, "claim_recall", _share),
    "untrained AUROC": (UNTRAINED, "auroc", _interval),
    "untrained claimed": (UNTRAINED, "claimed", _share),
}
_EXPLANATION_CELLS: Cells = {
    "AUROC": (PLANTED, "auroc", _interval),
    "worst rank of a true one": (PLANTED, "worst_rank", _mean),
    "of": (PLANTED, "candidates", _mean),
    "cannot explain": (PLANTED, "refused", _share),
    "untrained: AUROC": (UNTRAINED, "auroc", _hundredths),
}
