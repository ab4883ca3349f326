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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
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
from tsfm_lens.studies.queue.driver import PLAN, QueueCell, Workplace, read_record
from tsfm_lens.sweep import dysts_sets
from tsfm_lens.sweep.data.evaluation import EvaluationSet
from tsfm_lens.sweep.data.evaluation_sources import holdout_sets
from tsfm_lens.sweep.planner.orders import rankings
from tsfm_lens.sweep.planner.recipes import (
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
SETTINGS: Mapping[str, Any] = PLAN["lens paper"]
LEVELS = tuple(level / 10 for level in range(1, 10))
METRICS = ("MASE", "sMAPE", "NRMSE", "CRPS", "MSIS")
EVERY = ("MASE", "CRPS")
"""Metrics that are kept of every variant."""
DISTANCE = "spearman_distance"
PLAIN = "plain"
NAIVE = "seasonal naive"
MODEL = "model"
TOLERANCE = 0.01
GROUPS = {"layers": (True, True), "all heads": (True, False), "mlps": (False, True)}
"""Whether the heads of a layer, and its MLP, go in families of whole layers."""
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
        reduce = np.sum if total else np.mean
        labels = np.array(self.series)
        parts = [reduce(values[..., labels == name], axis=-1) for name in self.names]
        return np.stack(parts, axis=-1)

    def run(self, lens: Lens) -> Run:
        """Run a model on the windows, with their truth."""
        full = map(np.concatenate, zip(self.contexts.values, self.truth, strict=True))
        batch = SeriesBatch(tuple(full), self.contexts.ids)
        samples = SETTINGS["samples"] if _draws(lens) else None
        seed = SETTINGS["seeds"][0]
        horizon = self.truth.shape[1]
        return lens.run(batch, horizon, holdout=True, num_samples=samples, seed=seed)


def _draws(lens: Lens) -> bool:
    return lens.adapter.readout == "token"


def cut_windows(context: int) -> SeriesWindows:
    """Cut the windows of the plan's series to a model's context."""
    batches = []
    series: list[str] = []
    columns = []
    for evaluation in _sets():
        indices = range(len(evaluation))
        contexts, truth = evaluation.batch(indices, context)
        ids = tuple(f"{evaluation.name} {name}" for name in contexts.ids)
        batches.append(SeriesBatch(contexts.values, ids))
        naive = evaluation.seasonal_naive(indices, LEVELS)
        columns.append((truth, evaluation.scales(indices), naive))
        series += [evaluation.name.partition("/")[2]] * len(evaluation)
    truths, scales, naives = map(np.concatenate, zip(*columns, strict=True))
    contexts = SeriesBatch.concat(batches)
    return SeriesWindows(contexts, truths, scales, naives, tuple(series))


@cache
def _sets() -> list[EvaluationSet]:
    """Make the sets of all series; of chaotic systems the first coordinate."""
    horizon = SETTINGS["horizon"]
    chaos = dysts_sets(horizon=horizon, **SETTINGS["chaos"])
    first = [
        replace(made, windows=tuple(w for w in made.windows if w.item == "ic0.0"))
        for made in chaos
    ]
    bundled = holdout_sets(list(bundled_names()), horizon, SETTINGS["bundled_windows"])
    return [*bundled, *first]


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


def _subsets(members: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for size in range(1, len(members) + 1):
        yield from itertools.combinations(members, size)


def list_families(model: str) -> list[str]:
    """List the families of variants that a model has."""
    facts = SETTINGS["models"][model]
    if not facts["heads"]:
        return ["layers", "ranges"]
    heads = [f"heads {layer}" for layer in range(facts["layers"])]
    own = [f"own {name}" for name in SETTINGS["own_recipes"]]
    single = [*GROUPS, *heads, "cross heads"]
    return [*single, "random", "sharp", *SETTINGS["recipes"], *own]


def write_codes(
    lens: Lens, family: str, model: str, workplace: Workplace
) -> dict[str, str]:
    """Return the codes of a family's variants by their names.

    A name says how the variant was chosen; without one, it is the code.
    """
    stack = lens.wiring.output_stack
    layers = range(stack.n_layers)
    heads = range(stack.n_heads)
    if not heads:
        codes = _branch_codes(stack.n_layers, family)
    elif family in GROUPS:
        some_heads, mlp = GROUPS[family]
        part = (heads if some_heads else (), mlp)
        codes = [write_code(dict.fromkeys(some, part)) for some in _subsets(layers)]
    elif family == "cross heads":
        pairs = itertools.product(layers, heads)
        codes = [write_code({layer: ((head,), False)}, "x") for layer, head in pairs]
    elif family.startswith("heads "):
        layer = int(family.split()[1])
        codes = [write_code({layer: (some, False)}) for some in _subsets(heads)]
    else:
        return _drawn_codes(lens, family, model, workplace)
    return {code: code for code in codes}


def _drawn_codes(
    lens: Lens, family: str, model: str, workplace: Workplace
) -> dict[str, str]:
    """Return codes of a family that has parts drawn at random."""
    stack = lens.wiring.output_stack
    rng = np.random.default_rng(SETTINGS["draw_seed"])
    anywhere = partial(_anywhere, rng, stack.n_layers, stack.n_heads)
    if family == "random":
        # as many as one layer has, from anywhere
        full = _draw_codes("random layer", partial(anywhere, stack.n_heads, 1))
        only = _draw_codes("random heads", partial(anywhere, stack.n_heads, 0))
        return {**full, **only}
    if family == "sharp":
        return _sharp_codes(lens, anywhere)
    if family.startswith("own "):
        name = family.removeprefix("own ")
        recipe = parse_recipe({"name": name, **SETTINGS["own_recipes"][name]})
        measured = removable_heads(lens, model, workplace)
    else:
        recipe, measured = read_recipe(family), None
    chosen, mlps = select_targets(recipe, lens, measured=measured, scale=True)

    def code(heads: Mapping[int, Sequence[int]]) -> str:
        layers = range(stack.n_layers)
        return write_code({n: (heads.get(n, ()), n in mlps) for n in layers})

    def in_place() -> str:
        """Draw as many heads of each layer, with the same MLPs (figure 12)."""
        orders = {layer: rng.permutation(stack.n_heads) for layer in chosen}
        return code(
            {n: order[: len(chosen[n])].tolist() for n, order in orders.items()}
        )

    total = sum(map(len, chosen.values()))
    return {
        "chosen": code(chosen),
        **_draw_codes("random in place", in_place),
        **_draw_codes("random anywhere", partial(anywhere, total, len(mlps))),
    }


def _draw_codes(prefix: str, draw: Callable[[], str]) -> dict[str, str]:
    """Draw different codes by number; fewer than the plan's where there are no more."""
    count = SETTINGS["draws"]
    codes: dict[str, None] = {}
    for _ in range(50 * count):
        if len(codes) == count:
            break
        codes[draw()] = None
    drawn = filter(None, codes)
    return {f"{prefix} {number}": code for number, code in enumerate(drawn)}


def _anywhere(
    rng: np.random.Generator, layers: int, heads: int, count: int, mlps: int
) -> str:
    """Draw heads and MLPs from all layers."""
    picked = rng.permutation(layers * heads)[:count]
    without = rng.permutation(layers)[:mlps]
    return write_code(
        {
            layer: (
                (picked[picked // heads == layer] % heads).tolist(),
                layer in without,
            )
            for layer in range(layers)
        }
    )


def _branch_codes(layers: int, family: str) -> list[str]:
    """Write layers without heads, one by one or in ranges.

    Ranges are pairs, and ranges that grow from the middle.
    """
    middle = layers // 2
    spans = [range(layer, layer + 1) for layer in range(layers)]
    if family == "ranges":
        spans = [range(first, first + 2) for first in range(layers - 1)]
        spans += [
            range(max(middle - far, 0), min(middle + far + 1, layers))
            for far in range(1, middle + 1)
        ]
    return [
        " ".join(f"{layer}:{letters}" for layer in span)
        for letters in ("cm", "c", "m")
        for span in spans
    ]


def _sharp_codes(lens: Lens, anywhere: Callable[[int, int], str]) -> dict[str, str]:
    """Write the sharpest and most diffuse heads, and as many random ones.

    They are those of figures 5 and 20.
    """
    windows = cut_windows(lens.adapter.context_length)
    entropy = head_entropy(windows.run(lens))
    codes = dict[str, str]()

    def draw(count: int) -> str:
        return anywhere(count, 0).replace("h", "x")

    for count in SETTINGS["sharp_counts"]:
        for text, choose in (
            ("sharpest", sharp_heads),
            ("most diffuse", diffuse_heads),
        ):
            by_layer: dict[int, tuple[list[int], bool]] = {}
            for head in choose(entropy, count):
                by_layer.setdefault(head.layer, ([], False))[0].append(
                    int(head.head or 0)
                )
            codes[f"{text} {count}"] = write_code(by_layer, "x")
        codes |= _draw_codes(f"random {count}", partial(draw, count))
    return codes


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
    best: dict[int, list[int]] = {
        layer: [] for layer in range(lens.wiring.output_stack.n_layers)
    }
    for by_layer in rankings(lens, ["stable_rank"]).values():
        for layer, order in by_layer.items():
            # from the most heads down: the first count within the tolerance decides
            for count in range(len(order), len(best[layer]), -1):
                name = f"heads {layer} | {write_code({layer: (order[:count], False)})}"
                if float(change.sel(variant=name)) < TOLERANCE:
                    best[layer] = list(order[:count])
                    break
    return best


# --- forecasts without parts ----------------------------------------------------------


def ablated(model: str, family: str, seed: int, workplace: Workplace) -> xr.Dataset:
    """Forecast without the parts of each variant of a family.

    Errors, and the distance of the forecast, are by series.
    """
    lens = _open(model)
    codes = write_codes(lens, family, model, workplace)
    scores = compute_scores(lens, list(dict.fromkeys(codes.values())), seed)
    names = {
        f"{family} | {name}" if name == code else f"{family} | {name}: {code}": code
        for name, code in codes.items()
    }
    # the further metrics of table 4 only of what it has: recipes, and the forecasts
    # that they are compared with
    recipes = {}
    if "chosen" in codes:
        recipes = {family: codes["chosen"]}
    if family == "layers":
        recipes = {PLAIN: PLAIN, NAIVE: NAIVE}
        names |= recipes
    data = _renamed(scores[[*EVERY, DISTANCE]], variant=names)
    if recipes:
        more = scores[[name for name in METRICS if name not in EVERY]]
        data = data.merge(_renamed(more, recipe=recipes))
    data = data.expand_dims(seed=[seed])
    return data.assign_attrs(_attrs(ABLATIONS), model=model)


def _renamed(scores: xr.Dataset, **names: Mapping[str, str]) -> xr.Dataset:
    """Select codes, and replace their dimension by one of names."""
    ((dim, codes),) = names.items()
    chosen = scores.sel(code=list(codes.values())).drop_vars("code").rename(code=dim)
    return chosen.assign_coords({dim: list(codes)})


def compute_scores(lens: Lens, codes: Sequence[str], seed: int) -> xr.Dataset:
    """Compute errors and distances (code, series).

    Those of the plain model and of the seasonal naive forecast are among them.
    """
    context = min(lens.adapter.context_length, SETTINGS["longest_context"])
    windows = cut_windows(context)
    variants = [Variant(PLAIN, ())]
    variants += [
        replace(Variant.zero(*read_components(lens, code)), name=code) for code in codes
    ]
    result = forecast_variants(
        lens,
        windows.contexts,
        windows.truth.shape[1],
        variants,
        quantiles=LEVELS,
        num_samples=SETTINGS["samples"] if _draws(lens) else None,
        seed=seed,
        non_finite="keep",
    )
    middle = result.quantiles[:, :, LEVELS.index(0.5)]
    rows = []
    for index, quantiles in enumerate(result.quantiles):
        more: dict[str, Any] = {"mean": result.mean[index]}
        if result.samples is not None:
            more["samples"] = result.samples[index]
        row = _metrics(windows, quantiles, **more)
        distances = forecast_distances(
            middle[index], middle[0], steps=SETTINGS["compared_steps"]
        )
        rows.append({**row, DISTANCE: windows.by_series(distances[DISTANCE])})
    naive = _metrics(windows, windows.naive)
    rows.append({**naive, DISTANCE: np.full(len(windows.names), np.nan)})
    columns = {
        name: (("code", "series"), np.array([row[name] for row in rows], np.float32))
        for name in rows[0]
    }
    return xr.Dataset(
        columns, coords={"code": [PLAIN, *codes, NAIVE], "series": windows.names}
    )


def _metrics(
    windows: SeriesWindows, quantiles: np.ndarray, **more: Any
) -> dict[str, np.ndarray]:
    """Compute the metrics of each series from the sums of its windows."""
    sums = window_scores(windows.truth, quantiles, LEVELS, windows.scale, **more)
    return pooled(
        {name: windows.by_series(sums[name], total=True) for name in SUMS}, METRICS
    )


def twins_ablated(model: str, number: int, workplace: Workplace) -> xr.Dataset:
    """Forecast by an untrained twin without layers, their heads or their MLPs.

    Distances are by series.
    """
    lens = _open(model, number)
    stack = lens.wiring.output_stack
    heads = range(stack.n_heads)
    parts = itertools.product(
        [(heads, True), (heads, False), ((), True)], range(stack.n_layers)
    )
    codes = [write_code({layer: part}) for part, layer in parts]
    scores = compute_scores(lens, codes, SETTINGS["seeds"][0])[[DISTANCE]]
    scores = scores.sel(code=codes).rename(code="variant")
    return scores.expand_dims(model=[model], twin=[number]).assign_attrs(_attrs(TWINS))


def _attrs(record: str) -> dict[str, Any]:
    names = (
        "horizon",
        "samples",
        "compared_steps",
        "draws",
        "draw_seed",
        "longest_context",
    )
    return {"ids": IDS[record], **{name: SETTINGS[name] for name in names}}


# --- layers and heads -----------------------------------------------------------------


def _open(model: str, number: int = -1) -> Lens:
    """Open a model, or its twin of a number; -1 is the model itself."""
    lens = load(SETTINGS["models"][model]["source"])
    if number < 0:
        return lens
    return make_twin(lens, number)


def _subject(number: int) -> str:
    """Name the model itself, number -1, or its twin of a number."""
    if number < 0:
        return MODEL
    return f"twin {number}"


def _of_subject(data: xr.Dataset, record: str, model: str, number: int) -> xr.Dataset:
    """Give measures the names of their model, and of the twin of a number."""
    data = data.expand_dims(model=[model], subject=[_subject(number)])
    return data.assign_attrs(_attrs(record))


def layers_measured(model: str, number: int, workplace: Workplace) -> xr.Dataset:
    """Measure errors and entropies after every layer, by series.

    The errors are the lens forecast's; entropies are of logits and of heads' writes.
    """
    lens = _open(model, number)
    windows = cut_windows(lens.adapter.context_length)
    full = windows.run(lens)
    parts = []
    for first in range(0, len(windows.series), 8):
        run = full.select(list(range(first, min(first + 8, len(windows.series)))))
        read = logit_lens(run)
        ranks = entropic_rank(run)
        part = layer_gain(read)[["error"]]
        if "entropy" in read:
            part["logit_entropy"] = read["entropy"].mean("step")
        part["write_entropy"] = ranks["entropy"]
        parts.append(part.reset_coords(drop=True))
    joined = xr.concat(parts, dim="series", join="outer", combine_attrs="override")
    joined = joined.transpose(..., "series")
    arrays = {
        name: (values.dims, windows.by_series(values.values).astype(np.float32))
        for name, values in joined.items()
    }
    coords = {name: joined[name].values for name in ("layer", "metric")}
    data = xr.Dataset(arrays, coords={**coords, "series": windows.names})
    return _of_subject(data, LAYERS, model, number)


def heads_measured(model: str, number: int, workplace: Workplace) -> xr.Dataset:
    """Measure attention entropy, stable ranks and induction scores of every head.

    Entropies are by series, induction scores by blocks of sequences.
    """
    lens = _open(model, number)
    windows = cut_windows(lens.adapter.context_length)
    run = windows.run(lens)
    labels = np.array(windows.series)
    rows = [np.flatnonzero(labels == name).tolist() for name in windows.names]
    entropy = [head_entropy(run.select(row))["entropy"].values for row in rows]
    spectra = head_spectra(lens, kind="cross_attn", products=["QK"])["stable_rank"].sel(
        product="QK"
    )
    data = xr.Dataset(
        {
            "entropy": (("series", "layer", "head"), np.array(entropy, np.float32)),
            "stable_rank": (("layer", "head"), spectra.values.astype(np.float32)),
        },
        coords={
            "series": windows.names,
            "layer": spectra["layer"].values,
            "head": spectra["head"].values,
        },
    )
    if _draws(lens):
        data = data.merge(_induction(lens, **SETTINGS["induction"]))
    return _of_subject(data, HEADS, model, number)


def _induction(
    lens: Lens, motif: int, repeats: int, sequences: int, blocks: int, seed: int
) -> xr.Dataset:
    """Score induction by blocks of sequences.

    A block is NaN where no token that was rolled out is in the context.
    """
    found = {}
    for block in range(blocks):
        child = int(np.random.SeedSequence((seed, block)).generate_state(1)[0])
        # a block without such a token is refused
        with suppress(InputError):
            found[block] = induction_scores(
                lens,
                motif=motif,
                repeats=repeats,
                n_sequences=sequences // blocks,
                seed=child,
            )[["prefix_matching", "copy_score", "copy_accuracy"]]
    scores = xr.concat(found.values(), pd.Index(found, name="block"))
    scores = scores.reindex(block=range(blocks)).drop_vars(["layer", "head"])
    return scores.drop_attrs().astype(np.float32)


def patches_measured(model: str, workplace: Workplace) -> xr.Dataset:
    """Measure cross-attention between patches along a long forecast (figure 21).

    The series is Lorenz-63.
    """
    lens = _open(model)
    horizon = SETTINGS["patches"]["horizon"]
    (lorenz,) = dysts_sets(["Lorenz"], **SETTINGS["patches"])
    contexts, truth = lorenz.batch([0], lens.adapter.context_length)
    batch = SeriesBatch((np.concatenate([contexts.values[0], truth[0]]),), ("Lorenz",))
    run = lens.run(batch, horizon, holdout=True)
    maps = autoregressive_attention(run, keys="window")
    columns = {name: maps[name] for name in ("attention", "key_start", "key_stop")}
    data = xr.Dataset(
        {name: (values.dims, values.values) for name, values in columns.items()}
    )
    data["attention"] = data["attention"].astype(np.float32)
    data["key_special"] = ("key", (maps["key_special"].values != "").astype(np.int8))
    data.attrs = {**_attrs(PATCHES), "series": "Lorenz"}
    return data.expand_dims(model=[model])


# --- the list -------------------------------------------------------------------------


def lens_cells() -> Iterator[QueueCell]:
    """List the cells: the models themselves first, then their twins."""
    models = SETTINGS["models"]
    headed = [model for model in models if models[model]["heads"]]
    of_twins = {LAYERS: layers_measured, HEADS: heads_measured, TWINS: twins_ablated}
    for number, model, record in itertools.product(
        range(-1, SETTINGS["twins"]), headed, of_twins
    ):
        if record != TWINS or number >= 0:
            name = f"{model}, {_subject(number)}"
            yield _cell(record, name, partial(of_twins[record], model, number), model)
    for model, facts in models.items():
        if facts["patches"]:
            yield _cell(PATCHES, model, partial(patches_measured, model), model)
        for family in list_families(model):
            both = facts["drawn"] and family in SETTINGS["two_seeds"]
            for seed in SETTINGS["seeds"] if both else SETTINGS["seeds"][:1]:
                # a record for each model, as the models have different variants
                cell = _cell(
                    ABLATIONS,
                    f"{family}, seed {seed}",
                    partial(ablated, model, family, seed),
                    model,
                )
                yield replace(cell, record=f"{ABLATIONS}_{model}", group=family)


def _cell(
    record: str, name: str, run: Callable[[Workplace], xr.Dataset], model: str
) -> QueueCell:
    seconds = SETTINGS["seconds"][record][model]
    return QueueCell(ORDER, record, name, run, model, seconds)
