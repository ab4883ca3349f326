"""Results of a sweep computed from a synthetic error model, for the tests of figures, tables and reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy.stats import norm, sem

from tsfm_lens.core.stats import holm

WINDOWS, TOLERANCE = 8, 0.01
UNITS = {"unit": "series", "units": 16}
NO_LEAD = {"distance_leads": "", "distance_lead_share": 0.0}
METRICS = ("MASE", "NRMSE", "sMAPE", "CRPS", "MSIS")
_ATTRS = {"sweep": "planted", "seed": 0, "confidence": 0.95}
ORDERS = ("stable_rank:low", "stable_rank:high", "random:0")


@dataclass
class Planted:
    """Errors of one model on all datasets, and what a variant of a given strength does to them."""

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
        """Change of the geometric mean of MASE with its interval and two-sided p-value, and its spread."""
        return sized(np.log(errors.mean(-1) / self.plain.mean(-1)))

    def depth(self, layer: float) -> float:
        """How much a layer matters: most at both ends."""
        return 0.004 + 0.25 * abs(2 * layer / max(self.layers - 1, 1) - 1) ** 3


def sized(logs: np.ndarray) -> dict[str, float]:
    """Log ratios (dataset,) as a change with its interval, its spread and a two-sided p-value."""
    mean, error = logs.mean(), max(sem(logs), 1e-9)
    found = {"change": mean, "lower": mean - 2 * error, "upper": mean + 2 * error}
    found |= {"median": np.median(logs), "least": logs.min(), "most": logs.max()}
    return {k: float(np.expm1(v)) for k, v in found.items()} | {
        "p_value": float(2 * norm.sf(abs(mean) / error))
    }


def table(rows: list[dict] | pd.DataFrame, kind: str, **attrs: object) -> pd.DataFrame:
    made = pd.DataFrame(rows)
    tested = {"correction": "Holm"} if "p_holm" in made else {}
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
    """The rows with Holm's correction within each family, and which of them leads: planted errors have no doubt."""
    found = pd.DataFrame(rows)
    for _, own in found.groupby(list(keys), sort=False):
        found.loc[own.index, "p_holm"] = holm(own["p_value"].to_numpy())
        found.loc[own.index, "tests"] = len(own)
    found = found.assign(
        significant=found["p_holm"] <= 0.05, tests=found["tests"].astype(int), **UNITS
    )
    return found.assign(leads="", lead_share=0.0).to_dict("records")


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
        mine: list[dict] = []
        for part, weight in (("both", 1.0), ("heads", 0.7), ("mlp", 0.4)):
            for family, first, last in spans:
                strength = weight * sum(m.depth(i) for i in range(first, last + 1))
                found = m.change(m.ablated(strength))
                away = 1 - np.exp(-4 * strength)
                # the middle of every model costs so little that its interval reaches into gains
                mine.append(
                    {
                        "model": m.model,
                        "family": family,
                        "label": f"{part} of {first} to {last}",
                        "part": part,
                    }
                    | {"first": first, "last": last, "n_layers": m.layers}
                    | {"spearman_distance": away, "spearman_distance_lower": 0.9 * away}
                    | {
                        "spearman_distance_upper": min(1.15 * away, 2.0),
                        "baseline_mase": m.baseline,
                    }
                    | {"mase": m.baseline * (1 + found["change"]), **found}
                )
        rows += in_families(mine, "model")
    return table(pd.DataFrame(rows).assign(**NO_LEAD), "sweep_effects")


def single_heads(
    models: Sequence[Planted], kinds: Sequence[str] = ("attn",)
) -> pd.DataFrame:
    """Every head by itself: head 0 of a model's first and last layer costs what the layer does, the others nothing."""
    rows = []
    for m in models:
        mine: list[dict] = []
        for layer in range(m.layers):
            for kind in kinds:
                for head in range(m.heads):
                    found = m.change(
                        m.ablated(
                            m.depth(layer) * (head == 0 and layer in (0, m.layers - 1)),
                            0.02,
                        )
                    )
                    away = 0.1 + head / 100
                    mine.append(
                        {
                            "model": m.model,
                            "label": f"head {head} of layer {layer} ({kind})",
                            "layer": layer,
                        }
                        | {"attention": kind, "head": head, "spearman_distance": away}
                        | {
                            "spearman_distance_lower": 0.9 * away,
                            "spearman_distance_upper": 1.1 * away,
                        }
                        | {
                            "baseline_mase": m.baseline,
                            "mase": m.baseline * (1 + found["change"]),
                            **found,
                        }
                    )
        rows += in_families(mine, "model")
    return table(pd.DataFrame(rows).assign(**NO_LEAD), "sweep_heads")


def curves(
    models: Sequence[Planted], counts: Sequence[int] | None = None, harm: float = 0.0
) -> pd.DataFrame:
    """Errors over heads ablated; only at some ``counts``, and with ``harm`` added to the log error, where given."""
    rows = []
    for m in models:
        for layer in range(m.layers):
            for order in ORDERS:
                worse = dict(
                    zip(ORDERS, (1.0 + layer % 2, 2.0 - layer % 2, 2.5), strict=True)
                )[order]
                for count in range(m.heads + 1):
                    share = count / m.heads
                    if counts is not None and count not in counts:
                        continue
                    errors = (
                        m.ablated(worse * m.depth(layer) * share**2 + harm, 0.02)
                        if count
                        else m.plain
                    )
                    found = m.change(errors)
                    rows.append(
                        {
                            "model": m.model,
                            "layer": layer,
                            "order": order,
                            "ablated": count,
                            "of": m.heads,
                        }
                        | {
                            "share": share,
                            "baseline_mase": m.baseline,
                            "mase": m.baseline * (1 + found["change"]),
                        }
                        | {
                            "label": f"{count} of {m.heads} heads of layer {layer}",
                            "tests": 1,
                            **UNITS,
                        }
                        | {
                            **found,
                            "p_holm": found["p_value"],
                            "significant": found["p_value"] < 0.001,
                        }
                    )
    made = table(rows, "sweep_curves", tolerance=TOLERANCE)
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
    """What each order keeps, by definition 5.2, and which order keeps fewest, of equals at the smaller change."""
    rows = []
    named = curves_[~curves_["order"].str.startswith("random")]
    for (model, layer, order), line in named.groupby(
        ["model", "layer", "order"], sort=False
    ):
        within = line[(line["change"] < TOLERANCE) & (line["ablated"] > 0)].sort_values(
            "ablated"
        )
        of, ablated = (
            int(line["of"].iloc[0]),
            int(within["ablated"].max()) if len(within) else 0,
        )
        change = float(within["change"].iloc[-1]) if len(within) else 0.0
        rows.append(
            {
                "model": model,
                "layer": layer,
                "order": order,
                "ablated": ablated,
                "of": of,
                "kept": of - ablated,
            }
            | {
                "better": False,
                "change": change,
                "judged_by": "MASE",
                "order_significant": False,
                "leads": "",
            }
            | {"lead_share": 0.0, "evaluations": float(of), "total": float(of)}
        )
    made = pd.DataFrame(rows)
    best = (
        made.sort_values(["kept", "change"], kind="stable")
        .drop_duplicates(["model", "layer"])
        .index
    )
    made.loc[best, "better"] = True
    return made


def heads_at(curves_: pd.DataFrame) -> pd.DataFrame:
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
        for layer, kept in ((0, m.heads), (m.layers // 2, 0)):
            for count in [
                each for each in range(m.heads + 1) if counts is None or each in counts
            ]:
                errors = (
                    m.ablated(m.depth(layer) * (count / m.heads) ** 2 + harm, 0.03)
                    if count
                    else m.plain
                )
                where = {
                    "model": m.model,
                    "layer": layer,
                    "kept": kept,
                    "order": "stable_rank:low",
                }
                values = zip(
                    m.datasets,
                    errors.mean(-1),
                    errors.mean(-1) / m.plain.mean(-1) - 1,
                    strict=True,
                )
                rows += [
                    where
                    | {
                        "ablated": count,
                        "of": m.heads,
                        "dataset": name,
                        "mase": mase,
                        "change": change,
                    }
                    for name, mase, change in values
                ]
    made = pd.DataFrame(rows)
    within = made["ablated"].where(made["change"] < TOLERANCE, -1)
    made["largest_within"] = within.groupby(
        [made["model"], made["layer"], made["dataset"]]
    ).transform("max")
    return table(made, "sweep_datasets", tolerance=TOLERANCE, cap=0.25)


def recipes(
    models: Sequence[Planted], seeds: int = 3
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Heavy recipes, and the listed ones against random heads at the same counts."""
    rows, against = [], []
    for m in models:
        for recipe, share, mlps, strength in (
            ("light", 0.28, 2, 0.03),
            ("heavy", 0.5, 0, 0.1),
        ):
            listed = m.ablated(strength)
            randoms = [m.ablated(strength + 0.25) for _ in range(seeds)]
            for selection, seed, errors in [("listed", -1, listed)] + [
                ("random", seed, errors) for seed, errors in enumerate(randoms)
            ]:
                own = m.change(errors)
                each = errors.mean(-1) / m.plain.mean(-1) - 1
                entry = (
                    {
                        "model": m.model,
                        "recipe": recipe,
                        "selection": selection,
                        "seed": seed,
                    }
                    | {"label": f"{recipe}, {selection} {seed}"}
                    | {
                        "heads_ablated": round(share * m.layers * m.heads),
                        "heads_total": m.layers * m.heads,
                    }
                    | {
                        "n_mlps": mlps,
                        "n_resilient": int((each < 0.05).sum()),
                        "n_improved": int((each < 0).sum()),
                    }
                    | {"n_datasets": len(each)}
                )
                others = [
                    m.change(m.ablated(strength * k)) for k in (-2.0, 0.8, 1.0, -0.5)
                ]
                rows += [
                    entry | {"metric": name, **found}
                    for name, found in zip(METRICS, (own, *others), strict=True)
                ]
            own, *others = (np.log(errors.mean(-1)) for errors in (listed, *randoms))
            found = sized(own - np.mean(others, axis=0))
            names = {
                "diff": "change",
                "diff_lower": "lower",
                "diff_upper": "upper",
                "diff_p": "p_value",
            }
            diff = {name: found[key] for name, key in names.items()}
            diff["n_worse"] = sum(other.sum() > own.sum() for other in others)
            against.append(
                {"model": m.model, "recipe": recipe, "selection": "listed"} | diff
            )
    heavy = table(in_families(rows, "metric"), "sweep_recipes")
    counts = "heads_ablated heads_total n_mlps metric n_resilient n_improved n_datasets".split()
    choice = heavy[heavy["metric"] == "MASE"].drop(columns=counts)
    choice = (
        choice.merge(
            pd.DataFrame(against), on=["model", "recipe", "selection"], how="left"
        )
        .fillna({"n_worse": -1})
        .astype({"n_worse": int})
    )
    return heavy, table(
        choice.assign(diff_significant=choice["diff_p"] < 0.01), "sweep_selection"
    )


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
    return {
        "layers": effects(made),
        "heads": single_heads(made),
        "curves": steps,
        "heads_at": heads_at(steps),
        "datasets": maps(made, counts, harm),
        "recipes": heavy,
        "selection": choice,
    }
