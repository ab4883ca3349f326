"""Cells of the tsfm-lens paper on small models: forecasts without parts, beside nulls.

Parts are layers and heads; their nulls are random parts and untrained twins. Read
:func:`ablated` first, one cell of ablations, then :func:`write_codes`, what is ablated;
:func:`lens_cells` is the list. Ablation itself is :mod:`tsfm_lens.ablation`.

A set of parts is written as a code, so that a record says what was ablated: "1:h023m"
is layer 1 without the heads 0, 2 and 3 of all its attentions over time and without its
MLP; "x" are heads of the last attention alone, "c" is a convolution; layers stand apart
by a space.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation import Variant, forecast_variants
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch, bundled_names
from tsfm_lens.hooks.component import Component
from tsfm_lens.models import Lens, Run, load
from tsfm_lens.models.twins import make_twin
from tsfm_lens.probes import (
    autoregressive_attention,
    diffuse_heads,
    entropic_rank,
    head_entropy,
    head_spectra,
    induction_scores,
    layer_gain,
    logit_lens,
    sharp_heads,
)
from tsfm_lens.studies.queue.driver import QueueCell, Workplace, read_record
from tsfm_lens.sweep import dysts_sets
from tsfm_lens.sweep.data.evaluation import EvaluationSet
from tsfm_lens.sweep.data.evaluation_sources import holdout_sets
from tsfm_lens.sweep.planner.orders import rankings
from tsfm_lens.sweep.planner.recipes import (
    Recipe,
    parse_recipe,
    read_recipe,
    select_targets,
)
from tsfm_lens.sweep.planner.variants import list_kinds, select_heads
from tsfm_lens.sweep.statistics.scores import (
    SUMS,
    forecast_distances,
    pooled,
    window_scores,
)

ORDER = 1
LEVELS = tuple(level / 10 for level in range(1, 10))
METRICS = ("MASE", "sMAPE", "NRMSE", "CRPS", "MSIS")
EVERY = ("MASE", "CRPS")
"""Metrics that are kept of every variant."""
DISTANCE = "spearman_distance"
PLAIN = "plain"
NAIVE = "seasonal naive"
MODEL = "model"
TOLERANCE = 0.01
ABLATIONS, TWINS, LAYERS, HEADS, PATCHES = (
    f"lens_{name}"
    for name in ("ablations", "twin_ablations", "layers", "heads", "patches")
)
IDS = {
    ABLATIONS: (
        "S3-F2 S3-F3 S3-F4 S3-F5 S3-F6 S3-F7 S3-F8 S3-F9 S3-F10 S3-F11 S3-F12 S3-F13"
        " S3-F14 S3-F15 S3-F16 S3-F17 S3-F18 S3-F19 S3-F20 S3-T1 S3-T4"
    ),
    TWINS: "S3-F2 S3-F8 S3-F9",
    LAYERS: "S3-F1D S3-F1E S3-F22",
    HEADS: "S3-F23 S3-T5 S3-HENT S3-PREF S3-SRANK",
    PATCHES: "S3-F21",
}


# --- series ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SeriesWindows:
    """Windows of bundled series and chaotic systems, with the series of each.

    There are contexts, truths (window, step), scales, and naive forecasts.
    """

    contexts: SeriesBatch
    truth: np.ndarray
    scale: np.ndarray
    naive: np.ndarray
    series: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """Names of the series, each once."""
        return list(dict.fromkeys(self.series))

    def by_series(self, values: np.ndarray, *, total: bool = False) -> np.ndarray:
        """Average or add up values (…, window) over the windows of each series."""
        labels = np.array(self.series)
        parts = [values[..., labels == name] for name in self.names]
        return np.stack(
            [part.sum(-1) if total else part.mean(-1) for part in parts], axis=-1
        )

    def run(self, lens: Lens, plan: Mapping[str, Any]) -> Run:
        """Run a model on the windows, with their truth."""
        full = [
            np.concatenate(pair)
            for pair in zip(self.contexts.values, self.truth, strict=True)
        ]
        batch = SeriesBatch(tuple(full), self.contexts.ids)
        samples = None
        if _draws(lens):
            samples = plan["samples"]
        return lens.run(
            batch,
            self.truth.shape[1],
            holdout=True,
            num_samples=samples,
            seed=plan["seeds"][0],
        )


def _draws(lens: Lens) -> bool:
    return lens.adapter.readout == "token"


def cut_windows(plan: Mapping[str, Any], context: int) -> SeriesWindows:
    """Cut the windows of the plan's series to a model's context."""
    chaos = plan["chaos"]
    sizes = chaos["windows"], chaos["stride"], chaos["points"], chaos["periods"]
    sets = _sets(
        plan["horizon"], plan["bundled_windows"], tuple(chaos["systems"]), *sizes
    )
    batches = []
    truths = []
    scales = []
    naive = []
    series = []
    for evaluation in sets:
        contexts, truth = evaluation.batch(range(len(evaluation)), context)
        ids = tuple(f"{evaluation.name} {name}" for name in contexts.ids)
        batches.append(SeriesBatch(contexts.values, ids))
        truths.append(truth)
        scales.append(evaluation.scales(range(len(evaluation))))
        naive.append(evaluation.seasonal_naive(range(len(evaluation)), LEVELS))
        series += [evaluation.name.partition("/")[2]] * len(evaluation)
    truth, scale, forecast = (np.concatenate(part) for part in (truths, scales, naive))
    return SeriesWindows(
        SeriesBatch.concat(batches), truth, scale, forecast, tuple(series)
    )


@cache
def _sets(
    horizon: int,
    bundled: int,
    systems: tuple[str, ...],
    windows: int,
    stride: int,
    points: int,
    periods: float,
) -> list[EvaluationSet]:
    """Make the sets of all series; of chaotic systems the first coordinate."""
    sets = holdout_sets(list(bundled_names()), horizon, bundled)
    for dysts_set in dysts_sets(
        systems, horizon, windows, stride, points=points, periods=periods
    ):
        first = tuple(window for window in dysts_set.windows if window.item == "ic0.0")
        sets.append(replace(dysts_set, windows=first))
    return sets


# --- codes ----------------------------------------------------------------------------

Parts = Mapping[int, tuple[Sequence[int], bool]]
"""By layer the heads and whether the MLP goes."""


def write_code(parts: Parts, letter: str = "h") -> str:
    """Write a set of parts as a code."""
    texts = []
    for layer, (heads, mlp) in sorted(parts.items()):
        letters = ""
        if heads:
            letters = letter + "".join(map(str, sorted(heads)))
        if mlp:
            letters += "m"
        if letters:
            texts.append(f"{layer}:{letters}")
    return " ".join(texts)


def read_components(lens: Lens, code: str) -> list[Component]:
    """Return the components that a code names."""
    stack = lens.wiring.output_stack
    found = list[Component]()
    for word in code.split():
        layer, _, letters = word.partition(":")
        for letter, digits in re.findall(r"([hxmc])(\d*)", letters):
            if letter in "mc":
                found.append(
                    Component(stack.name, int(layer), {"m": "mlp", "c": "conv"}[letter])
                )
            else:
                kinds = list_kinds(stack, int(layer), paired=letter == "h")
                found += select_heads(stack, int(layer), map(int, digits), kinds)
    return found


def _subsets(members: Sequence[int], *, min_size: int = 1) -> Iterator[tuple[int, ...]]:
    for size in range(min_size, len(members) + 1):
        yield from itertools.combinations(members, size)


def list_families(models: Mapping[str, Any], plan: Mapping[str, Any]) -> list[str]:
    """List the families of variants that a model has."""
    if not models["heads"]:
        return ["layers", "ranges"]
    own_families = [f"own {name}" for name in plan["own_recipes"]]
    heads = [f"heads {layer}" for layer in range(models["layers"])]
    return [
        "layers",
        "all heads",
        "mlps",
        *heads,
        "cross heads",
        "random",
        "sharp",
        *plan["recipes"],
        *own_families,
    ]


def write_codes(
    lens: Lens, family: str, plan: Mapping[str, Any], model: str, workplace: Workplace
) -> dict[str, str]:
    """Return the codes of a family's variants by their names.

    A name says how the variant was chosen.
    """
    stack = lens.wiring.output_stack
    layers = range(stack.n_layers)
    heads = range(stack.n_heads)
    rng = np.random.default_rng(plan["draw_seed"])
    draws = plan["draws"]
    if family in ("layers", "ranges") and not heads:
        return dict(_plain_names(_branch_codes(len(layers), family)))
    if family == "layers":
        return _plain_names(
            write_code(dict.fromkeys(some, (heads, True))) for some in _subsets(layers)
        )
    if family == "all heads":
        return _plain_names(
            write_code(dict.fromkeys(some, (heads, False))) for some in _subsets(layers)
        )
    if family == "mlps":
        return _plain_names(
            write_code(dict.fromkeys(some, ((), True))) for some in _subsets(layers)
        )
    if family.startswith("heads "):
        layer = int(family.split()[1])
        return _plain_names(
            write_code({layer: (some, False)}) for some in _subsets(heads)
        )
    if family == "cross heads":
        return _plain_names(
            write_code({layer: ((head,), False)}, "x")
            for layer in layers
            for head in heads
        )
    if family == "random":
        # as many as one layer has, from anywhere
        full = _drawn(
            rng, draws, lambda: _anywhere(rng, len(layers), len(heads), len(heads), 1)
        )
        only = _drawn(
            rng, draws, lambda: _anywhere(rng, len(layers), len(heads), len(heads), 0)
        )
        return {**_named("random layer", full), **_named("random heads", only)}
    if family == "sharp":
        return _sharp_codes(lens, plan, rng)
    recipe = _recipe(lens, family, plan, model, workplace)
    chosen, mlps = select_targets(recipe[0], lens, measured=recipe[1], scale=True)
    parts = {layer: (chosen.get(layer, []), layer in mlps) for layer in layers}
    counts = {layer: len(indices) for layer, indices in chosen.items()}
    total = sum(counts.values())

    def in_place() -> str:
        """Draw as many heads of each layer, with the same MLPs (figure 12)."""
        picked = {
            layer: rng.permutation(len(heads))[:count].tolist()
            for layer, count in counts.items()
        }
        return write_code(
            {layer: (picked.get(layer, ()), layer in mlps) for layer in layers}
        )

    return {
        "chosen": write_code(parts),
        **_named("random in place", _drawn(rng, draws, in_place)),
        **_named(
            "random anywhere",
            _drawn(
                rng,
                draws,
                lambda: _anywhere(rng, len(layers), len(heads), total, len(mlps)),
            ),
        ),
    }


def _plain_names(codes: Iterable[str]) -> dict[str, str]:
    return {code: code for code in codes}


def _named(prefix: str, codes: Iterable[str]) -> dict[str, str]:
    return {f"{prefix} {number}": code for number, code in enumerate(codes)}


def _drawn(rng: np.random.Generator, count: int, draw: Any) -> list[str]:
    """Draw up to ``count`` different codes; fewer where there are no more."""
    codes: dict[str, None] = {}
    for _ in range(50 * count):
        if len(codes) == count:
            break
        codes[draw()] = None
    return [code for code in codes if code]


def _anywhere(
    rng: np.random.Generator, layers: int, heads: int, count: int, mlps: int
) -> str:
    """Draw heads and MLPs from all layers."""
    picked = rng.permutation(layers * heads)[:count]
    without = set(rng.permutation(layers)[:mlps].tolist())
    by_layer: dict[int, tuple[list[int], bool]] = {
        layer: ([], layer in without) for layer in range(layers)
    }
    for head_index in picked.tolist():
        by_layer[head_index // heads][0].append(head_index % heads)
    return write_code(by_layer)


def _branch_codes(layers: int, family: str) -> Iterator[str]:
    """Write layers without heads, one by one or in ranges.

    Ranges are pairs, and ranges that grow from the middle.
    """
    middle = layers // 2
    pairs = [range(first, first + 2) for first in range(layers - 1)]
    growing = [
        range(max(middle - distance, 0), min(middle + distance, layers - 1) + 1)
        for distance in range(1, middle + 1)
    ]
    if family == "layers":
        spans = [range(layer, layer + 1) for layer in range(layers)]
    else:
        spans = [*pairs, *growing]
    for letters in ("cm", "c", "m"):
        for span in spans:
            yield " ".join(f"{layer}:{letters}" for layer in span)


def _sharp_codes(
    lens: Lens, plan: Mapping[str, Any], rng: np.random.Generator
) -> dict[str, str]:
    """Write the sharpest and most diffuse heads, and as many random ones.

    They are those of figures 5 and 20.
    """
    windows = cut_windows(plan, lens.adapter.context_length)
    entropy = head_entropy(windows.run(lens, plan))
    stack = lens.wiring.output_stack
    codes = dict[str, str]()
    for count in plan["sharp_counts"]:
        for text, chosen in (
            ("sharpest", sharp_heads(entropy, count)),
            ("most diffuse", diffuse_heads(entropy, count)),
        ):
            by_layer: dict[int, tuple[list[int], bool]] = {}
            for head in chosen:
                by_layer.setdefault(head.layer, ([], False))[0].append(
                    int(head.head or 0)
                )
            codes[f"{text} {count}"] = write_code(by_layer, "x")

        def draw(count: int = count) -> str:
            return _anywhere(rng, stack.n_layers, stack.n_heads, count, 0).replace(
                "h", "x"
            )

        codes |= _named(f"random {count}", _drawn(rng, plan["draws"], draw))
    return codes


def _recipe(
    lens: Lens, family: str, plan: Mapping[str, Any], model: str, workplace: Workplace
) -> tuple[Recipe, dict[int, list[int]] | None]:
    """Return a published recipe, or one at the model's own heads@1pp.

    The latter has the heads that go in each layer.
    """
    if not family.startswith("own "):
        return read_recipe(family), None
    name = family.removeprefix("own ")
    return parse_recipe({"name": name, **plan["own_recipes"][name]}), removable_heads(
        lens, model, workplace
    )


def removable_heads(
    lens: Lens, model: str, workplace: Workplace
) -> dict[int, list[int]]:
    """Return by layer the heads that can go within 1 % of the error (S3-H1PP).

    They go by the better order of stable rank.

    Raises:
        InputError: the ablations of single layers' heads are not in the record yet.
    """
    record = read_record(workplace.records / f"{ABLATIONS}_{model}.nc")
    if record is None:
        raise InputError(
            f"heads of {model} are ablated by heads@1pp once the record has the heads"
            " of every layer"
        )
    error: xr.DataArray = xr.apply_ufunc(np.log, record["MASE"].mean("seed"))
    # relative change of the geometric mean over series
    change: xr.DataArray = xr.apply_ufunc(
        np.expm1, (error - error.sel(variant=PLAIN)).mean("series")
    )
    best: dict[int, list[int]] = {}
    for by_layer in rankings(lens, ["stable_rank"]).values():
        for layer, order in by_layer.items():
            # from the most heads down: the first count within the tolerance decides
            for count in range(len(order), 0, -1):
                name = f"heads {layer} | {write_code({layer: (order[:count], False)})}"
                if float(change.sel(variant=name)) < TOLERANCE:
                    if count > len(best.get(layer, [])):
                        best[layer] = list(order[:count])
                    break
    return {
        layer: best.get(layer, []) for layer in range(lens.wiring.output_stack.n_layers)
    }


# --- forecasts without parts ----------------------------------------------------------


def ablated(
    model: str, family: str, seed: int, plan: Mapping[str, Any], workplace: Workplace
) -> xr.Dataset:
    """Forecast without the parts of each variant of a family.

    Errors, and the distance of the forecast, are by series.
    """
    lens = load(plan["models"][model]["source"])
    codes = write_codes(lens, family, plan, model, workplace)
    scores = compute_scores(lens, list(dict.fromkeys(codes.values())), seed, plan)
    names = {
        f"{family} | {name}" if name == code else f"{family} | {name}: {code}": code
        for name, code in codes.items()
    }
    if family == "layers":
        names |= {PLAIN: PLAIN, NAIVE: NAIVE}
    data = (
        scores[[*EVERY, DISTANCE]]
        .sel(code=list(names.values()))
        .drop_vars("code")
        .rename(code="variant")
    )
    data = data.assign_coords(variant=list(names))
    # the further metrics of table 4 only of what it has: recipes, and the forecasts
    # that they are compared with
    if "chosen" in codes:
        rows = {family: codes["chosen"]}
    elif family == "layers":
        rows = {PLAIN: PLAIN, NAIVE: NAIVE}
    else:
        rows = {}
    if rows:
        more = (
            scores[[name for name in METRICS if name not in EVERY]]
            .sel(code=list(rows.values()))
            .drop_vars("code")
        )
        data = data.merge(more.rename(code="recipe").assign_coords(recipe=list(rows)))
    return data.expand_dims(seed=[seed]).assign_attrs(
        _attrs(ABLATIONS, plan, model=model)
    )


def compute_scores(
    lens: Lens, codes: Sequence[str], seed: int, plan: Mapping[str, Any]
) -> xr.Dataset:
    """Compute errors and distances (code, series).

    Those of the plain model and of the seasonal naive forecast are among them.
    """
    context = min(lens.adapter.context_length, plan["longest_context"])
    windows = cut_windows(plan, context)
    variants = [Variant(PLAIN, ())]
    variants += [
        replace(Variant.zero(*read_components(lens, code)), name=code) for code in codes
    ]
    samples = None
    if _draws(lens):
        samples = plan["samples"]
    options: dict[str, Any] = {
        "quantiles": LEVELS,
        "num_samples": samples,
        "seed": seed,
        "non_finite": "keep",
    }
    result = forecast_variants(
        lens, windows.contexts, windows.truth.shape[1], variants, **options
    )
    rows = []
    for index in range(len(variants)):
        if result.samples is None:
            drawn = None
        else:
            drawn = result.samples[index]
        sums = window_scores(
            windows.truth,
            result.quantiles[index],
            LEVELS,
            windows.scale,
            samples=drawn,
            mean=result.mean[index],
        )
        middle = result.quantiles[:, :, LEVELS.index(0.5)]
        distances = forecast_distances(
            middle[index], middle[0], steps=plan["compared_steps"]
        )[DISTANCE]
        rows.append({**_metrics(windows, sums), DISTANCE: windows.by_series(distances)})
    naive = window_scores(windows.truth, windows.naive, LEVELS, windows.scale)
    rows.append(
        {**_metrics(windows, naive), DISTANCE: np.full(len(windows.names), np.nan)}
    )
    columns = {
        name: (
            ("code", "series"),
            np.stack([row[name] for row in rows]).astype(np.float32),
        )
        for name in rows[0]
    }
    return xr.Dataset(
        columns, coords={"code": [PLAIN, *codes, NAIVE], "series": windows.names}
    )


def _metrics(
    windows: SeriesWindows, sums: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Compute the metrics of each series from the sums of its windows."""
    return pooled(
        {name: windows.by_series(sums[name], total=True) for name in SUMS}, METRICS
    )


def twins_ablated(
    model: str, number: int, plan: Mapping[str, Any], workplace: Workplace
) -> xr.Dataset:
    """Forecast by an untrained twin without layers, their heads or their MLPs.

    Distances are by series.
    """
    lens = make_twin(load(plan["models"][model]["source"]), number)
    stack = lens.wiring.output_stack
    heads = range(stack.n_heads)
    parts = [(heads, True), (heads, False), ((), True)]
    codes = [
        write_code({layer: part}) for part in parts for layer in range(stack.n_layers)
    ]
    scores = compute_scores(lens, codes, plan["seeds"][0], plan)[[DISTANCE]].sel(
        code=codes
    )
    scores = scores.rename(code="variant").expand_dims(model=[model], twin=[number])
    return scores.assign_attrs(_attrs(TWINS, plan))


def _attrs(record: str, plan: Mapping[str, Any], **more: str) -> dict[str, Any]:
    names = (
        "horizon",
        "samples",
        "compared_steps",
        "draws",
        "draw_seed",
        "longest_context",
    )
    return {"ids": IDS[record], **{name: plan[name] for name in names}, **more}


# --- layers and heads -----------------------------------------------------------------


def _subject(model: str, number: int, plan: Mapping[str, Any]) -> tuple[Lens, str]:
    """Open a model, or its twin of a number; -1 is the model itself."""
    lens = load(plan["models"][model]["source"])
    if number < 0:
        return (lens, MODEL)
    return (make_twin(lens, number), f"twin {number}")


def layers_measured(
    model: str, number: int, plan: Mapping[str, Any], workplace: Workplace
) -> xr.Dataset:
    """Measure errors and entropies after every layer, by series.

    The errors are the lens forecast's; entropies are of logits and of heads' writes.
    """
    lens, subject = _subject(model, number, plan)
    windows = cut_windows(plan, lens.adapter.context_length)
    full = windows.run(lens, plan)
    parts = []
    for first in range(0, len(windows.series), 8):
        run = full.select(list(range(first, min(first + 8, len(windows.series)))))
        read = logit_lens(run)
        ranks = entropic_rank(run)
        part = layer_gain(read)[["error"]]
        if "entropy" in read:
            part["logit_entropy"] = read["entropy"].mean("step")
        part["write_entropy"] = ranks["entropy"]
        parts.append(
            part.drop_vars([name for name in part.coords if name not in part.dims])
        )
    joined = xr.concat(parts, dim="series", join="outer", combine_attrs="override")
    arrays = {
        name: (values.transpose(..., "series").dims, _mean(windows, values))
        for name, values in joined.items()
    }
    coords = {name: joined[name].values for name in ("layer", "metric")}
    data = xr.Dataset(arrays, coords={**coords, "series": windows.names})
    return data.expand_dims(model=[model], subject=[subject]).assign_attrs(
        _attrs(LAYERS, plan)
    )


def _mean(windows: SeriesWindows, values: xr.DataArray) -> np.ndarray:
    return windows.by_series(values.transpose(..., "series").values).astype(np.float32)


def heads_measured(
    model: str, number: int, plan: Mapping[str, Any], workplace: Workplace
) -> xr.Dataset:
    """Measure attention entropy, stable ranks and induction scores of every head.

    Entropies are by series, induction scores by blocks of sequences.
    """
    lens, subject = _subject(model, number, plan)
    windows = cut_windows(plan, lens.adapter.context_length)
    run = windows.run(lens, plan)
    labels = np.array(windows.series)
    rows = [np.flatnonzero(labels == name).tolist() for name in windows.names]
    entropy = np.stack(
        [head_entropy(run.select(row))["entropy"].values for row in rows]
    )
    spectra = head_spectra(lens, kind="cross_attn", products=["QK"])["stable_rank"].sel(
        product="QK"
    )
    data = xr.Dataset(
        {
            "entropy": (("series", "layer", "head"), entropy.astype(np.float32)),
            "stable_rank": (("layer", "head"), spectra.values.astype(np.float32)),
        },
        coords={
            "series": windows.names,
            "layer": spectra["layer"].values,
            "head": spectra["head"].values,
        },
    )
    if _draws(lens):
        data = data.assign(_induction(lens, plan["induction"]))
    return data.expand_dims(model=[model], subject=[subject]).assign_attrs(
        _attrs(HEADS, plan)
    )


def _induction(lens: Lens, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Score induction by blocks of sequences.

    A block is NaN where no token that was rolled out is in the context.
    """
    stack = lens.wiring.output_stack
    found = []
    sizes = {
        "motif": plan["motif"],
        "repeats": plan["repeats"],
        "n_sequences": plan["sequences"] // plan["blocks"],
    }
    for block in range(plan["blocks"]):
        seed = int(np.random.SeedSequence((plan["seed"], block)).generate_state(1)[0])
        try:
            scores = induction_scores(lens, **sizes, seed=seed)
            rows = [scores["prefix_matching"].values, scores["copy_score"].values]
            found.append((*rows, float(scores["copy_accuracy"])))
        except InputError:
            empty = np.full((stack.n_layers, stack.n_heads), np.nan)
            found.append((empty, empty, np.nan))
    prefix, copy, accuracy = (
        np.stack(part).astype(np.float32) for part in zip(*found, strict=True)
    )
    dims = ("block", "layer", "head")
    return {
        "prefix_matching": (dims, prefix),
        "copy_score": (dims, copy),
        "copy_accuracy": ("block", accuracy),
    }


def patches_measured(
    model: str, plan: Mapping[str, Any], workplace: Workplace
) -> xr.Dataset:
    """Measure cross-attention between patches along a long forecast (figure 21).

    The series is Lorenz-63.
    """
    lens = load(plan["models"][model]["source"])
    part = plan["patches"]
    (lorenz,) = dysts_sets(
        ["Lorenz"], part["horizon"], points=part["points"], periods=part["periods"]
    )
    contexts, truth = lorenz.batch([0], lens.adapter.context_length)
    batch = SeriesBatch((np.concatenate([contexts.values[0], truth[0]]),), ("Lorenz",))
    maps = autoregressive_attention(
        lens.run(batch, part["horizon"], holdout=True), keys="window"
    )
    columns = {name: maps[name] for name in ("attention", "key_start", "key_stop")}
    data = xr.Dataset(
        {name: (values.dims, values.values) for name, values in columns.items()}
    )
    data["attention"] = data["attention"].astype(np.float32)
    data["key_special"] = ("key", (maps["key_special"].values != "").astype(np.int8))
    return data.expand_dims(model=[model]).assign_attrs(
        _attrs(PATCHES, plan), series="Lorenz"
    )


# --- the list -------------------------------------------------------------------------


def lens_cells(plan: Mapping[str, Any]) -> Iterator[QueueCell]:
    """List the cells: the models themselves first, then their twins."""
    costs = plan["seconds"]
    cell = partial(QueueCell, ORDER)
    for model, metadata in plan["models"].items():
        if metadata["heads"]:
            for record, measured in (
                (LAYERS, layers_measured),
                (HEADS, heads_measured),
            ):
                function = partial(measured, model, -1, plan)
                yield cell(
                    record, f"{model}, {MODEL}", function, model, costs[record][model]
                )
        if metadata["patches"]:
            yield cell(
                PATCHES,
                model,
                partial(patches_measured, model, plan),
                model,
                costs[PATCHES][model],
            )
    for model, metadata in plan["models"].items():
        for family in list_families(metadata, plan):
            both = metadata["drawn"] and family in plan["two_seeds"]
            for seed in plan["seeds"] if both else plan["seeds"][:1]:
                function = partial(ablated, model, family, seed, plan)
                seconds = costs[ABLATIONS][model]
                yield cell(
                    f"{ABLATIONS}_{model}",
                    f"{family}, seed {seed}",
                    function,
                    family,
                    seconds,
                )
    for number in range(plan["twins"]):
        for model, metadata in plan["models"].items():
            if not metadata["heads"]:
                continue
            for record, measured in (
                (LAYERS, layers_measured),
                (HEADS, heads_measured),
                (TWINS, twins_ablated),
            ):
                function = partial(measured, model, number, plan)
                yield cell(
                    record,
                    f"{model}, twin {number}",
                    function,
                    model,
                    costs[record][model],
                )
