"""Sweep designs of the errors over the benchmark, and readers of their results.

A :class:`Design` says which variants a table or figure needs; :func:`design` registers
it with the function that reads the finished store. Read :func:`read_layers` first, the
shortest. Sweeps are run by :mod:`tsfm_lens.studies.papers.sweeps`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from tsfm_lens.core.errors import InputError
from tsfm_lens.studies.papers.context import MeasuredValues, judge_parts
from tsfm_lens.studies.papers.items import TABLE_3, Evaluated
from tsfm_lens.studies.papers.verdicts import WINDOW, ClaimPart, Interval, larger
from tsfm_lens.sweep.planner.orders import describe_order
from tsfm_lens.sweep.planner.recipes import Recipe, at_depth, read_recipe
from tsfm_lens.sweep.results.gathering import Gathered

PARTS = {"mlp": "the MLP", "heads": "all heads", "both": "heads and MLP"}
ORDERS = ("stable_rank:low", "stable_rank:high")
FAR = 0.25
METRICS = {
    "MASE": "MASE",
    "NRMSE": "NRMSE",
    "sMAPE": "SMAPE",
    "CRPS": "CRPS",
    "MSIS": "MSIS",
}
RELATIVE_MASE = "MASE over the seasonal naive's"
RECIPES = {
    "TimesFM 2.5, 28 % of heads, 2 MLPs": "timesfm-28",
    "Toto, 29 % of heads": "toto-29",
    "Toto, 29 % of heads, 1 MLP": "toto-29-1mlp",
    "Toto, 43 % of heads": "toto-43",
    "Chronos-Bolt, 28 % of heads, 6 MLPs": "bolt-28-6mlp",
    "Chronos-Bolt, 42 % of heads, 6 MLPs": "bolt-42-6mlp",
}
"""Recipes of the rows of tables 1 and 4; the paper leaves some open."""


@dataclass(frozen=True)
class Subject:
    """Model of a sweep."""

    source: str
    architecture: str
    layers: int
    heads: int
    steps: int | None = None

    @property
    def evaluation(self) -> Evaluated | None:
        """Evaluation of this architecture in the paper; None if it has none."""
        return TABLE_3.get(self.architecture)

    @property
    def published(self) -> bool:
        """True if it has architecture and sizes of one of the paper's models."""
        return self.evaluation is not None and (
            self.evaluation.layers,
            self.evaluation.heads,
        ) == (
            self.layers,
            self.heads,
        )

    @property
    def words(self) -> str:
        """Name of the model in the names of quantities."""
        if self.published and self.evaluation is not None:
            return self.evaluation.title
        return self.source


Subjects = Sequence[Subject]


@dataclass(frozen=True)
class Design:
    """Sweep for one table or figure."""

    variants: Callable[[Subjects], dict[str, Any]]
    read: Callable[[Gathered, Subjects], MeasuredValues]
    single: bool
    fit: Callable[[Subjects], Subjects]


DESIGNS: dict[str, Design] = {}
Reader = Callable[..., MeasuredValues]


def design(
    name: str,
    variants: Callable[[Subjects], dict[str, Any]],
    *,
    single: bool = False,
    fit: Callable[[Subjects], Subjects] = list,
    **options: Any,
) -> Callable[[Reader], Reader]:
    """Register a reader, called with these options, and the sweep that it reads.

    See :class:`Design` for the arguments.
    """

    def register(read: Reader) -> Reader:
        DESIGNS[name] = Design(variants, partial(read, **options), single, fit)
        return read

    return register


def _rows(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    return (
        {str(name): value for name, value in row.items()}
        for row in table.to_dict("records")
    )


def _add_change(result: MeasuredValues, quantity: str, row: Mapping[str, Any]) -> None:
    """Add the relative change of a row of a table, in percent, with its interval.

    A row without an interval has NaN for its bounds.
    """
    result.add(
        quantity, *(100 * row[name] for name in ("change", "lower", "upper")), unit="%"
    )


def _add_baseline(
    result: MeasuredValues, quantity: str, table: pd.DataFrame, subject: Subject
) -> None:
    result.add(
        quantity,
        table.loc[table["model"] == subject.source, "baseline_relative_mase"].iloc[0],
    )


# --- tables 1 and 4 -------------------------------------------------------------------


def _recipes(*, unknown: bool) -> dict[str, Recipe]:
    """Return by row the recipes that the paper leaves open, or those it gives."""
    recipes = {row: read_recipe(name) for row, name in RECIPES.items()}
    return {
        row: recipe
        for row, recipe in recipes.items()
        if bool(recipe.unknown) == unknown
    }


def assign_rows(subjects: Subjects) -> dict[str, Subject]:
    """Assign models to the rows of tables 1 and 4, by name."""
    recipes = _recipes(unknown=False)
    unknown = _recipes(unknown=True)
    subject_of_row: dict[str, Subject] = {}
    for subject in subjects:
        rows = [
            row
            for row, recipe in recipes.items()
            if recipe.architecture == subject.architecture
        ]
        is_open = subject.architecture in {
            recipe.architecture for recipe in unknown.values()
        }
        if not rows and not (subject.published and is_open):
            rows = list(recipes)
        for row in rows:
            if row in subject_of_row:
                raise InputError(
                    f"{subject_of_row[row].source} and {subject.source} both stand for"
                    f" the row {row!r}; give one --model of each architecture, or one"
                    " alone"
                )
            subject_of_row[row] = subject
    if not subject_of_row:
        reasons = "; ".join(
            f"{row}: {recipe.unknown}" for row, recipe in unknown.items()
        )
        raise InputError(
            "no row of the table can be run on"
            f" {', '.join(s.source for s in subjects)}: {reasons}"
        )
    return subject_of_row


def _rows_to_scale(rows: Mapping[str, Subject]) -> list[str]:
    """List rows whose recipe is written for a model of another architecture or size."""
    return [
        row
        for row, subject in rows.items()
        if not subject.published
        or subject.architecture != read_recipe(RECIPES[row]).architecture
    ]


def _heavy(subjects: Subjects) -> dict[str, Any]:
    rows = assign_rows(subjects)
    names = [recipe for row, recipe in RECIPES.items() if row in rows]
    return {"recipes": names, "scale_recipes": bool(_rows_to_scale(rows))}


def _heavy_models(subjects: Subjects) -> Subjects:
    return list(dict.fromkeys(assign_rows(subjects).values()))


@design("S3-T1", _heavy, fit=_heavy_models, metrics=("MASE", "CRPS"), counts=False)
@design("S3-T4", _heavy, fit=_heavy_models, metrics=tuple(METRICS), counts=True)
def read_heavy(
    sweep: Gathered, subjects: Subjects, *, metrics: tuple[str, ...], counts: bool
) -> MeasuredValues:
    """Read heavy ablations by recipe."""
    rows = assign_rows(subjects)
    table = sweep.results["recipes"]
    to_scale = _rows_to_scale(rows)
    result = MeasuredValues()
    for row, recipe in RECIPES.items():
        if row not in rows:
            continue
        rows_of_recipe = (table["model"] == rows[row].source) & (
            table["recipe"] == recipe
        )
        # the informed choice comes before those at random
        by_metric = {
            str(change["metric"]): change
            for change in _rows(table[rows_of_recipe].drop_duplicates("metric"))
        }
        full = by_metric["MASE"]
        # a recipe scaled to another model is no row of the paper, so the paper's
        # numbers do not apply
        name = row
        if row in to_scale:
            name = f"{recipe} scaled to {rows[row].source}"
        result.add(
            f"{name}: heads ablated",
            100 * full["heads_ablated"] / full["heads_total"],
            unit="%",
        )
        result.add(f"{name}: MLPs ablated", full["n_mlps"])
        for metric in metrics:
            _add_change(
                result, f"{name}: change of {METRICS[metric]}", by_metric[metric]
            )
        if counts:
            result.add(f"{name}: resilient datasets", full["n_resilient"])
            result.add(f"{name}: improved datasets", full["n_improved"])
    open_rows = "; in ".join(_recipes(unknown=True))
    result.notes = (
        f"not given by the paper, so not run: which layers and MLPs go in {open_rows}",
    )
    if to_scale:
        scaled = "; ".join(to_scale)
        result.notes += (
            f"recipes scaled to the same shares of heads at the same depths: {scaled}",
        )
    return result


# --- figures 3 and 4: layers and ranges of layers -------------------------------------


@design("S3-F3", lambda subjects: {"layers": {"sizes": [1], "parts": list(PARTS)}})
def read_layers(sweep: Gathered, subjects: Subjects) -> MeasuredValues:
    """Read errors without the most ablatable layer."""
    table = sweep.results["effects"]
    result = MeasuredValues()
    table = table[table["family"] == "layers"]
    for subject in subjects:
        effects = table[table["model"] == subject.source]
        name = subject.words
        layer = int(
            effects[effects["part"] == "both"].sort_values("change")["first"].iloc[0]
        )
        result.add(f"{name}: most ablatable layer", layer)
        _add_baseline(
            result,
            f"{name}: {RELATIVE_MASE}, whole model",
            sweep.results["effects"],
            subject,
        )
        for row in _rows(effects[effects["first"] == layer]):
            without = f"without {PARTS[str(row['part'])]} of that layer"
            result.add(f"{name}: {RELATIVE_MASE}, {without}", row["relative_mase"])
            _add_change(result, f"{name}: change of MASE {without}", row)
    return result


@design("S3-F4", lambda subjects: {"ranges": {"grow": ["outward"]}})
def read_ranges(sweep: Gathered, subjects: Subjects) -> MeasuredValues:
    """Read errors without ranges of layers, and compare those without half the MLPs."""
    table = sweep.results["effects"]
    result = MeasuredValues()
    half: dict[str, Interval] = {}
    for subject in subjects:
        _add_baseline(
            result, f"{subject.words}: {RELATIVE_MASE}, whole model", table, subject
        )
        for row in _rows(
            table[(table["family"] == "ranges") & (table["model"] == subject.source)]
        ):
            _add_change(
                result, f"{subject.words}: change of MASE without {row['label']}", row
            )
            if (
                row["part"] == "mlp"
                and row["last"] - row["first"] + 1 == subject.layers // 2
            ):
                change, lower, upper = (
                    100 * float(row[name]) for name in ("change", "lower", "upper")
                )
                half[subject.architecture] = Interval(change, lower, upper)
    if {"chronos-bolt", "toto-1"} <= half.keys():
        more = larger(
            half["toto-1"], half["chronos-bolt"], "change of MASE, percentage points"
        )
        result.claims["half_mlps"] = more
    return result


# --- figures 7, 10, 11 and 16 to 19: heads of single layers ---------------------------


def _at(layers: Sequence[int], architecture: str, subject: Subject) -> tuple[int, ...]:
    """Map the paper's layers to a model of another depth, each once."""
    of = TABLE_3[architecture].layers
    if subject.layers == of:
        return tuple(layers)
    return tuple(
        dict.fromkeys(min(at_depth([layer], of, subject.layers)) for layer in layers)
    )


def _ablate_heads(
    subjects: Subjects, layers: Sequence[int] | None = None, architecture: str = ""
) -> dict[str, Any]:
    """Ablate heads one after another in every layer, or in some of the paper's."""
    return {
        "heads_at": {
            "orders": ORDERS,
            "layers": layers and _at(layers, architecture, subjects[0]),
        }
    }


def _add_head_counts(
    result: MeasuredValues, sweep: Gathered, subjects: Subjects, *, with_model: bool
) -> None:
    table = sweep.results["heads_at"]
    for subject in subjects:
        layer = "layer"
        if with_model:
            layer = f"{subject.words}, layer"
        for row in _rows(table[table["model"] == subject.source]):
            result.add(
                f"heads kept: {layer} {row['layer']}, {describe_order(row['order'])}",
                row["kept"],
            )


@design(
    "S3-F7",
    partial(_ablate_heads, layers=(7, 10, 13), architecture="timesfm-2.5"),
    single=True,
)
def read_curves(sweep: Gathered, subjects: Subjects) -> MeasuredValues:
    """Read errors by number of heads ablated in each layer."""
    table = sweep.results["curves"]
    result = MeasuredValues()
    _add_baseline(
        result, f"{RELATIVE_MASE}: whole model, geometric mean", table, subjects[0]
    )
    for row in _rows(
        table[table["ablated"] > 0].sort_values(["layer", "order", "ablated"])
    ):
        order = describe_order(str(row["order"]))
        text = f"layer {row['layer']}, {order}, {row['ablated']} of {row['of']} heads"
        _add_change(result, f"change of MASE without heads: {text}", row)
    _add_head_counts(result, sweep, subjects, with_model=False)
    return result


@design("S3-F10", _ablate_heads)
def read_all_layers(sweep: Gathered, subjects: Subjects) -> MeasuredValues:
    """Read errors without half and all of the heads of every layer."""
    table = sweep.results["curves"]
    result = MeasuredValues()
    for subject in subjects:
        _add_baseline(
            result, f"{subject.words}: {RELATIVE_MASE}, whole model", table, subject
        )
        curve = table[
            (table["model"] == subject.source)
            & table["ablated"].isin([subject.heads // 2, subject.heads])
        ]
        for row in _rows(curve.sort_values(["layer", "ablated", "order"])):
            layer = f"{subject.words}, layer {row['layer']}"
            if row["ablated"] == row["of"]:
                heads = "all heads"
                order = ""
            else:
                heads = f"{row['ablated']} of {row['of']} heads"
                order = f", {describe_order(str(row['order']))}"
            _add_change(result, f"change of MASE without {heads}: {layer}{order}", row)
    _add_head_counts(result, sweep, subjects, with_model=True)
    return result


@design("S3-F11", _ablate_heads)
def read_head_counts(sweep: Gathered, subjects: Subjects) -> MeasuredValues:
    """Read heads@1pp of every layer."""
    table = sweep.results["heads_at"]
    result = MeasuredValues()
    for subject in subjects:
        rows = table[table["better"] & (table["model"] == subject.source)]
        # counts of another size are of other layers and shares: they do not compare
        # with the paper's
        if subject.published:
            name = subject.architecture
        else:
            name = subject.source
        for layer, count in zip(rows["layer"], rows["kept"], strict=True):
            result.add(f"{name}: heads kept in layer {layer}", count)
        share = 100 * float(rows["ablated"].sum() / rows["of"].sum())
        result.add(
            f"{name}: heads ablated of all, every layer at heads@1pp by itself",
            share,
            unit="%",
        )
        if not subject.published:
            sizes = f"{subject.layers} layers of {subject.heads} heads"
            result.notes += (
                (
                    f"{subject.source} has {sizes}, so that its counts are not those"
                    " that the paper prints"
                ),
            )
    return result


def read_datasets(
    sweep: Gathered, subjects: Subjects, *, layers: Sequence[int], architecture: str
) -> MeasuredValues:
    """Read errors without all heads of two layers, by dataset.

    The layers are an important one and the most ablatable one.
    """
    result = MeasuredValues()
    rises = []
    panels = sweep.results["datasets"]
    curves = sweep.results["curves"]
    for layer in _at(layers, architecture, subjects[0]):
        panel = panels[panels["layer"] == layer]
        n_heads = int(panel["of"].iloc[0])
        full = panel[panel["ablated"] == n_heads].set_index("dataset")
        rises.append(full["change"])
        row = next(
            _rows(curves[(curves["layer"] == layer) & (curves["ablated"] == n_heads)])
        )
        _add_change(result, f"layer {layer}: change of MASE without all heads", row)
        far = (full["change"] > FAR).sum()
        robust = (full["largest_within"] == n_heads).sum()
        result.add(
            f"layer {layer}: datasets on which that is above {100 * FAR:.0f} %", far
        )
        result.add(
            f"layer {layer}: datasets on which all heads can go within 1 %", robust
        )
        middle = full["largest_within"].median()
        result.add(
            f"layer {layer}: heads that can go within 1 %, median of datasets", middle
        )
    if len(rises) == 2:
        important, ablatable = rises
        margins = 100 * (important.reindex(ablatable.index) - ablatable).to_numpy()
        part = ClaimPart("", margins, "change of MASE, percentage points")
        result.claims["kinder"] = judge_parts(WINDOW, part)
    return result


for _figure, _architecture, _layers in (
    ("S3-F16", "timesfm-2.5", (0, 10)),
    ("S3-F17", "toto-1", (0, 10)),
    ("S3-F18", "chronos-bolt", (11, 2)),
    ("S3-F19", "moirai-1.1", (11, 5)),
):
    _options: dict[str, Any] = {"layers": _layers, "architecture": _architecture}
    design(_figure, partial(_ablate_heads, **_options), single=True, **_options)(
        read_datasets
    )
