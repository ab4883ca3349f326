"""Results of a sweep computed from a synthetic error model, for the tests of figures,
tables and reports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pandas as pd
from scipy.stats import norm, sem

from tsfm_lens.core.stats import holm

WINDOWS = 8
TOLERANCE = 0.01
UNITS = {"unit": "series", "units": 16}
NO_LEAD = {"distance_leads": "", "distance_lead_share": 0.0}
METRICS = ("MASE", "NRMSE", "sMAPE", "CRPS", "MSIS")
_ATTRS = {"sweep": "planted", "seed": 0, "confidence": 0.95}
_NO_COST = [
    *("first", "last", "n_layers", "baseline_relative_mase", "relative_mase", *NO_LEAD),
    *("spearman_distance", "spearman_distance_lower", "spearman_distance_upper"),
]
ORDERS = ("stable_rank:low", "stable_rank:high", "random:0")


@dataclass
class Planted:
    """Errors of one model on all datasets, and what a variant of a given strength does
    to them.
    """

    model: str
    datasets: Sequence[str]
    seed: int
    layers: int
    heads: int
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        size = (len(self.datasets), WINDOWS)
        level = self.rng.normal(-0.3, 0.5, (size[0], 1))
        self.plain = np.exp(level + self.rng.normal(0, 0.4, size))

    @property
    def baseline(self) -> float:
        return float(np.exp(np.log(self.plain.mean(-1)).mean()))

    def ablated(self, strength: float, spread: float = 0.05) -> np.ndarray:
        """Errors (dataset, window) without some components."""
        each = self.rng.normal(0, spread, (len(self.datasets), 1)) + self.rng.normal(
            0, spread, self.plain.shape
        )
        return self.plain * np.exp(strength + each)

    def change(self, errors: np.ndarray) -> dict[str, float]:
        """Change of the geometric mean of MASE with its interval and two-sided p-value,
        and its spread.
        """
        return sized(np.log(errors.mean(-1) / self.plain.mean(-1)))

    def depth(self, layer: float) -> float:
        """How much a layer matters: most at both ends."""
        return 0.004 + 0.25 * abs(2 * layer / max(self.layers - 1, 1) - 1) ** 3


def sized(logs: np.ndarray) -> dict[str, float]:
    """Log ratios (dataset,) as a change with its interval, its spread and a two-sided
    p-value.
    """
    mean = logs.mean()
    error = max(sem(logs), 1e-9)
    found = {"change": mean, "lower": mean - 2 * error, "upper": mean + 2 * error}
    found |= {"median": np.median(logs), "least": logs.min(), "most": logs.max()}
    found |= {"median_lower": logs.min(), "median_upper": logs.max()}
    return {k: float(np.expm1(v)) for k, v in found.items()} | {
        "p_value": float(2 * norm.sf(abs(mean) / error))
    }


def table(rows: list[dict] | pd.DataFrame, kind: str, **attrs: object) -> pd.DataFrame:
    made = pd.DataFrame(rows)
    if "p_holm" in made:
        tested = {"correction": "Holm"}
    else:
        tested = {}
    made.attrs = {
        "kind": kind,
        "title": "",
        "source": "planted errors",
        **_ATTRS,
        **tested,
        **attrs,
    }
    return made


def in_families(rows: list[dict], *keys: str) -> list[dict]:
    """The rows with Holm's correction within each family, and which of them leads:
    planted errors have no doubt.
    """
    found = pd.DataFrame(rows)
    p_values = found.groupby(list(keys), sort=False)["p_value"]
    corrected = p_values.transform(lambda p: holm(p.to_numpy()))
    found = found.assign(
        p_holm=corrected,
        tests=p_values.transform("size"),
        significant=corrected <= 0.05,
        leads="",
        lead_share=0.0,
        **UNITS,
    )
    return found.to_dict("records")


def of_variant(
    m: Planted, errors: np.ndarray, label: str, **more: object
) -> dict[str, object]:
    """The row of a variant of a model."""
    found = m.change(errors)
    return {
        "model": m.model,
        "label": label,
        "baseline_relative_mase": m.baseline,
        "relative_mase": m.baseline * (1 + found["change"]),
        **found,
        **more,
    }


def distance(away: float, most: float) -> dict[str, float]:
    return {
        "spearman_distance": away,
        "spearman_distance_lower": 0.9 * away,
        "spearman_distance_upper": min(most * away, 2.0),
    }


def effects(models: Sequence[Planted]) -> pd.DataFrame:
    rows = []
    for m in models:
        spans = [("layers", i, i) for i in range(m.layers)]
        spans += [
            ("groups", i, i + size - 1)
            for size in (2, 3)
            for i in range(0, m.layers - size + 1, size)
        ]
        spans += [("ranges", m.layers // 2, i) for i in range(m.layers // 2, m.layers)]
        mine = []
        for part, weight in (("both", 1.0), ("heads", 0.7), ("mlp", 0.4)):
            for family, first, last in spans:
                strength = weight * sum(m.depth(i) for i in range(first, last + 1))
                # the middle of every model costs so little that its interval reaches
                # into gains
                row = of_variant(
                    m,
                    m.ablated(strength),
                    f"{part} of {first} to {last}",
                    family=family,
                    part=part,
                    first=first,
                    last=last,
                    n_layers=m.layers,
                    **distance(1 - np.exp(-4 * strength), 1.15),
                )
                mine.append(row)
        rows += in_families(mine, "model")
    return table(pd.DataFrame(rows).assign(**NO_LEAD), "sweep_effects")


def single_heads(
    models: Sequence[Planted], kinds: Sequence[str] = ("attn",)
) -> pd.DataFrame:
    """Every head by itself: head 0 of a model's first and last layer costs what the
    layer does, the others nothing.
    """
    rows = []
    for m in models:
        mine = []
        for layer, kind, head in product(range(m.layers), kinds, range(m.heads)):
            costs = head == 0 and layer in (0, m.layers - 1)
            row = of_variant(
                m,
                m.ablated(m.depth(layer) * costs, 0.02),
                f"head {head} of layer {layer} ({kind})",
                layer=layer,
                attention=kind,
                head=head,
                **distance(0.1 + head / 100, 1.1),
            )
            mine.append(row)
        rows += in_families(mine, "model")
    return table(pd.DataFrame(rows).assign(**NO_LEAD), "sweep_heads")


def costs(models: Sequence[Planted]) -> pd.DataFrame:
    """Single layers, their parts and heads by dataset, from the least to the most."""
    parts = []
    effects_, heads = effects(models), single_heads(models)
    entries = pd.concat(
        [
            effects_[effects_["family"] == "layers"].assign(
                layer=effects_["first"], attention="", head=-1
            ),
            heads.assign(family="heads", part="heads"),
        ],
        ignore_index=True,
    )
    for m in models:
        for row in entries[entries["model"] == m.model].to_dict("records"):
            count = len(m.datasets)
            middle = np.full(max(count - 2, 0), row["median"])
            changes = [row["least"], *middle, row["most"]][:count]
            columns = {"member": list(m.datasets), "member_change": changes}
            parts.append(pd.DataFrame(row | columns))
    made = pd.concat(parts, ignore_index=True).drop(columns=_NO_COST)
    return table(made, "sweep_costs", tolerance=TOLERANCE)


def curves(
    models: Sequence[Planted], counts: Sequence[int] | None = None, harm: float = 0.0
) -> pd.DataFrame:
    """Errors over heads ablated; only at some ``counts``, and with ``harm`` added to
    the log error, where given.
    """
    rows = []
    for m in models:
        for layer, (position, order) in product(range(m.layers), enumerate(ORDERS)):
            worse = (1.0 + layer % 2, 2.0 - layer % 2, 2.5)[position]
            for count in range(m.heads + 1):
                share = count / m.heads
                if counts is not None and count not in counts:
                    continue
                errors = m.plain
                if count:
                    strength = worse * m.depth(layer) * share**2 + harm
                    errors = m.ablated(strength, 0.02)
                label = f"{count} of {m.heads} heads of layer {layer}"
                row = of_variant(
                    m,
                    errors,
                    label,
                    layer=layer,
                    order=order,
                    ablated=count,
                    of=m.heads,
                    share=share,
                    tests=1,
                    **UNITS,
                )
                rows.append(row)
    made = table(rows, "sweep_curves", tolerance=TOLERANCE)
    p_values = made["p_value"]
    made = made.assign(p_holm=p_values, significant=p_values < 0.001)
    best = _kept(made).query("better")[
        ["model", "layer", "order", "ablated", "leads", "lead_share"]
    ]
    names = {"order": "best", "ablated": "within"}
    made = made.merge(best.rename(columns=names), on=["model", "layer"]).assign(
        judged_by="MASE", order_significant=False
    )
    made["better"] = made["order"] == made["best"]
    return table(made.drop(columns="best"), "sweep_curves", tolerance=TOLERANCE)


def _kept(curves_: pd.DataFrame) -> pd.DataFrame:
    """What each order keeps, by definition 5.2, and which order keeps fewest, of equals
    at the smaller change.
    """
    named = curves_[~curves_["order"].str.startswith("random")]
    keys = ["model", "layer", "order"]
    made = named.groupby(keys, sort=False)[["of"]].first()
    within = named[(named["change"] < TOLERANCE) & (named["ablated"] > 0)]
    most = within.sort_values("ablated").groupby(keys)[["ablated", "change"]].last()
    made = made.join(most).fillna(0).astype({"ablated": int}).reset_index()
    made = made.assign(
        kept=made["of"] - made["ablated"],
        judged_by="MASE",
        order_significant=False,
        leads="",
        lead_share=0.0,
        evaluations=made["of"].astype(float),
        total=made["of"].astype(float),
    )
    best = (
        made.sort_values(["kept", "change"], kind="stable")
        .drop_duplicates(["model", "layer"])
        .index
    )
    return made.assign(better=made.index.isin(best))


def tabulate_heads(curves_: pd.DataFrame) -> pd.DataFrame:
    """heads@1pp of planted curves."""
    return table(
        _kept(curves_),
        "sweep_heads_at",
        tolerance=TOLERANCE,
        metric="MASE",
        search="scan",
    )


def maps(
    models: Sequence[Planted], counts: Sequence[int] | None = None, harm: float = 0.0
) -> pd.DataFrame:
    rows = []
    for m in models:
        for layer, retained in ((0, m.heads), (m.layers // 2, 0)):
            for count in range(m.heads + 1):
                if counts is not None and count not in counts:
                    continue
                errors = m.plain
                if count:
                    strength = m.depth(layer) * (count / m.heads) ** 2 + harm
                    errors = m.ablated(strength, 0.03)
                row = pd.DataFrame(
                    {"dataset": m.datasets, "relative_mase": errors.mean(-1)}
                )
                row = row.assign(
                    change=row["relative_mase"] / m.plain.mean(-1) - 1,
                    model=m.model,
                    layer=layer,
                    kept=retained,
                    order="stable_rank:low",
                    ablated=count,
                    of=m.heads,
                )
                rows.append(row)
    made = pd.concat(rows, ignore_index=True)
    within = made["ablated"].where(made["change"] < TOLERANCE, -1)
    made["largest_within"] = within.groupby(
        [made["model"], made["layer"], made["dataset"]]
    ).transform("max")
    return table(made, "sweep_datasets", tolerance=TOLERANCE)


def recipes(
    models: Sequence[Planted], seeds: int = 3
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Heavy recipes, and the listed ones against random heads at the same counts."""
    rows = []
    against = []
    for m in models:
        for recipe, share, mlps, strength in (
            ("light", 0.28, 2, 0.03),
            ("heavy", 0.5, 0, 0.1),
        ):
            listed = m.ablated(strength)
            randoms = [m.ablated(strength + 0.25) for _ in range(seeds)]
            for seed, errors in enumerate([listed, *randoms], -1):
                selection = "random"
                if seed < 0:
                    selection = "listed"
                own = m.change(errors)
                each = errors.mean(-1) / m.plain.mean(-1) - 1
                entry = {
                    "model": m.model,
                    "recipe": recipe,
                    "selection": selection,
                    "seed": seed,
                    "label": f"{recipe}, {selection} {seed}",
                    "heads_ablated": round(share * m.layers * m.heads),
                    "heads_total": m.layers * m.heads,
                    "n_mlps": mlps,
                    "n_resilient": int((each < 0.05).sum()),
                    "n_improved": int((each < 0).sum()),
                    "n_datasets": len(each),
                }
                rest = [
                    m.change(m.ablated(strength * k)) for k in (-2.0, 0.8, 1.0, -0.5)
                ]
                rows += [
                    entry | {"metric": name, **found}
                    for name, found in zip(METRICS, (own, *rest), strict=True)
                ]
            own, *rest = (np.log(errors.mean(-1)) for errors in (listed, *randoms))
            found = sized(own - np.mean(rest, axis=0))
            row = {
                "model": m.model,
                "recipe": recipe,
                "selection": "listed",
                "diff": found["change"],
                "diff_lower": found["lower"],
                "diff_upper": found["upper"],
                "diff_p": found["p_value"],
                "n_worse": sum(other.sum() > own.sum() for other in rest),
            }
            against.append(row)
    heavy = table(in_families(rows, "metric"), "sweep_recipes")
    counts = [
        *("heads_ablated", "heads_total", "n_mlps"),
        *("metric", "n_resilient", "n_improved", "n_datasets"),
    ]
    choice = heavy[heavy["metric"] == "MASE"].drop(columns=counts)
    keys = ["model", "recipe", "selection"]
    choice = choice.merge(pd.DataFrame(against), on=keys, how="left")
    choice = choice.fillna({"n_worse": -1}).astype({"n_worse": int})
    choice["diff_significant"] = choice["diff_p"] < 0.01
    choice["possible"] = 20
    return heavy, table(choice, "sweep_selection")


def sweep(
    models: Sequence[str] = ("alpha", "beta"),
    datasets: int = 4,
    layers: Sequence[int] = (6, 5),
    heads: Sequence[int] = (4, 3),
    name: Callable[[int], str] = "set {}/H/short".format,
    counts: Sequence[int] | None = None,
    harm: float = 0.0,
) -> dict[str, pd.DataFrame]:
    """Every kind of result of one sweep."""
    names = [name(i) for i in range(datasets)]
    made = [
        Planted(
            model, names, 11 * i + 1, layers[i % len(layers)], heads[i % len(heads)]
        )
        for i, model in enumerate(models)
    ]
    steps = curves(made, counts, harm)
    heavy, choice = recipes(made)
    rest = {
        "layers": effects(made),
        "heads": single_heads(made),
        "curves": steps,
        "heads_at": tabulate_heads(steps),
        "datasets": maps(made, counts, harm),
        "recipes": heavy,
        "selection": choice,
    }
    # drawn last, so that the errors of the rest are what they are without it
    return {"costs": costs(made)} | rest
