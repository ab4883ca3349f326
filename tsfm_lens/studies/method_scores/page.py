"""Page of scores: tables between two marks of a page whose sentences stay.

:func:`write_page` writes them, :func:`tables` formats them. Nothing is measured here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.io import replacing
from tsfm_lens.core.stats import FEWEST, mean_interval
from tsfm_lens.studies.method_scores.methods import METHODS

START = "<!-- from the scores -->\n"
STOP = "<!-- end of the scores -->"
LEVELS = {
    "parts": "Which heads and MLPs",
    "edges": "Which edges",
    "inputs": "Which stretches of the past",
    "repaired": "Which part a backup compensates",
    "pairs": "Which two parts compensate for each other",
}
DECOYS = {
    "lifts": "raises all logits equally",
    "copying head": "attends where the copying head attends",
    "loud|times": "writes much to unread directions",
    "noise|nothing|the same": "attends sharply and writes almost nothing",
}
"""Kinds of decoys by a pattern in their sentence on the card.

The first pattern that matches counts.
"""
PLANTED = "planted"
UNTRAINED = "untrained"


@dataclass(frozen=True)
class ScoreTables:
    """Scores of methods, and decoys that they fall for, as tidy tables."""

    methods: pd.DataFrame
    decoys: pd.DataFrame


def write_page(scores: ScoreTables, page: Path) -> None:
    """Put the tables between the marks of a page.

    A page that is not there is made of them alone.
    """
    if not page.exists():
        page.write_text(f"# Planted mechanisms\n\n{START}{STOP}\n")
    replace_section(page, START, STOP, tables(scores))


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
    with replacing(page) as temporary:
        temporary.write_text(f"{before}{start}\n{text}\n{stop}{after}")


def tables(scores: ScoreTables) -> str:
    """Format all tables as markdown."""
    rows = scores.methods
    parts = [_about(rows)]
    for level, title in LEVELS.items():
        level_rows = rows[rows["level"] == level]
        if len(level_rows):
            planted = _planted_rows(level_rows)
            parts += [f"## {title}", _summary(level_rows)]
            if level in ("parts", "edges", "inputs"):
                parts += [
                    "AUROC by mechanism:",
                    _format_auroc(
                        planted, "mechanism", sorted(planted["mechanism"].unique())
                    ),
                ]
    parts += [
        "## Noise",
        (
            "AUROC of every method, over the models that were measured under all"
            " conditions:"
        ),
        _by_condition(rows),
    ]
    if len(scores.decoys):
        parts += ["## Decoys", _decoys(scores.decoys)]
    return "\n\n".join(parts) + "\n"


def _about(rows: pd.DataFrame) -> str:
    """Format parametrisations by condition, and the errors of the planted models."""
    conditions = _conditions(rows)
    heads = [
        "mechanism",
        "architecture",
        *map(str, conditions),
        "largest error of the planted forecasts",
    ]
    table = [[*heads, "noise on the weights", "largest error then"]]
    for (mechanism, architecture), group in rows.groupby(["mechanism", "architecture"]):
        counts = [
            str(group.loc[group["condition"] == condition, "seed"].nunique())
            for condition in conditions
        ]
        noisy = group[group["weight_noise"] > 0]
        errors = [
            f"{models['error'].max():.1e}" if len(models) else ""
            for models in (_planted_rows(group), noisy)
        ]
        bounds = noisy["weight_noise"].agg(["min", "max"]).dropna()
        levels = "–".join(dict.fromkeys(f"{100 * level:g} %" for level in bounds))
        table.append(
            [str(mechanism), str(architecture), *counts, errors[0], levels, errors[1]]
        )
    text = (
        "Parametrisations by condition; errors are in mean absolute values of the"
        " context."
    )
    return f"## Models\n\n{text}\n\n{markdown(table)}"


def _planted_rows(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["condition"] == PLANTED]


def _summary(rows: pd.DataFrame) -> str:
    """Format one line for each method: means over all models, and untrained ones."""
    heads = [
        "method",
        "in scope",
        "AUROC",
        "precision at the true size",
        "worst rank of a true one",
        "of",
    ]
    heads += [
        "claims right",
        "claims complete",
        "untrained: AUROC",
        "untrained: claimed",
    ]
    table = [heads]
    for name, group in _methods(rows):
        planted = _planted_rows(group)
        untrained = group[group["condition"] == UNTRAINED]
        line = [
            name,
            _share(planted["scope"]),
            _interval(planted["auroc"]),
            _interval(planted["precision"]),
        ]
        line += [_mean(planted["worst_rank"]), _mean(planted["candidates"])]
        line += [_share(planted["claim_precision"]), _share(planted["claim_recall"])]
        table.append(
            [*line, _interval(untrained["auroc"]), _share(untrained["claimed"])]
        )
    return markdown(table)


def _format_auroc(
    rows: pd.DataFrame, column: str, values: list[str], *first: list[str]
) -> str:
    """Format AUROC by method and by the values of a column, below some first rows."""
    table = [["method", *map(str, values)], *first]
    for name, group in _methods(rows):
        table.append(
            [
                name,
                *(
                    _interval(group.loc[group[column] == value, "auroc"])
                    for value in values
                ),
            ]
        )
    return markdown(table)


def _conditions(rows: pd.DataFrame) -> list[str]:
    """List the conditions: planted models first, untrained ones last."""
    order = {PLANTED: -1, UNTRAINED: 1}
    return sorted(
        dict.fromkeys(rows["condition"]), key=lambda condition: order.get(condition, 0)
    )


def _by_condition(rows: pd.DataFrame) -> str:
    """Format AUROC by method and condition.

    Models are left out that were not measured under every condition.
    """
    values = _conditions(rows)
    model = rows.groupby(["mechanism", "architecture", "seed"])["condition"]
    rows = rows[model.transform("nunique") == len(values)]
    errors = rows.groupby("condition")["error"].max()
    first = [
        "*largest error of the forecast*",
        *(f"{errors[value]:.1e}" for value in values),
    ]
    return _format_auroc(rows, "condition", values, first)


def _decoys(decoys: pd.DataFrame) -> str:
    """Format the share of decoys that a method ranks among the true ones, or claims."""
    rows = _planted_rows(decoys)
    rows = rows.assign(decoy=rows["decoy"].map(_kind))
    kinds = [kind for kind in DECOYS.values() if kind in set(rows["decoy"])]
    table = [["method", *kinds]]
    for name, group in _methods(rows):
        by_kind = [group[group["decoy"] == kind] for kind in kinds]
        shares = [
            [_share(of_kind["fooled"]), _share(of_kind["claimed"])]
            for of_kind in by_kind
        ]
        table.append([name, *(" / ".join(filter(None, pair)) for pair in shares)])
    text = (
        "Share of decoys among as many top scores as there are true parts; after the"
        " slash, the share claimed."
    )
    return f"{text}\n\n{markdown(table)}"


def _kind(does: str) -> str:
    """Return the kind of a decoy, by the sentence on its card."""
    for text, kind in DECOYS.items():
        if re.search(text, does):
            return kind
    raise InputError(
        f"a decoy {does!r} is of no known kind; its words belong in DECOYS"
    )


def _methods(rows: pd.DataFrame) -> Iterable[tuple[str, pd.DataFrame]]:
    """Group rows by method, in the order in which methods are declared.

    Others come last.
    """
    methods = dict.fromkeys(rows["method"])
    names = [
        *(name for name in METHODS if name in methods),
        *(name for name in methods if name not in METHODS),
    ]
    return ((name, rows[rows["method"] == name]) for name in names)


def _interval(values: pd.Series) -> str:
    """Format mean and 95 % interval over parametrisations; "" of none.

    Both are within 0 and 1.
    """
    numbers = values.dropna().to_numpy(dtype=float)
    if not len(numbers):
        return ""
    mean, low, high = (float(value) for value in mean_interval(numbers))
    if len(numbers) < FEWEST or high - low < 0.005:
        return f"{mean:.2f}"
    return f"{mean:.2f} ({max(low, 0.0):.2f}–{min(high, 1.0):.2f})"


def _share(values: pd.Series) -> str:
    return _mean(100 * values.astype(float), "{:.0f} %")


def _mean(values: pd.Series, form: str = "{:.1f}") -> str:
    if values.notna().any():
        return form.format(values.mean())
    return ""


def markdown(table: list[list[str]]) -> str:
    """Format rows of cells, the first being the heads, as a markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in table]
    return "\n".join([lines[0], "|" + "---|" * len(table[0]), *lines[1:]])
