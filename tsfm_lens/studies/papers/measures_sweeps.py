"""Sweep designs of the reported errors over the benchmark, and their readers of a finished store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from tsfm_lens.errors import InputError
from tsfm_lens.studies.papers.items import TABLE_3, Evaluated
from tsfm_lens.studies.papers.measuring import Found
from tsfm_lens.studies.papers.values_sweeps import (
    HALF_MLPS,
    HEAVY,
    KINDER,
    LAYERS_BY_DATASET,
    RELATIVE_MASE,
    HeavyRow,
)
from tsfm_lens.studies.papers.verdicts import Estimated, Part, judged, larger
from tsfm_lens.sweep.plan.orders import order_words
from tsfm_lens.sweep.plan.recipes import Recipe, read_recipe
from tsfm_lens.sweep.plan.released import at_depth
from tsfm_lens.sweep.results.gathering import Gathered

PARTS = {"mlp": "the MLP", "heads": "all heads", "both": "heads and MLP"}
ORDERS = ("stable_rank:low", "stable_rank:high")
FIGURE_7 = ("timesfm-2.5", (7, 10, 13))
FAR = 0.25
TITLES = {"sMAPE": "SMAPE"}


@dataclass(frozen=True)
class Subject:
    """Model of a sweep.

    Attributes:
        source: checkpoint, folder or hub id; its name in results.
        architecture: of the wiring; equal weights have one name.
        layers, heads: of the stack that is read out.
        steps: forecast steps of its own; None if it has not been opened.
    """

    source: str
    architecture: str
    layers: int
    heads: int
    steps: int | None = None

    @property
    def settings(self) -> Evaluated | None:
        """Evaluation of this architecture in the paper; None if it has none."""
        return TABLE_3.get(self.architecture)

    @property
    def published(self) -> bool:
        """True if it has architecture and sizes of one of the paper's models."""
        evaluation = self.settings
        return evaluation is not None and (evaluation.layers, evaluation.heads) == (self.layers, self.heads)

    @property
    def words(self) -> str:
        """Name of the model in the names of quantities."""
        return self.settings.title if self.published and self.settings is not None else self.source


@dataclass
class _Sheet:
    """Quantities as they are read."""

    result: Found = field(default_factory=lambda: Found({}))

    def add(self, quantity: str, value: float, unit: str = "") -> None:
        self.result.values[quantity] = float(value)
        self.result.units[quantity] = unit

    def change(self, quantity: str, value: float, lower: float, upper: float) -> None:
        """Add a relative change, in percent, with its interval if there is one."""
        self.add(quantity, 100 * value, "%")
        if lower == lower and upper == upper:
            self.result.intervals[quantity] = (100 * float(lower), 100 * float(upper))

    def mase(self, quantity: str, row: Mapping[str, Any]) -> None:
        """Add the change of MASE of a row of a table."""
        self.change(quantity, row["change"], row["lower"], row["upper"])


@dataclass(frozen=True)
class Design:
    """Sweep for one table or figure.

    Attributes:
        variants: of the configuration, for some models.
        read: the quantities in a finished store.
        single: whether its numbers are of one model.
        fit: selects the models that it can run.
    """

    variants: Callable[[Sequence[Subject]], dict[str, Any]]
    read: Callable[[Gathered, Sequence[Subject]], Found]
    single: bool = False
    fit: Callable[[Sequence[Subject]], Sequence[Subject]] = lambda subjects: subjects


# --- tables 1 and 4 --------------------------------------------------------------------------------------


def _recipe(row: HeavyRow) -> Recipe:
    return read_recipe(row.recipe)


def rows_of(subjects: Sequence[Subject]) -> dict[str, Subject]:
    """Assign models to the rows of tables 1 and 4, by name.

    A model runs the rows of its architecture. A model whose architecture has no recipe, and that is none of the
    paper's, stands in for all models of the table.

    Raises:
        InputError: two models for one row, or none for any.
    """
    architectures = {row.name: _recipe(row).architecture for row in HEAVY if not _recipe(row).unknown}
    open_recipes = {row.name: _recipe(row) for row in HEAVY if _recipe(row).unknown}
    subject_of_row: dict[str, Subject] = {}
    for subject in subjects:
        names = [name for name, architecture in architectures.items() if architecture == subject.architecture]
        if not names and not (subject.published and _is_open(subject, open_recipes)):
            names = list(architectures)
        for name in names:
            if name in subject_of_row:
                raise InputError(
                    f"{subject_of_row[name].source} and {subject.source} both stand for the row {name!r}; give one "
                    "--model of each architecture, or one alone"
                )
            subject_of_row[name] = subject
    if not subject_of_row:
        rows = "; ".join(f"{name}: {recipe.unknown}" for name, recipe in open_recipes.items())
        raise InputError(f"no row of the table can be run on {', '.join(s.source for s in subjects)}: {rows}")
    return subject_of_row


def _is_open(subject: Subject, open_recipes: Mapping[str, Recipe]) -> bool:
    return subject.architecture in {recipe.architecture for recipe in open_recipes.values()}


def _heavy_variants(subjects: Sequence[Subject]) -> dict[str, Any]:
    rows = rows_of(subjects)
    names = [row.recipe for row in HEAVY if row.name in rows]
    return {"recipes": names, "scale_recipes": bool(_rows_to_scale(rows))}


def _rows_to_scale(rows: Mapping[str, Subject]) -> list[str]:
    """List rows whose recipe is written for a model of another architecture or size."""
    architectures = {row.name: _recipe(row).architecture for row in HEAVY}
    return [
        name for name, subject in rows.items() if not subject.published or subject.architecture != architectures[name]
    ]


def _heavy_models(subjects: Sequence[Subject]) -> Sequence[Subject]:
    return list(dict.fromkeys(rows_of(subjects).values()))


def _read_heavy(metrics: tuple[str, ...], *, counts: bool) -> Callable[[Gathered, Sequence[Subject]], Found]:
    def read(sweep: Gathered, subjects: Sequence[Subject]) -> Found:
        rows, sheet = rows_of(subjects), _Sheet()
        to_scale = _rows_to_scale(rows)
        table = sweep.results["recipes"]
        for row in HEAVY:
            if row.name not in rows:
                continue
            here = (table["model"] == rows[row.name].source) & (table["recipe"] == row.recipe)
            # the informed choice comes before those at random
            by_metric = {str(change["metric"]): change for change in _rows(table[here].drop_duplicates("metric"))}
            whole = by_metric["MASE"]
            # a recipe scaled to another model is no row of the paper, so the paper's numbers do not apply
            name = f"{row.recipe} scaled to {rows[row.name].source}" if row.name in to_scale else row.name
            sheet.add(f"{name}: heads ablated", 100 * whole["heads_ablated"] / whole["heads_total"], "%")
            sheet.add(f"{name}: MLPs ablated", whole["n_mlps"])
            for metric in metrics:
                sheet.mase(f"{name}: change of {TITLES.get(metric, metric)}", by_metric[metric])
            if counts:
                sheet.add(f"{name}: resilient datasets", whole["n_resilient"])
                sheet.add(f"{name}: improved datasets", whole["n_improved"])
        return replace(sheet.result, notes=_heavy_notes(rows))

    return read


def _heavy_notes(rows: Mapping[str, Subject]) -> tuple[str, ...]:
    open_rows = [row.name for row in HEAVY if _recipe(row).unknown]
    notes = [f"not given by the paper, so not run: which layers and MLPs go in {'; in '.join(open_rows)}"]
    to_scale = _rows_to_scale(rows)
    if to_scale:
        notes.append(f"recipes scaled to the same shares of heads at the same depths: {'; '.join(to_scale)}")
    return tuple(notes)


# --- figures 3 and 4: layers and ranges of layers -----------------------------------------------------------


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _baseline(sweep: Gathered, name: str, subject: Subject) -> float:
    table = sweep.results[name]
    return float(table.loc[table["model"] == subject.source, "baseline_mase"].iloc[0])


def _read_layers(sweep: Gathered, subjects: Sequence[Subject]) -> Found:
    table, sheet = sweep.results["effects"], _Sheet()
    table = table[table["family"] == "layers"]
    for subject in subjects:
        effects = table[table["model"] == subject.source]
        whole = effects[effects["part"] == "both"]
        layer = int(whole.sort_values("change")["first"].iloc[0])
        sheet.add(f"{subject.words}: most ablatable layer", layer)
        sheet.add(f"{subject.words}: {RELATIVE_MASE}, whole model", _baseline(sweep, "effects", subject))
        for row in _rows(effects[effects["first"] == layer]):
            part = PARTS[str(row["part"])]
            sheet.add(f"{subject.words}: {RELATIVE_MASE}, without {part} of that layer", float(row["mase"]))
            sheet.mase(f"{subject.words}: change of MASE without {part} of that layer", row)
    return sheet.result


def _read_ranges(sweep: Gathered, subjects: Sequence[Subject]) -> Found:
    table, sheet = sweep.results["effects"], _Sheet()
    table = table[table["family"] == "ranges"]
    half: dict[str, Estimated] = {}
    for subject in subjects:
        effects = table[table["model"] == subject.source]
        sheet.add(f"{subject.words}: {RELATIVE_MASE}, whole model", _baseline(sweep, "effects", subject))
        for row in _rows(effects):
            sheet.mase(f"{subject.words}: change of MASE without {row['label']}", row)
            if row["part"] == "mlp" and row["last"] - row["first"] + 1 == subject.layers // 2:
                change, lower, upper = (100 * float(row[name]) for name in ("change", "lower", "upper"))
                half[subject.architecture] = (change, lower, upper)
    if {"chronos-bolt", "toto-1"} <= half.keys():
        more = larger(half["toto-1"], half["chronos-bolt"], "change of MASE, percentage points")
        sheet.result.claims[HALF_MLPS] = more
    return sheet.result


# --- figures 7, 10, 11 and 16 to 19: heads of single layers -------------------------------------------------


def _heads_at(layers: Sequence[int] | None = None) -> dict[str, Any]:
    return {"heads_at": {"orders": ORDERS, "layers": layers}}


def _at(layers: Sequence[int], of: int, subject: Subject) -> tuple[int, ...]:
    """Map the paper's layers to a model of another depth, each once."""
    return tuple(dict.fromkeys(_deep(layer, of, subject) for layer in layers))


def _deep(layer: int, of: int, subject: Subject) -> int:
    if subject.layers == of:
        return layer
    return min(at_depth([layer], of, subject.layers))


def _read_curves(sweep: Gathered, subjects: Sequence[Subject]) -> Found:
    table, sheet = sweep.results["curves"], _Sheet()
    sheet.add(f"{RELATIVE_MASE}: whole model, geometric mean", _baseline(sweep, "curves", subjects[0]))
    for row in _rows(table[table["ablated"] > 0].sort_values(["layer", "order", "ablated"])):
        words = f"layer {row['layer']}, {order_words(str(row['order']))}, {row['ablated']} of {row['of']} heads"
        sheet.mase(f"change of MASE without heads: {words}", row)
    _add_head_counts(sweep, sheet, subjects, with_model=False)
    return sheet.result


def _add_head_counts(sweep: Gathered, sheet: _Sheet, subjects: Sequence[Subject], *, with_model: bool) -> None:
    table = sweep.results["heads_at"]
    for subject in subjects:
        where = f"{subject.words}, layer" if with_model else "layer"
        for row in _rows(table[table["model"] == subject.source]):
            sheet.add(f"heads kept: {where} {row['layer']}, {order_words(row['order'])}", row["kept"])


def _read_all_layers(sweep: Gathered, subjects: Sequence[Subject]) -> Found:
    table, sheet = sweep.results["curves"], _Sheet()
    for subject in subjects:
        sheet.add(f"{subject.words}: {RELATIVE_MASE}, whole model", _baseline(sweep, "curves", subject))
        curve = table[(table["model"] == subject.source) & table["ablated"].isin([subject.heads // 2, subject.heads])]
        for row in _rows(curve.sort_values(["layer", "ablated", "order"])):
            words = f"{subject.words}, layer {row['layer']}, {order_words(str(row['order']))}"
            every = row["ablated"] == row["of"]
            words = f"{subject.words}, layer {row['layer']}" if every else words
            what = "all heads" if every else f"{row['ablated']} of {row['of']} heads"
            sheet.mase(f"change of MASE without {what}: {words}", row)
    _add_head_counts(sweep, sheet, subjects, with_model=True)
    return sheet.result


def _read_head_counts(sweep: Gathered, subjects: Sequence[Subject]) -> Found:
    table, sheet = sweep.results["heads_at"], _Sheet()
    notes = []
    for subject in subjects:
        rows = table[table["better"] & (table["model"] == subject.source)]
        # counts of another size are of other layers and shares: they do not compare with the paper's
        name = subject.architecture if subject.published else subject.source
        for layer, count in zip(rows["layer"], rows["kept"], strict=True):
            sheet.add(f"{name}: heads kept in layer {layer}", count)
        share = 100 * float(rows["ablated"].sum() / rows["of"].sum())
        sheet.add(f"{name}: heads ablated of all, every layer at heads@1pp by itself", share, "%")
        if not subject.published:
            notes.append(
                f"{subject.source} has {subject.layers} layers of {subject.heads} heads, so that its counts are not "
                "those that the paper prints"
            )
    return replace(sheet.result, notes=tuple(notes))


def _read_datasets(subject_layers: Callable[[Subject], tuple[int, ...]]) -> Callable[..., Found]:
    def read(sweep: Gathered, subjects: Sequence[Subject]) -> Found:
        sheet, rises = _Sheet(), {}
        panels, curves = sweep.results["datasets"], sweep.results["curves"]
        layers = subject_layers(subjects[0])
        for layer in layers:
            panel = panels[panels["layer"] == layer]
            of = int(panel["of"].iloc[0])
            whole = panel[panel["ablated"] == of].set_index("dataset")
            rises[layer] = whole["change"]
            row = _rows(curves[(curves["layer"] == layer) & (curves["ablated"] == of)])[0]
            sheet.mase(f"layer {layer}: change of MASE without all heads", row)
            far = float((rises[layer] > FAR).sum())
            sheet.add(f"layer {layer}: datasets on which that is above {100 * FAR:.0f} %", far)
            robust = float((whole["largest_within"] == of).sum())
            sheet.add(f"layer {layer}: datasets on which all heads can go within 1 %", robust)
            middle = float(whole["largest_within"].median())
            sheet.add(f"layer {layer}: heads that can go within 1 %, median of datasets", middle)
        if len(layers) == 2:
            important, ablatable = (rises[layer] for layer in layers)
            margins = 100 * (important.reindex(ablatable.index) - ablatable).to_numpy()
            part = Part("", margins, "change of MASE, percentage points")
            sheet.result.claims[KINDER] = judged([part], range(len(margins)))
        return sheet.result

    return read


def _datasets_design(architecture: str, important: int, ablatable: int) -> Design:
    def layers(subject: Subject) -> tuple[int, ...]:
        return _at((important, ablatable), TABLE_3[architecture].layers, subject)

    return Design(lambda s: _heads_at(layers(s[0])), _read_datasets(layers), single=True)


def _figure_7(subjects: Sequence[Subject]) -> dict[str, Any]:
    architecture, layers = FIGURE_7
    return _heads_at(_at(layers, TABLE_3[architecture].layers, subjects[0]))


def _every_layer(subjects: Sequence[Subject]) -> dict[str, Any]:
    return _heads_at()


_ALL = ("MASE", "NRMSE", "sMAPE", "CRPS", "MSIS")

DESIGNS: dict[str, Design] = {
    "S3-F3": Design(lambda s: {"layers": {"sizes": [1], "parts": list(PARTS)}}, _read_layers),
    "S3-F4": Design(lambda s: {"ranges": {"grow": ["outward"]}}, _read_ranges),
    "S3-F7": Design(_figure_7, _read_curves, single=True),
    "S3-F10": Design(_every_layer, _read_all_layers),
    "S3-F11": Design(_every_layer, _read_head_counts),
    **{f"S3-F{number}": _datasets_design(*layers) for number, layers in LAYERS_BY_DATASET.items()},
    "S3-T1": Design(_heavy_variants, _read_heavy(("MASE", "CRPS"), counts=False), fit=_heavy_models),
    "S3-T4": Design(_heavy_variants, _read_heavy(_ALL, counts=True), fit=_heavy_models),
}
