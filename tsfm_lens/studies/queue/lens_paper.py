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

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, combinations, groupby, product
from operator import itemgetter
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
BRANCHES = {"m": "mlp", "c": "conv"}
"""Kinds of branches without heads, by their letters."""
MLP = "m"
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
    def rows(self) -> dict[str, np.ndarray]:
        """Indices of the windows of each series, by its name."""
        labels = np.array(self.series)
        return {name: np.flatnonzero(labels == name) for name in self.series}

    def by_series(
        self, values: np.ndarray, reduce: Callable[..., np.ndarray] = np.mean
    ) -> np.ndarray:
        """Average or add up values (…, window) over the windows of each series."""
        parts = [reduce(values[..., rows], axis=-1) for rows in self.rows.values()]
        return np.stack(parts, axis=-1)

    def run(self, lens: Lens) -> Run:
        """Run a model on the windows, with their truth."""
        full = map(np.concatenate, zip(self.contexts.values, self.truth, strict=True))
        batch = SeriesBatch(tuple(full), self.contexts.ids)
        seed = SETTINGS["seeds"][0]
        horizon = self.truth.shape[1]
        samples = _samples(lens)
        return lens.run(batch, horizon, holdout=True, num_samples=samples, seed=seed)


def _samples(lens: Lens) -> int | None:
    """Return the number of samples of a model that draws its forecasts."""
    if lens.adapter.readout == "token":
        return int(SETTINGS["samples"])
    return None


def cut_windows(context: int) -> SeriesWindows:
    """Cut the windows of the plan's series to a model's context."""
    batches = []
    columns = []
    for evaluation in _sets():
        indices = range(len(evaluation))
        contexts, truth = evaluation.batch(indices, context)
        ids = tuple(f"{evaluation.name} {name}" for name in contexts.ids)
        batches.append(SeriesBatch(contexts.values, ids))
        naive = evaluation.seasonal_naive(indices, LEVELS)
        series = [evaluation.name.partition("/")[2]] * len(evaluation)
        columns.append((truth, evaluation.scales(indices), naive, series))
    truths, scales, naives, names = map(np.concatenate, zip(*columns, strict=True))
    contexts = SeriesBatch.concat(batches)
    return SeriesWindows(contexts, truths, scales, naives, tuple(names.tolist()))


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

Parts = Iterable[tuple[int, int | str]]
"""Pairs of a layer and one of its heads, or its MLP."""


def write_code(parts: Parts, letter: str = "h") -> str:
    """Write a set of parts as a code."""
    pairs = sorted((layer, str(part)) for layer, part in parts)
    words = []
    for layer, group in groupby(pairs, itemgetter(0)):
        letters = "".join(part for _, part in group)
        if letters != MLP:
            letters = letter + letters
        words.append(f"{layer}:{letters}")
    return " ".join(words)


def read_components(lens: Lens, code: str) -> list[Component]:
    """Return the components that a code names."""
    stack = lens.wiring.output_stack
    found = list[Component]()
    for word in code.split():
        number, letters = word.split(":")
        layer = int(number)
        for letter, digits in re.findall(r"([hxmc])(\d*)", letters):
            if letter in BRANCHES:
                found.append(Component(stack.name, layer, BRANCHES[letter]))
            else:
                kinds = list_kinds(stack, layer, paired=letter == "h")
                found += select_heads(stack, layer, list(map(int, digits)), kinds)
    return found


def _layer_parts(heads: int) -> dict[str, list[int | str]]:
    """Return what goes of a layer, by the family."""
    every = list[int | str](range(heads))
    return {"layers": [*every, MLP], "all heads": every, "mlps": [MLP]}


def _subsets(members: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for size in range(1, len(members) + 1):
        yield from combinations(members, size)


def list_families(model: str) -> list[str]:
    """List the families of variants that a model has."""
    facts = SETTINGS["models"][model]
    if not facts["heads"]:
        return ["layers", "ranges"]
    return [
        *_layer_parts(0),
        *(f"heads {layer}" for layer in range(facts["layers"])),
        *("cross heads", "random", "sharp"),
        *SETTINGS["recipes"],
        *(f"own {name}" for name in SETTINGS["own_recipes"]),
    ]


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
    elif family in (parts := _layer_parts(stack.n_heads)):
        codes = [write_code(product(some, parts[family])) for some in _subsets(layers)]
    elif family == "cross heads":
        codes = [write_code([pair], "x") for pair in product(layers, heads)]
    elif family.startswith("heads "):
        layer = int(family.split()[1])
        codes = [write_code(product([layer], some)) for some in _subsets(heads)]
    else:
        return _drawn_codes(lens, family, model, workplace)
    return {code: code for code in codes}


def _drawn_codes(
    lens: Lens, family: str, model: str, workplace: Workplace
) -> dict[str, str]:
    """Return codes of a family that has parts drawn at random."""
    stack = lens.wiring.output_stack
    rng = np.random.default_rng(SETTINGS["draw_seed"])
    heads = stack.n_heads

    def anywhere(count: int, mlps: int) -> Parts:
        """Draw heads and MLPs from all layers."""
        picked = rng.permutation(stack.n_layers * heads)[:count]
        without = rng.permutation(stack.n_layers)[:mlps]
        return [*zip(*np.divmod(picked, heads), strict=True), *product(without, MLP)]

    if family == "random":
        # as many as one layer has, from anywhere
        full = _draw_codes("random layer", partial(anywhere, heads, 1))
        return full | _draw_codes("random heads", partial(anywhere, heads, 0))
    if family == "sharp":
        return _sharp_codes(lens, anywhere)
    if family.startswith("own "):
        name = family.removeprefix("own ")
        recipe = parse_recipe({"name": name, **SETTINGS["own_recipes"][name]})
        measured = removable_heads(lens, model, workplace)
    else:
        recipe, measured = read_recipe(family), None
    chosen, without = select_targets(recipe, lens, measured=measured, scale=True)
    mlps = list(product(without, MLP))

    def in_place() -> Parts:
        """Draw as many heads of each layer, with the same MLPs (figure 12)."""
        drawn = [
            product([layer], rng.permutation(heads)[: len(some)])
            for layer, some in chosen.items()
        ]
        return [*chain.from_iterable(drawn), *mlps]

    picked = [(layer, head) for layer, some in chosen.items() for head in some]
    return {
        "chosen": write_code([*picked, *mlps]),
        **_draw_codes("random in place", in_place),
        **_draw_codes("random anywhere", partial(anywhere, len(picked), len(mlps))),
    }


def _draw_codes(
    prefix: str, draw: Callable[[], Parts], letter: str = "h"
) -> dict[str, str]:
    """Draw different codes by number; fewer than the plan's where there are no more."""
    count = SETTINGS["draws"]
    codes: dict[str, None] = {}
    for _ in range(50 * count):
        if len(codes) == count:
            break
        codes[write_code(draw(), letter)] = None
    drawn = filter(None, codes)
    return {f"{prefix} {number}": code for number, code in enumerate(drawn)}


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


def _sharp_codes(lens: Lens, anywhere: Callable[[int, int], Parts]) -> dict[str, str]:
    """Write the sharpest and most diffuse heads, and as many random ones.

    They are those of figures 5 and 20.
    """
    windows = cut_windows(lens.adapter.context_length)
    entropy = head_entropy(windows.run(lens))
    codes = dict[str, str]()
    for count in SETTINGS["sharp_counts"]:
        for text, choose in (
            ("sharpest", sharp_heads),
            ("most diffuse", diffuse_heads),
        ):
            chosen = [(part.layer, part.head or 0) for part in choose(entropy, count)]
            codes[f"{text} {count}"] = write_code(chosen, "x")
        codes |= _draw_codes(f"random {count}", partial(anywhere, count, 0), "x")
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
    error: Any = np.log(record["MASE"].mean("seed"))
    # relative change of the geometric mean over series
    logarithm = (error - error.sel(variant=PLAIN)).mean("series")
    change = np.expm1(logarithm.to_series())
    best: dict[int, list[int]] = {
        layer: [] for layer in range(lens.wiring.output_stack.n_layers)
    }
    for by_layer in rankings(lens, ["stable_rank"]).values():
        for layer, order in by_layer.items():
            within = [
                heads
                for heads in (order[:count] for count in range(1, len(order) + 1))
                if change[f"heads {layer} | {write_code(product([layer], heads))}"]
                < TOLERANCE
            ]
            best[layer] = max([best[layer], *within], key=len)
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
    data = _renamed(scores[[*EVERY, DISTANCE]], "variant", names)
    if recipes:
        more = scores[[name for name in METRICS if name not in EVERY]]
        data = data.merge(_renamed(more, "recipe", recipes))
    return data.expand_dims(seed=[seed]).assign_attrs(_attrs(ABLATIONS), model=model)


def _renamed(scores: xr.Dataset, dim: str, codes: Mapping[str, str]) -> xr.Dataset:
    """Select codes, and replace their dimension by one of names."""
    chosen = scores.sel(code=list(codes.values())).rename(code=dim)
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
        num_samples=_samples(lens),
        seed=seed,
        non_finite="keep",
    )
    middle = result.quantiles[:, :, LEVELS.index(0.5)]
    rows = []
    for index, quantiles in enumerate(result.quantiles):
        samples = None
        if result.samples is not None:
            samples = result.samples[index]
        distances = forecast_distances(
            middle[index], middle[0], steps=SETTINGS["compared_steps"]
        )
        distance = windows.by_series(distances[DISTANCE])
        row = _metrics(windows, quantiles, mean=result.mean[index], samples=samples)
        rows.append(row.assign({DISTANCE: ("series", distance)}))
    rows.append(_metrics(windows, windows.naive))
    data = xr.concat(rows, "code").assign_coords(code=[PLAIN, *codes, NAIVE])
    return data.assign_coords(series=list(windows.rows)).astype(np.float32)


def _metrics(windows: SeriesWindows, quantiles: np.ndarray, **more: Any) -> xr.Dataset:
    """Compute the metrics of each series from the sums of its windows."""
    sums = window_scores(windows.truth, quantiles, LEVELS, windows.scale, **more)
    totals = {name: windows.by_series(sums[name], np.sum) for name in SUMS}
    metrics = pooled(totals, METRICS)
    return xr.Dataset({name: ("series", metrics[name]) for name in METRICS})


def twins_ablated(model: str, number: int, workplace: Workplace) -> xr.Dataset:
    """Forecast by an untrained twin without layers, their heads or their MLPs.

    Distances are by series.
    """
    lens = _open(model, number)
    stack = lens.wiring.output_stack
    codes = [
        write_code(product([layer], parts))
        for parts in _layer_parts(stack.n_heads).values()
        for layer in range(stack.n_layers)
    ]
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
    rows = np.arange(len(windows.series))
    for some in np.split(rows, rows[8::8]):
        run = full.select(some.tolist())
        read = logit_lens(run)
        part = layer_gain(read)[["error"]]
        if "entropy" in read:
            part["logit_entropy"] = read["entropy"].mean("step")
        part["write_entropy"] = entropic_rank(run)["entropy"]
        parts.append(part.reset_coords(drop=True))
    joined = xr.concat(parts, dim="series", join="outer", combine_attrs="override")
    dims = [["series"]]
    data: xr.Dataset = xr.apply_ufunc(
        windows.by_series,
        joined.drop_vars("series", errors="ignore"),
        input_core_dims=dims,
        output_core_dims=dims,
        exclude_dims={"series"},
    )
    data = data.assign_coords(series=list(windows.rows)).drop_attrs()
    return _of_subject(data.astype(np.float32), LAYERS, model, number)


def heads_measured(model: str, number: int, workplace: Workplace) -> xr.Dataset:
    """Measure attention entropy, stable ranks and induction scores of every head.

    Entropies are by series, induction scores by blocks of sequences.
    """
    lens = _open(model, number)
    windows = cut_windows(lens.adapter.context_length)
    run = windows.run(lens)
    entropy = [
        head_entropy(run.select(rows.tolist()))["entropy"].values
        for rows in windows.rows.values()
    ]
    spectra = head_spectra(lens, kind="cross_attn", products=["QK"])
    data = xr.Dataset(
        {
            "entropy": (("series", "layer", "head"), np.array(entropy)),
            "stable_rank": spectra["stable_rank"].isel(product=0, drop=True),
        },
        coords={"series": list(windows.rows)},
    )
    if _samples(lens):
        data = data.merge(_induction(lens, **SETTINGS["induction"]))
    data = data.drop_attrs().astype(np.float32)
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
    return scores.reindex(block=range(blocks)).drop_vars(["layer", "head"])


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
    kept = ("attention", "key_start", "key_stop")
    data = xr.Dataset({name: maps[name].variable for name in kept}).drop_attrs()
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
    for number, model, record in product(
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
            for seed in SETTINGS["seeds"][: 1 + both]:
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
