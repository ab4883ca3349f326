"""Reported errors over the whole benchmark under ablations, and their settings: data, no code of a measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tsfm_lens.studies.papers.items import HOLDS, TABLE_3, Item, Value
from tsfm_lens.sweep.plan.released import RELEASED

GIFT = "GIFT-Eval test set, 97 splits"
_METRICS = ("MASE", "NRMSE", "SMAPE", "CRPS", "MSIS")


@dataclass(frozen=True)
class HeavyRow:
    """Row of tables 1 and 4.

    Attributes:
        name: of the row.
        recipe: of the ablation, by its name in the package; the paper leaves some open.
        share: heads ablated in percent of all, as printed.
        mlps: MLPs ablated.
        changes: of MASE, NRMSE, SMAPE, CRPS and MSIS, in percent.
        n_resilient, n_improved: datasets, of 97.
    """

    name: str
    recipe: str
    share: float
    mlps: int
    changes: tuple[float, ...]
    n_resilient: int
    n_improved: int


HEAVY = (
    HeavyRow("TimesFM 2.5, 28 % of heads, 2 MLPs", "timesfm-28", 28, 2, (6.12, 2.46, 4.72, 5.86, 6.59), 33, 12),
    HeavyRow("Toto, 29 % of heads", "toto-29", 29, 0, (3.54, -38.0, 2.73, 3.6, -24.64), 41, 30),
    HeavyRow("Toto, 29 % of heads, 1 MLP", "toto-29-1mlp", 29, 1, (8.54, -28.24, 5.77, 8.73, -15.27), 33, 13),
    HeavyRow("Toto, 43 % of heads", "toto-43", 43, 0, (10.1, -8.19, 6.36, 9.97, 8.24), 26, 14),
    HeavyRow("Chronos-Bolt, 28 % of heads, 6 MLPs", "bolt-28-6mlp", 28, 6, (4.24, -0.77, 2.46, 0.19, -15.89), 32, 27),
    HeavyRow("Chronos-Bolt, 42 % of heads, 6 MLPs", "bolt-42-6mlp", 42, 6, (10.71, 1.81, 6.18, 6.42, -9.75), 29, 11),
)


def _heavy(where: str, metrics: tuple[str, ...], counts: bool) -> tuple[Value, ...]:
    values = []
    for row in HEAVY:
        values += [Value(f"{row.name}: heads ablated", row.share, where, "%")]
        values += [Value(f"{row.name}: MLPs ablated", row.mlps, where)]
        values += [
            Value(f"{row.name}: change of {metric}", row.changes[_METRICS.index(metric)], where, "%")
            for metric in metrics
        ]
        if counts:
            values.append(Value(f"{row.name}: resilient datasets", row.n_resilient, where, "of 97"))
            values.append(Value(f"{row.name}: improved datasets", row.n_improved, where, "of 97"))
    return tuple(values)


def _head_counts() -> tuple[Value, ...]:
    return tuple(
        Value(f"{architecture}: heads kept in layer {layer}", count, "figure 11, as released")
        for architecture, (_, counts) in RELEASED.items()
        for layer, count in enumerate(counts)
    )


def _sweep(
    item: str, title: str, architectures: tuple[str, ...], values: tuple[Value, ...] = (), note: str = ""
) -> Item:
    models = ", ".join(TABLE_3[architecture].model for architecture in architectures)
    settings = {"series": GIFT, "datasets": "97", "windows": "all"}
    for model in TABLE_3.values():
        settings[f"context of {model.title}"] = str(model.context)
        if model.samples is not None:
            settings[f"samples of {model.title}"] = str(model.samples)
    return Item(item, title, models, values, settings, sweep=True, note=note)


_ABLATED = ("timesfm-2.5", "toto-1", "chronos-bolt")
_FOUR = ("chronos-bolt", "toto-1", "timesfm-2.5", "moirai-1.1")
_CURVES = "`tsfm-lens sweep report` on the store draws the figure"
# claim of figures 16 to 19, which show two layers of a model
KINDER = "on most datasets MASE rises less without the heads of the most ablatable layer than of the important one"
RELATIVE_MASE = "MASE over the seasonal naive's"
HALF_MLPS = "without half of the MLPs, MASE rises less for Chronos-Bolt than for Toto"


# architecture, an important layer, the most ablatable one
LAYERS_BY_DATASET: Mapping[int, tuple[str, int, int]] = {
    16: ("timesfm-2.5", 0, 10),
    17: ("toto-1", 0, 10),
    18: ("chronos-bolt", 11, 2),
    19: ("moirai-1.1", 11, 5),
}


def _by_dataset(number: int, architecture: str, important: int, ablatable: int) -> Item:
    title = f"change of MASE by dataset over heads ablated, layers {important} and {ablatable}"
    value = Value(KINDER, 1, f"figure {number}", HOLDS)
    return _sweep(f"S3-F{number}", title, (architecture,), (value,), _CURVES)


_RELATIVE = "MASE is divided by that of the seasonal naive forecast, dataset by dataset"
_ITEMS: tuple[Item, ...] = (
    _sweep(
        "S3-F3",
        "MASE with the most ablatable layer of each model ablated",
        tuple(TABLE_3),
        note=f"the layer is chosen on the windows that its change is measured on; {_RELATIVE}; {_CURVES}",
    ),
    _sweep(
        "S3-F4",
        "MASE with MLPs or heads of layer ranges ablated",
        ("chronos-bolt", "toto-1"),
        (Value(HALF_MLPS, 1, "figure 4", HOLDS),),
        f"the paper does not say where its ranges begin, here they grow from the middle layer; {_RELATIVE}; {_CURVES}",
    ),
    _sweep(
        "S3-F7",
        "MASE over heads ablated in layers 7, 10 and 13",
        ("timesfm-2.5",),
        (Value(f"{RELATIVE_MASE}: whole model, geometric mean", 0.733, "figure 7"),),
        f"{_RELATIVE}; {_CURVES}",
    ),
    _sweep("S3-F10", "MASE over heads ablated in every layer", _FOUR, note=f"{_RELATIVE}; {_CURVES}"),
    _sweep(
        "S3-F11", "heads@1pp of every layer", _FOUR, _head_counts(), f"of both orders the better one counts; {_CURVES}"
    ),
    *(_by_dataset(number, *layers) for number, layers in LAYERS_BY_DATASET.items()),
    _sweep("S3-T1", "heavy ablations", _ABLATED, _heavy("table 1", ("MASE", "CRPS"), False)),
    _sweep("S3-T4", "heavy ablations, all metrics", _ABLATED, _heavy("table 4", _METRICS, True)),
)
BENCHMARK: Mapping[str, Item] = {item.id: item for item in _ITEMS}
