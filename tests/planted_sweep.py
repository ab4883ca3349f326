"""Results of a sweep computed from a synthetic error model, for the tests of figures, tables and reports.

The scaled error of a window is drawn once; a variant multiplies it by ``exp(strength + noise)``. Everything else (MASE
a dataset, geometric means, clustered paired bootstrap, Holm's correction) is computed from those errors as the real
sweep does, by plain numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import xarray as xr
from scipy.stats import norm

WINDOWS, RESAMPLES, TOLERANCE = 8, 120, 0.01
METRICS = ("MASE", "NRMSE", "sMAPE", "CRPS", "MSIS")
_ATTRS = {"sweep": "planted", "seed": 0, "confidence": 0.95, "replicates": RESAMPLES, "correction": "Holm"}
ORDERS = ("stable_rank:low", "stable_rank:high", "random:0")


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down corrected p-values."""
    order = np.argsort(p)
    steps = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    out = np.empty(len(p))
    out[order] = np.minimum(steps, 1.0)
    return out


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
        cluster = self.rng.integers(0, size[0], (RESAMPLES, size[0]))
        self.draws = (cluster[..., None], self.rng.integers(0, WINDOWS, (RESAMPLES, size[0], WINDOWS)))

    @property
    def baseline(self) -> float:
        return float(np.exp(np.log(self.plain.mean(-1)).mean()))

    def ablated(self, strength: float, spread: float = 0.05) -> np.ndarray:
        """Errors (dataset, window) without some components."""
        each = self.rng.normal(0, spread, (len(self.datasets), 1)) + self.rng.normal(0, spread, self.plain.shape)
        return self.plain * np.exp(strength + each)

    def change(self, errors: np.ndarray) -> dict[str, float]:
        """Change of the geometric mean of MASE with its interval and two-sided p-value."""
        ratio = np.log(errors.mean(-1) / self.plain.mean(-1)).mean()
        resampled = np.log(errors[self.draws].mean(-1) / self.plain[self.draws].mean(-1)).mean(-1)
        lower, upper = np.quantile(resampled, [0.025, 0.975])
        p = 2 * norm.sf(abs(ratio) / resampled.std()) if ratio else 1.0
        found = {"change": ratio, "lower": min(lower, ratio), "upper": max(upper, ratio)}
        return {k: float(np.expm1(v)) for k, v in found.items()} | {"p_value": float(p)}

    def beside(self, listed: np.ndarray, randoms: list[np.ndarray]) -> dict[str, float]:
        """The change of one choice minus the mean change of others, with its interval."""
        plain = self.plain[self.draws].mean(-1)
        own, *others = (np.expm1(np.log(e[self.draws].mean(-1) / plain).mean(-1)) for e in (listed, *randoms))
        value, *means = (self.change(e)["change"] for e in (listed, *randoms))
        drawn, value = own - np.mean(others, axis=0), value - float(np.mean(means))
        lower, upper = np.quantile(drawn, [0.025, 0.975])
        p = float(2 * norm.sf(abs(value) / drawn.std()))
        return {"diff": value, "diff_lower": min(lower, value), "diff_upper": max(upper, value), "diff_p": p}

    def depth(self, layer: float) -> float:
        """How much a layer matters: most at both ends."""
        return 0.004 + 0.25 * abs(2 * layer / max(self.layers - 1, 1) - 1) ** 3


def dataset(rows: list[dict], coords: Sequence[str], kind: str, **attrs: object) -> xr.Dataset:
    columns = {name: ("entry", np.array([row[name] for row in rows])) for name in rows[0]}
    ds = xr.Dataset({name: column for name, column in columns.items() if name not in coords})
    ds = ds.assign_coords({name: columns[name] for name in coords})
    return ds.assign_attrs(kind=kind, title="", source="planted errors", **_ATTRS, **attrs)


def with_baselines(ds: xr.Dataset, models: Sequence[Planted]) -> xr.Dataset:
    values = ("model_name", [m.baseline for m in models])
    return ds.assign(baseline_mase=values).assign_coords(model_name=[m.model for m in models])


def changed(row: dict) -> dict:
    """The columns of a change of MASE as results name them."""
    return {f"mase_change{'' if k == 'change' else '_' + k}": row[k] for k in ("change", "lower", "upper")}


def effects(models: Sequence[Planted]) -> xr.Dataset:
    rows = []
    for m in models:
        spans = [("layers", i, i) for i in range(m.layers)]
        spans += [("groups", i, i + size - 1) for size in (2, 3) for i in range(0, m.layers - size + 1, size)]
        spans += [("ranges", m.layers // 2, i) for i in range(m.layers // 2, m.layers)]
        mine: list[dict] = []
        for part, weight in (("both", 1.0), ("heads", 0.7), ("mlp", 0.4)):
            for family, first, last in spans:
                strength = weight * sum(m.depth(i) for i in range(first, last + 1))
                found = m.change(m.ablated(strength))
                away = 1 - np.exp(-4 * strength)
                # the middle of every model costs so little that its interval reaches into gains
                mine.append(
                    {"model": m.model, "family": family, "label": f"{part} of {first} to {last}", "part": part}
                    | {"first": first, "last": last, "n_layers": m.layers}
                    | {"spearman_distance": away, "spearman_distance_lower": 0.9 * away}
                    | {"spearman_distance_upper": min(1.15 * away, 2.0), "mase": m.baseline * (1 + found["change"])}
                    | changed(found)
                    | {"p_value": found["p_value"]}
                )
        # a family of tests is one kind of entry and part
        for key in dict.fromkeys((row["family"], row["part"]) for row in mine):
            own = [row for row in mine if (row["family"], row["part"]) == key]
            corrected = holm(np.array([row["p_value"] for row in own]))
            rows += [
                row | {"p_holm": p, "stands": bool(p < 0.05), "tests": len(own)}
                for row, p in zip(own, corrected, strict=True)
            ]
    coords = ("model", "family", "label", "part", "first", "last", "n_layers", "tests")
    return with_baselines(dataset(rows, coords, "sweep_effects"), models)


def curves(models: Sequence[Planted], counts: Sequence[int] | None = None, harm: float = 0.0) -> xr.Dataset:
    """Errors over heads ablated; only at some ``counts``, and with ``harm`` added to the log error, where given."""
    rows = []
    for m in models:
        for layer in range(m.layers):
            for order in ORDERS:
                worse = {"stable_rank:low": 1.0 + layer % 2, "stable_rank:high": 2.0 - layer % 2, "random:0": 2.5}[
                    order
                ]
                for count in range(m.heads + 1):
                    share = count / m.heads
                    if counts is not None and count not in counts:
                        continue
                    errors = m.ablated(worse * m.depth(layer) * share**2 + harm, 0.02) if count else m.plain
                    found = m.change(errors)
                    rows.append(
                        {"model": m.model, "layer": layer, "order": order, "ablated": count, "of": m.heads}
                        | {"share": share, "mase": m.baseline * (1 + found["change"])}
                        | changed(found)
                        | {"p_value": found["p_value"], "stands": found["p_value"] < 0.001, "tests": 1}
                    )
    coords = ("model", "layer", "order", "ablated", "of", "share", "tests")
    return with_baselines(dataset(rows, coords, "sweep_curves", tolerance=TOLERANCE), models)


def heads_at(ds: xr.Dataset) -> xr.Dataset:
    """heads@1pp of planted curves."""
    table = ds[["mase_change"]].to_dataframe().reset_index()
    table = table[~table["order"].str.startswith("random")]
    rows = []
    for (model, layer), group in table.groupby(["model", "layer"], sort=False):
        within = group[group["mase_change"] < TOLERANCE]
        nothing = group.iloc[[0]].assign(ablated=0, mase_change=0.0)
        best = pd.concat([nothing, within]).sort_values(["ablated", "mase_change"], ascending=[True, False]).iloc[-1]
        rows.append(
            {"model": model, "layer": int(layer), "of": int(best["of"]), "kept": int(best["of"] - best["ablated"])}
            | {"ablated": int(best["ablated"]), "order": best["order"], "change": float(best["mase_change"])}
            | {"evaluations": 2 * int(best["of"]), "total": 2 * int(best["of"])}
        )
    return dataset(
        rows, ("model", "layer", "of", "order"), "sweep_heads_at", tolerance=TOLERANCE, metric="MASE", search="scan"
    )


def maps(models: Sequence[Planted], counts: Sequence[int] | None = None, harm: float = 0.0) -> xr.Dataset:
    panels = [
        (m, layer, role) for m in models for layer, role in ((0, "most important"), (m.layers // 2, "most ablatable"))
    ]
    names, most = list(models[0].datasets), max(m.heads for m in models)
    mase = np.full((len(panels), len(names), most + 1), np.nan)
    change = mase.copy()
    for i, (m, layer, _) in enumerate(panels):
        for count in range(m.heads + 1):
            if counts is not None and count not in counts:
                continue
            errors = m.ablated(m.depth(layer) * (count / m.heads) ** 2 + harm, 0.03) if count else m.plain
            mase[i, :, count] = errors.mean(-1)
            change[i, :, count] = errors.mean(-1) / m.plain.mean(-1) - 1
    within = np.where(change < TOLERANCE, np.arange(most + 1), -1).max(-1)
    dims = ("panel", "dataset", "ablated")
    return xr.Dataset(
        {"mase": (dims, mase), "mase_change": (dims, change), "largest_within": (dims[:2], within)},
        coords={
            "panel": [f"{m.model}, layer {layer}" for m, layer, _ in panels],
            "dataset": names,
            "ablated": np.arange(most + 1),
            "model": ("panel", [m.model for m, _, _ in panels]),
            "layer": ("panel", [layer for _, layer, _ in panels]),
            "order": ("panel", ["stable_rank:low"] * len(panels)),
            "role": ("panel", [role for _, _, role in panels]),
            "of": ("panel", [m.heads for m, _, _ in panels]),
        },
        attrs={"kind": "sweep_datasets", "title": "", "source": "planted errors"}
        | _ATTRS
        | {"tolerance": TOLERANCE, "cap": 0.25},
    )


def recipes(models: Sequence[Planted], seeds: int = 3) -> tuple[xr.Dataset, xr.Dataset]:
    """Heavy recipes, and the listed ones against random heads at the same counts."""
    rows, values, against = [], [], []
    for m in models:
        for recipe, share, mlps, strength in (("light", 0.28, 2, 0.03), ("heavy", 0.5, 0, 0.1)):
            listed = m.ablated(strength)
            randoms = [m.ablated(strength + 0.25) for _ in range(seeds)]
            for selection, seed, errors in [("listed", -1, listed)] + [
                ("random", seed, errors) for seed, errors in enumerate(randoms)
            ]:
                own = m.change(errors)
                each = errors.mean(-1) / m.plain.mean(-1) - 1
                rows.append(
                    {"model": m.model, "recipe": recipe, "selection": selection, "seed": seed}
                    | {"heads_ablated": round(share * m.layers * m.heads), "heads_total": m.layers * m.heads}
                    | {"n_mlps": mlps, "n_resilient": int((each < 0.05).sum()), "n_improved": int((each < 0).sum())}
                    | {"n_datasets": len(each)}
                )
                values.append([own, *(m.change(m.ablated(strength * k)) for k in (-2.0, 0.8, 1.0, -0.5))])
            against.append({"model": m.model, "recipe": recipe} | m.beside(listed, randoms))
    table = np.array([[[c[k] for k in ("change", "lower", "upper", "p_value")] for c in row] for row in values])
    coords = ("model", "recipe", "selection", "seed", "heads_ablated", "heads_total", "n_mlps")
    ds = dataset(rows, coords, "sweep_recipes").assign_coords(metric=list(METRICS))
    dims = ("entry", "metric")
    ds = ds.assign({k: (dims, table[..., i]) for i, k in enumerate(("change", "lower", "upper", "p_value"))})
    ds["stands"] = (dims, np.apply_along_axis(holm, 0, table[..., 3]) < 0.05)
    return ds, _selection(ds, against)


def _selection(ds: xr.Dataset, against: list[dict]) -> xr.Dataset:
    keys, names = ("model", "recipe", "selection", "seed"), ("change", "lower", "upper", "p_value", "stands")
    rows = [
        {key: ds[key].values[i] for key in keys} | {k: ds[k].sel(metric="MASE").values[i] for k in names}
        for i in range(ds.sizes["entry"])
    ]
    made = dataset(rows, keys, "sweep_selection")
    made = made.assign_coords({f"pair_{k}": ("pair", [row[k] for row in against]) for k in ("model", "recipe")})
    return made.assign({k: ("pair", [row[k] for row in against]) for k in against[0] if k.startswith("diff")})


def planted(
    models: Sequence[str] = ("alpha", "beta"),
    datasets: int = 4,
    layers: Sequence[int] = (6, 5),
    heads: Sequence[int] = (4, 3),
    name: Callable[[int], str] = "set {}/H/short".format,
    counts: Sequence[int] | None = None,
    harm: float = 0.0,
) -> dict[str, xr.Dataset]:
    """Every kind of result of one sweep.

    Args:
        models: names; layers, heads: of each, repeated where there are fewer.
        datasets: how many; name: of each.
        counts, harm: see ``curves``.
    """
    names = [name(i) for i in range(datasets)]
    made = [
        Planted(model, names, 11 * i + 1, layers[i % len(layers)], heads[i % len(heads)])
        for i, model in enumerate(models)
    ]
    steps = curves(made, counts, harm)
    heavy, choice = recipes(made)
    return {
        "layers": effects(made),
        "curves": steps,
        "heads_at": heads_at(steps),
        "datasets": maps(made, counts, harm),
        "recipes": heavy,
        "selection": choice,
    }
