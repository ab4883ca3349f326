"""Methods that are scored on planted models.

They score components, edges, tokens, repairs and pairs, and some claim members of them.
:func:`method` declares one, and :data:`METHODS` holds all by name. What their scores
are worth is measured in :mod:`tsfm_lens.studies.method_scores.scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import combinations, compress, product, starmap
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from tsfm_lens import probes
from tsfm_lens.ablation import Variant, point_forecasts
from tsfm_lens.core.estimates import SMALLEST_SHARE
from tsfm_lens.explain.segments import Segment, segments
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.component import Component
from tsfm_lens.models.noise import ranges
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attribution import list_decompositions
from tsfm_lens.studies.method_scores.series import EvaluationCase
from tsfm_lens.zoo.planted.rules import CovariateTimes, Gate, LocalMean

PARTS = "nodes"
EDGES = "edges"
INPUTS = "inputs"
REPAIRED = "repaired"
PAIRS = "pairs"
SEGMENTS = "segments"
ROUTES = "routes"
LEVELS = (PARTS, EDGES, INPUTS, REPAIRED, PAIRS, SEGMENTS, ROUTES)
"""What methods score, and the fields of answers that hold the scores."""
ARROW = "->"
"""Between the sender and the receiver of an edge."""
STRETCHES = 8
"""Number of segments that the past is cut into."""

Scores = NDArray[np.float64]
Labels = NDArray[np.bool_]


@dataclass(frozen=True)
class Ranking:
    """Scores of candidates by a method, and its claims if it makes any."""

    names: tuple[str, ...]
    scores: Scores
    claims: Labels | None = None


Rank = Callable[[EvaluationCase], Ranking]


@dataclass(frozen=True)
class Method:
    """Method that names what a forecast comes from."""

    name: str
    level: str
    rank: Rank
    applies: Callable[[EvaluationCase], bool] = lambda case: True


Methods = dict[str, list[Method]]
"""Methods by name, one for each level that a name scores."""
METHODS: Methods = {}


def method(
    name: str, level: str = PARTS, known: Methods = METHODS, **options: Any
) -> Callable[[Rank], Rank]:
    """Declare a method, of those that are scored on every planted model if not given.

    ``options`` are other fields of :class:`Method`.
    """

    def declare(rank: Rank) -> Rank:
        others = [one for one in known.get(name, []) if one.level != level]
        known[name] = [*others, Method(name, level, rank, **options)]
        return rank

    return declare


def has_cross(case: EvaluationCase) -> bool:
    """Return whether the stack that is read out has cross-attention."""
    return "cross_attn" in case.lens.wiring.output_stack.attention_kinds()


def reads_tokens(case: EvaluationCase) -> bool:
    """Return whether the model is an encoder-decoder over value tokens."""
    return case.lens.tokens is not None and has_cross(case)


def differentiable(case: EvaluationCase) -> bool:
    """Return whether the library's gradients are derivatives."""
    return bool(case.lens.wiring.true_gradients)


def by_size(data: xr.Dataset, name: str) -> Ranking:
    """Score components by the size of an effect over series.

    Those that a sentence would name are claimed.
    """
    data = data.isel(position=0, missing_dims="ignore")
    claims = worth_naming(data, name).values
    return Ranking(_components(data), np.abs(data[f"{name}_size"].values), claims)


def _components(data: xr.Dataset) -> tuple[str, ...]:
    return tuple(map(str, data["component"].values))


def worth_naming(data: xr.Dataset, name: str) -> xr.DataArray:
    """Mark the members that act, and by the smallest size of interest or more."""
    smallest = float(data[f"{name}_p"].attrs["smallest"])
    return (data[f"{name}_acts"] > 0) & (np.abs(data[f"{name}_size"]) >= smallest)


def of_heads(data: xr.Dataset, scores: xr.DataArray, claims: Any = None) -> Ranking:
    """Score heads by values (layer, head) of a dataset with stack and attention."""
    stack = str(data.attrs.get("stack", ""))
    kind = str(data.attrs["attention"])
    flat = scores.stack(place=("layer", "head"))
    names = [
        str(Component(stack, int(layer), kind, int(head)))
        for layer, head in flat["place"].values
    ]
    if claims is not None:
        claims = claims.stack(place=("layer", "head")).values
    return Ranking(tuple(names), flat.values.astype(float), claims)


def by(
    probe: Callable[[EvaluationCase], xr.Dataset],
    scores: str,
    claims: str = "",
    sign: int = 1,
) -> Rank:
    """Return a method that scores heads of the stack that is read out.

    The scores are a variable of a result; with a negative sign less is more. Another
    variable may hold its claims.
    """

    def rank(case: EvaluationCase) -> Ranking:
        stack = case.lens.wiring.output_stack.name
        data = probe(case).assign_attrs(stack=stack)
        return of_heads(data, sign * data[scores], data.get(claims))

    return rank


# --- what happens when a component is changed


# several methods in a row read one result of the same case
@lru_cache(maxsize=1)
def _ablation(case: EvaluationCase) -> xr.Dataset:
    return probes.ablation_effects(case.clean, components=case.components)


@lru_cache(maxsize=1)
def _effects(case: EvaluationCase) -> xr.Dataset:
    return probes.causal_effects(case.clean, components=case.read_out)


method("zero ablation")(lambda case: by_size(_ablation(case), "mean_shift"))


@method("zero ablation, of the range")
def _zero_of_range(case: EvaluationCase) -> Ranking:
    """Score by the share of the series' range.

    Claims are above the share below which no ratio is formed elsewhere.
    """
    data = _ablation(case)
    scale = ranges(case.clean, case.clean.point)[case.clean.batch.is_target]
    share = data["mean_shift"].transpose("component", "series").values / scale
    scores = share.mean(-1)
    return Ranking(_components(data), scores, scores > SMALLEST_SHARE)


@method("mean ablation")
def _mean(case: EvaluationCase) -> Ranking:
    run = case.clean
    data = probes.ablation_effects(
        run, components=case.components, how="mean", reference=run.batch
    )
    return by_size(data, "mean_shift")


method("total effect, read-out stack")(
    lambda case: by_size(_effects(case), "total_share")
)
method("direct effect, read-out stack")(
    lambda case: by_size(_effects(case), "direct_share")
)


def _patch_components(
    case: EvaluationCase, probe: Callable[..., xr.Dataset], name: str, **options: Any
) -> Ranking:
    data = probe(
        case.clean, case.corrupted, at=case.components, positions="all", **options
    )
    return by_size(data, name)


for _way in ("denoise", "noise"):
    method(f"activation patching, {_way}")(
        partial(
            _patch_components,
            probe=probes.activation_patching,
            name="recovered",
            direction=_way,
        )
    )
for _way in ("denoise", "noise"):
    method(f"attribution patching, {_way}", applies=differentiable)(
        partial(
            _patch_components,
            probe=probes.attribution_patching,
            name="first_order",
            direction=_way,
            exact=False,
        )
    )


# --- what a component writes


@lru_cache(maxsize=1)
def _attribution(case: EvaluationCase) -> xr.Dataset:
    return probes.attribution(case.clean, decompositions="all", tolerance=0.01)


def _direct_attribution(case: EvaluationCase, decomposition: str) -> Ranking:
    data = _attribution(case).sel(decomposition=decomposition)
    parts = data.drop_sel(component=["embed", "bias"], errors="ignore")
    return by_size(parts, "size_share")


def _decomposes(case: EvaluationCase, decomposition: str) -> bool:
    return decomposition in list_decompositions(case.lens)


for _name in ("logit", "expected_value", "linearised", "integrated", "lens_difference"):
    method(
        f"direct attribution, {_name.replace('_', ' ')}",
        applies=partial(_decomposes, decomposition=_name),
    )(partial(_direct_attribution, decomposition=_name))


@method("stream shares")
def _shares(case: EvaluationCase) -> Ranking:
    """Score heads, and branches without heads, by their direct attribution.

    The score is its mean size.
    """
    data = probes.stream_shares(case.clean)
    total = data["size"].sum("writer")
    shares = (data[["size", "head_size"]] / total).mean("series")
    scores = []
    for part in case.read_out:
        of_part = shares.sel(writer=str(replace(part, head=None)))
        share = of_part["size"]
        if part.head is not None:
            share = of_part["head_size"].sel(head=part.head)
        scores.append(share.item())
    return Ranking(tuple(map(str, case.read_out)), np.array(scores))


@method("norm of what heads write")
def _norms(case: EvaluationCase) -> Ranking:
    data = [probes.norm_weighted_attention(run) for run in _each_series(case)]
    norms = xr.concat(
        [result["norm"].sum("key").mean("query") for result in data], dim="series"
    )
    return of_heads(data[0], norms.mean("series"))


def _each_series(case: EvaluationCase) -> list[Run]:
    """Return the clean run of each series alone."""
    return [case.clean.select(row) for row in range(len(case.clean.batch))]


# --- circuits


def _circuit(case: EvaluationCase, ranking: str, contrast: bool) -> Ranking:
    data = probes.minimal_circuit(
        case.clean,
        case.corrupted if contrast else None,
        nodes=case.components,
        ranking=ranking,
        per_round=8,
    )
    order = data["taken"].values
    in_circuit = data["in_circuit"].values
    # a component that is removed late matters more
    scores = np.where(in_circuit, len(order), order).astype(float)
    return Ranking(_components(data), scores, in_circuit)


for _ranking in ("greedy", "effects"):
    for _contrast, _label in ((False, "zeroed"), (True, "patched")):
        method(f"circuit, {_ranking}, {_label}")(
            partial(_circuit, ranking=_ranking, contrast=_contrast)
        )
method("circuit, edges, patched", applies=differentiable)(
    partial(_circuit, ranking="edges", contrast=True)
)


# --- what heads look at, and what their weights are like


method("sharp heads")(
    by(lambda case: probes.head_entropy(case.clean), "entropy", "sharp", sign=-1)
)


def _motif(case: EvaluationCase) -> int | None:
    """Count the tokens of the rule's period; None without a period.

    A planted mechanism may need so many as motif.
    """
    period = getattr(case.card.rule, "period", None)
    spans = case.clean.spans[case.lens.wiring.stacks[0].name]
    if period is None:
        return None
    return int(period) // (spans.stop[0] - spans.start[0])


@lru_cache(maxsize=1)
def _repeated_tokens(case: EvaluationCase) -> xr.Dataset:
    """Run the test for induction along the given motif.

    So scores do not depend on how well the model copies.
    """
    return probes.induction_scores(
        case.lens,
        motif=_motif(case) or 12,
        repeats=4,
        n_sequences=16,
        offset=1,
        decoding="forced",
        positions="all",
    )


def _repeated_motifs(case: EvaluationCase) -> xr.Dataset:
    motif = _motif(case)
    # a motif of one token has no next token to find
    if motif == 1:
        motif = None
    num_samples = 1 if case.lens.emits == "token" else None
    data = probes.repeated_motif(
        case.lens, n_series=8, motif=motif, num_samples=num_samples
    )
    return data.sel(target="after_last")


@lru_cache(maxsize=1)
def _parroting(case: EvaluationCase) -> xr.Dataset:
    data = probes.head_parroting(case.clean)
    lost = worth_naming(data, "copy_error_change") & (
        data["copy_error_change_size"] > 0
    )
    return data.assign(copy_lost=lost)


def _concentration(case: EvaluationCase) -> xr.Dataset:
    data = probes.kernel_regression(case.clean.select(0))[["missing"]].mean("query")
    return data.assign_attrs(attention="cross_attn")


method("induction: repeated tokens, prefix", applies=reads_tokens)(
    by(_repeated_tokens, "prefix_matching")
)
method("induction: repeated tokens, copy", applies=reads_tokens)(
    by(_repeated_tokens, "copy_score", "induction")
)
method("induction: repeated motifs")(
    by(_repeated_motifs, "advantage", "advantage_significant")
)
method("parroting: attention at the lag")(
    by(_parroting, "mass_size", "mass_significant")
)
method("parroting: copy lost without the head")(
    by(_parroting, "copy_error_change_size", "copy_lost")
)
method("kernel regression: concentration", applies=has_cross)(
    by(_concentration, "missing", sign=-1)
)


def of_every_stack(
    case: EvaluationCase, rank: Callable[[str, str], Ranking]
) -> Ranking:
    """Score all heads, by a function of a stack and a kind of its attention."""
    rankings = [
        rank(stack.name, kind)
        for stack in case.lens.wiring.stacks
        for kind in stack.attention_kinds()
    ]
    names = tuple(name for ranking in rankings for name in ranking.names)
    return Ranking(names, np.concatenate([ranking.scores for ranking in rankings]))


def _stable_rank(case: EvaluationCase, product: str) -> Ranking:
    """Score all heads of all stacks, since weights need no run."""

    def rank(stack: str, kind: str) -> Ranking:
        data = probes.head_spectra(
            case.lens, stack=stack, kind=kind, products=[product]
        )
        return of_heads(data, -data["stable_rank"].sel(product=product))

    return of_every_stack(case, rank)


for _product in ("QK", "OV"):
    method(f"low stable rank, {_product}")(partial(_stable_rank, product=_product))


# --- edges, self-repair and pairs of components


def edge_name(sender: str, receiver: str) -> str:
    """Name the edge of a sender and a receiver."""
    return f"{sender}{ARROW}{receiver}"


def pair_name(one: str, other: str) -> str:
    """Name the pair of two components, in either order."""
    return " + ".join(sorted((one, other)))


def _edges(data: xr.Dataset, name: str) -> Ranking:
    """Score the existing edges by the size of their estimate over series."""
    size = f"{name}_size"
    data = data.stack(edge=("sender", "receiver")).dropna("edge", subset=[size])
    names = tuple(starmap(edge_name, data["edge"].values))
    return Ranking(names, np.abs(data[size].values), worth_naming(data, name).values)


@method("path patching", EDGES)
def _paths(case: EvaluationCase) -> Ranking:
    receivers = [*case.nodes, "output"]
    data = probes.path_patching(
        case.clean, case.corrupted, senders=case.nodes, receivers=receivers
    )
    return _edges(data, "recovered")


@method("edge attribution", EDGES, applies=differentiable)
def _edge_attribution(case: EvaluationCase) -> Ranking:
    data = probes.edge_attribution(case.clean, case.corrupted, nodes=case.components)
    return _edges(data, "score")


@method("self-repair", REPAIRED)
def _self_repair(case: EvaluationCase) -> Ranking:
    data = probes.causal_effects(case.clean, components=case.components)
    repair = data["self_repair_size"].values
    claims = worth_naming(data, "self_repair").values & (repair > 0)
    return Ranking(_components(data), repair, claims)


@method("ablation of pairs", PAIRS)
def _pairs(case: EvaluationCase) -> Ranking:
    """Score pairs by how much more both move the forecast than each alone."""
    run = case.clean
    pairs = list(combinations(case.components, 2))
    variants = [*map(Variant.zero, case.components), *starmap(Variant.zero, pairs)]
    moved = point_forecasts(run, variants) - run.point
    size = np.abs(moved)[..., run.first_step :].mean((1, 2))
    of_each, of_both = np.split(size, [len(case.components)])
    first, second = np.triu_indices(len(of_each), 1)
    return Ranking(pair_names(case), of_both - of_each[first] - of_each[second])


def pair_names(case: EvaluationCase) -> tuple[str, ...]:
    """Name every pair of heads and MLPs."""
    return tuple(starmap(pair_name, combinations(case.nodes, 2)))


# --- tokens of the context as the source of a forecast


def token_name(series: int, token: int) -> str:
    """Name a token of a series; tokens of all series are candidates."""
    return f"{series}:{token}"


def find_tokens(case: EvaluationCase) -> dict[int, range]:
    """Return the tokens that show some of the context, with the steps of each.

    They are those of the stack that reads the context.
    """
    spans = case.clean.spans[case.lens.wiring.stacks[0].name]
    return {
        token: range(int(spans.start[token]), int(spans.stop[token]))
        for token in range(len(spans))
        if not spans.special[token] and spans.stop[token] <= 0
    }


def token_names(case: EvaluationCase) -> tuple[str, ...]:
    """Name every token of every series that shows some of the context."""
    series = range(len(case.clean.batch))
    return tuple(starmap(token_name, product(series, find_tokens(case))))


def true_tokens(case: EvaluationCase) -> set[str]:
    """Name the tokens of which the rule reads any value."""
    rule = case.card.rule
    assert not isinstance(rule, CovariateTimes)
    stretches = list(find_tokens(case).values())
    is_read = [
        _reads(rule.inputs(np.asarray(values), case.card.horizon), stretches, values)
        for values in case.clean.batch.values
    ]
    return set(compress(token_names(case), np.ravel(np.any(is_read, axis=-1))))


def _reads(
    weights: Scores, stretches: Sequence[range | Segment], context: Sized
) -> Labels:
    """Test which stretches have a weight at which steps, (stretch, step).

    Weights (step, time) count from the start of the context, stretches from its end.
    """
    n_past = len(context)
    # the first token may begin before the context
    read = (
        weights[:, max(stretch.start + n_past, 0) : max(stretch.stop + n_past, 0)]
        for stretch in stretches
    )
    return np.stack([values.any(1) for values in read])


# --- segments of the input as the source of a forecast


def cut_forecasts(
    case: EvaluationCase, count: int | None = None
) -> list[tuple[Run, tuple[Segment, ...]]]:
    """Return the run of each forecast, with the segments of its input.

    Covariates are cut like the target.

    Args:
        case: whose forecasts are taken.
        count: of forecasts, the first; all if None.
    """
    runs = map(case.clean.item, range(len(case.targets))[:count])
    return [
        (run, segments(run, parts=STRETCHES, season=1, others="stretches"))
        for run in runs
    ]


def segment_names(number: int, parts: Sequence[Segment], horizon: int) -> list[str]:
    """Name segments at each step of a forecast: its number, the step, the segment."""
    steps = range(horizon)
    return [f"{number}:{step}:{part.name}" for part in parts for step in steps]


def list_segments(case: EvaluationCase) -> tuple[str, ...]:
    """Name every segment of every forecast at each of its steps."""
    return tuple(
        name
        for number, (run, parts) in enumerate(cut_forecasts(case))
        for name in segment_names(number, parts, run.horizon)
    )


def true_segments(case: EvaluationCase) -> tuple[set[str], set[str]]:
    """Name the segments that the rule reads for a forecast step.

    Returns:
        Their names, and those of others that only decide whether a gate is open.
    """
    rule = case.card.rule
    horizon = case.card.horizon
    true: set[str] = set()
    deciding: set[str] = set()
    for number, (run, parts) in enumerate(cut_forecasts(case)):
        values = [np.asarray(value) for value in run.batch.values]
        target = values[0]
        source = 0
        if isinstance(rule, CovariateTimes):
            source = run.batch.roles.index("known")
            weights = rule.inputs(target, values[source], horizon)
        else:
            weights = rule.inputs(target, horizon)
        names = segment_names(number, parts, horizon)
        is_of_source = np.array([part.row == source for part in parts])
        is_read = _reads(weights, parts, target) & is_of_source[:, None]
        true.update(compress(names, is_read.ravel()))
        if isinstance(rule, Gate):
            # the gate compares the last two periods, which a mean over both reads
            mean_of_both = LocalMean(width=2 * rule.period, ago=rule.ago)
            decides = _reads(mean_of_both.inputs(target, horizon), parts, target)
            deciding.update(compress(names, decides.ravel()))
    return true, deciding - true


# --- methods that find tokens


def _token_scores(case: EvaluationCase, scores: Scores) -> Ranking:
    """Select, of scores (series, token), those of tokens that show the context."""
    return Ranking(token_names(case), scores[:, list(find_tokens(case))].ravel())


def _by_series(
    case: EvaluationCase, compute_scores: Callable[[Run], Scores]
) -> Ranking:
    scores = [compute_scores(run) for run in _each_series(case)]
    return _token_scores(case, np.stack(scores))


def _query_tokens(spans: TokenSpans) -> list[int]:
    """List the tokens that a forecast is read from.

    They are those that cover it, otherwise the last one.
    """
    return [token for token in range(len(spans)) if spans.stop[token] > 0] or [
        len(spans) - 1
    ]


def _cross(
    run: Run,
    probe: Callable[[Run], xr.Dataset] = probes.attention_patterns,
    name: str = "pattern",
) -> Scores:
    """Average (key,) over layers, heads and the tokens that a forecast is read from."""
    queries = _query_tokens(run.encoded.spans[run.lens.wiring.output_stack.name])
    values = probe(run)[name]
    by_key = values.mean(("layer", "head")).isel(query=queries).mean("query")
    return np.asarray(by_key.values, dtype=float)


_mean_norm = partial(_cross, probe=probes.norm_weighted_attention, name="norm")


def _rollout(run: Run) -> Scores:
    """Score by Abnar and Zuidema's attention rollout.

    If the context has a stack, the rollout is read through mean cross-attention.
    """
    input_stack = run.lens.wiring.stacks[0].name
    output_stack = run.lens.wiring.output_stack.name
    rollout = probes.attention_rollout(run, stack=input_stack)["flow"].values[-1]
    if input_stack == output_stack:
        return np.asarray(
            rollout[_query_tokens(run.encoded.spans[input_stack])].mean(0)
        )
    return np.asarray(_cross(run) @ rollout)


for _name, _score in (
    ("attention, mean over heads", _cross),
    ("norm-weighted attention", _mean_norm),
    ("attention rollout", _rollout),
):
    method(_name, INPUTS)(partial(_by_series, compute_scores=_score))


def _shift(
    case: EvaluationCase, probe: Callable[..., xr.Dataset], name: str, **options: Any
) -> Ranking:
    """Score tokens by how far their embedding moves the forecast.

    The embedding is put into the other run.
    """
    stack = case.lens.wiring.stacks[0]
    data = probe(
        case.clean,
        case.corrupted,
        at=[f"{stack.prefix}.0.hook_resid_pre"],
        positions="each",
        direction="noise",
        **options,
    )
    shifts = abs(data[name]).isel(component=0).transpose("series", "position")
    every_token = range(len(case.clean.spans[stack.name]))
    return _token_scores(case, shifts.reindex(position=every_token).values)


method("activation patching of tokens", INPUTS)(
    lambda case: _shift(case, probes.activation_patching, "recovered")
)
method("attribution patching of tokens", INPUTS, applies=differentiable)(
    lambda case: _shift(case, probes.attribution_patching, "first_order", exact=False)
)
