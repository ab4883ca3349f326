"""Methods that are scored on planted models.

They score components, edges, tokens, repairs and pairs, and some claim members of them.
:func:`method` declares one, and :data:`METHODS` holds all by name. What their scores
are worth is measured in :mod:`tsfm_lens.studies.method_scores.scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens import probes
from tsfm_lens.ablation import Variant, point_forecasts
from tsfm_lens.core.estimates import SMALLEST_SHARE
from tsfm_lens.explain.segments import Segment, segments
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.component import Component
from tsfm_lens.models.noise import ranges
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import pick_attention
from tsfm_lens.probes.attribution import list_decompositions
from tsfm_lens.studies.method_scores.marks import Labels, Scores
from tsfm_lens.studies.method_scores.series import EvaluationCase
from tsfm_lens.zoo.planted.card import Card
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


METHODS: dict[str, Method] = {}


def method(name: str, level: str = PARTS, **options: Any) -> Callable[[Rank], Rank]:
    """Declare a method that is scored on every planted model.

    ``options`` are other fields of :class:`Method`.
    """

    def declare(rank: Rank) -> Rank:
        METHODS[name] = Method(name, level, rank, **options)
        return rank

    return declare


def add_method(
    known: dict[str, list[Method]], name: str, level: str, rank: Rank
) -> None:
    """Add a method to those of its name, one for each level."""
    known.setdefault(name, []).append(Method(name, level, rank))


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
    at = {"position": 0} if "position" in data[f"{name}_size"].dims else {}
    scores, statements = (
        variable.isel(at).values
        for variable in (data[f"{name}_size"], worth_naming(data, name))
    )
    return Ranking(
        tuple(map(str, data["component"].values)), np.abs(scores), statements
    )


def worth_naming(data: xr.Dataset, name: str) -> xr.DataArray:
    """Mark the members that act, and by the smallest size of interest or more."""
    smallest = float(data[f"{name}_p"].attrs["smallest"])
    return (data[f"{name}_acts"] > 0) & (np.abs(data[f"{name}_size"]) >= smallest)


def of_heads(
    data: xr.Dataset,
    scores: xr.DataArray,
    claims: xr.DataArray | None = None,
    **at: str,
) -> Ranking:
    """Score heads by values (layer, head).

    The stack and the attention are named by ``at``, or by the dataset.
    """
    attributes = {**data.attrs, **at}
    stack = str(attributes.get("stack", ""))
    kind = str(attributes["attention"])
    grid = [
        (int(layer), int(head))
        for layer in data["layer"].values
        for head in data["head"].values
    ]
    names = tuple(str(Component(stack, layer, kind, head)) for layer, head in grid)
    flat = scores.transpose("layer", "head").values.astype(float).reshape(-1)
    return Ranking(
        names,
        flat,
        (
            None
            if claims is None
            else claims.transpose("layer", "head").values.reshape(-1)
        ),
    )


def by(
    probe: Callable[[EvaluationCase], xr.Dataset],
    scores: str,
    claims: str = "",
    **at: str,
) -> Callable[[EvaluationCase], Ranking]:
    """Return a method that scores heads by a variable of a result.

    After a minus, less is more. Another variable may hold its claims.
    """

    def rank(case: EvaluationCase) -> Ranking:
        data = probe(case)
        values = data[scores.removeprefix("-")]
        return of_heads(
            data,
            -values if scores.startswith("-") else values,
            data[claims] if claims else None,
            **at,
        )

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
    return Ranking(
        tuple(map(str, data["component"].values)),
        share.mean(-1),
        share.mean(-1) > SMALLEST_SHARE,
    )


@method("mean ablation")
def _mean(case: EvaluationCase) -> Ranking:
    options: dict[str, Any] = {"how": "mean", "reference": case.clean.batch}
    return by_size(
        probes.ablation_effects(case.clean, components=case.components, **options),
        "mean_shift",
    )


method("total effect, read-out stack")(
    lambda case: by_size(_effects(case), "total_share")
)
method("direct effect, read-out stack")(
    lambda case: by_size(_effects(case), "direct_share")
)


def _patch_components(
    case: EvaluationCase, direction: str, *, gradients: bool
) -> Ranking:
    options: dict[str, Any] = {
        "at": case.components,
        "positions": "all",
        "direction": direction,
    }
    if gradients:
        data = probes.attribution_patching(
            case.clean, case.corrupted, **options, exact=False
        )
        return by_size(data, "first_order")
    return by_size(
        probes.activation_patching(case.clean, case.corrupted, **options), "recovered"
    )


for _way in ("denoise", "noise"):
    method(f"activation patching, {_way}")(
        partial(_patch_components, direction=_way, gradients=False)
    )
for _way in ("denoise", "noise"):
    method(f"attribution patching, {_way}", applies=differentiable)(
        partial(_patch_components, direction=_way, gradients=True)
    )


# --- what a component writes


@lru_cache(maxsize=1)
def _attribution(case: EvaluationCase) -> xr.Dataset:
    return probes.attribution(case.clean, decompositions="all", tolerance=0.01)


def _direct_attribution(case: EvaluationCase, decomposition: str) -> Ranking:
    result = by_size(_attribution(case).sel(decomposition=decomposition), "size_share")
    components = [
        index
        for index, name in enumerate(result.names)
        if name not in ("embed", "bias")
    ]
    assert result.claims is not None
    return Ranking(
        tuple(result.names[index] for index in components),
        result.scores[components],
        result.claims[components],
    )


def _decomposes(decomposition: str) -> Callable[[EvaluationCase], bool]:
    return lambda case: decomposition in list_decompositions(case.lens)


for _name in ("logit", "expected_value", "linearised", "integrated", "lens_difference"):
    method(
        f"direct attribution, {_name.replace('_', ' ')}", applies=_decomposes(_name)
    )(partial(_direct_attribution, decomposition=_name))


@method("stream shares")
def _shares(case: EvaluationCase) -> Ranking:
    """Score heads, and branches without heads, by their direct attribution.

    The score is its mean size.
    """
    data = probes.stream_shares(case.clean)
    heads = (
        (data["head_size"] / data["size"].sum("writer"))
        .mean("series")
        .transpose("writer", "head")
    )
    branches = (data["size"] / data["size"].sum("writer")).mean("series")
    shares = {}
    for row, writer in enumerate(data["writer"].values):
        for head in data["head"].values:
            shares[f"{writer}.{head}"] = float(heads[row, int(head)])
        shares[str(writer)] = float(branches[row])
    names = tuple(map(str, case.read_out))
    return Ranking(names, np.array([shares[name] for name in names]))


@method("norm of what heads write")
def _norms(case: EvaluationCase) -> Ranking:
    data = [
        probes.norm_weighted_attention(case.clean.select(row))
        for row in range(len(case.clean.batch))
    ]
    norms = xr.concat(
        [result["norm"].sum("key").mean("query") for result in data], dim="series"
    )
    return of_heads(data[0], norms.mean("series"))


# --- circuits


def _circuit(case: EvaluationCase, ranking: str, contrast: bool) -> Ranking:
    other = None
    if contrast:
        other = case.corrupted
    options: dict[str, Any] = {
        "nodes": case.components,
        "ranking": ranking,
        "per_round": 8,
    }
    data = probes.minimal_circuit(case.clean, other, **options)
    order = data["taken"].values
    in_circuit = data["in_circuit"].values
    # a component that is removed late matters more
    scores = np.where(in_circuit, len(order), order).astype(float)
    return Ranking(tuple(map(str, data["component"].values)), scores, in_circuit)


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
    by(lambda case: probes.head_entropy(case.clean), "-entropy", "sharp")
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
    options: dict[str, Any] = {
        "motif": _motif(case) or 12,
        "repeats": 4,
        "n_sequences": 16,
        "offset": 1,
    }
    data = probes.induction_scores(
        case.lens, **options, decoding="forced", positions="all"
    )
    return data.assign_attrs(stack=case.lens.wiring.output_stack.name)


def _repeated_motifs(case: EvaluationCase) -> xr.Dataset:
    motif = _motif(case)
    # a motif of one token has no next token to find
    options: dict[str, Any] = {
        "n_series": 8,
        "motif": motif if motif and motif > 1 else None,
    }
    data = probes.repeated_motif(
        case.lens, **options, num_samples=1 if case.lens.emits == "token" else None
    )
    return data.sel(target="after_last")


@lru_cache(maxsize=1)
def _parroting(case: EvaluationCase) -> xr.Dataset:
    row, kind, _ = pick_attention(case.lens, None, None)
    data = probes.head_parroting(case.clean).assign_attrs(
        stack=row.name, attention=kind
    )
    lost = worth_naming(data, "copy_error_change") & (
        data["copy_error_change_size"] > 0
    )
    return data.assign(copy_lost=lost)


def _concentration(case: EvaluationCase) -> xr.Dataset:
    data = probes.kernel_regression(case.clean.select(0))[["missing"]].mean("query")
    return data.assign_attrs(stack=case.lens.wiring.output_stack.name)


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
    by(_concentration, "-missing", attention="cross_attn")
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
    size, statements = (
        variable.transpose("sender", "receiver").values
        for variable in (data[f"{name}_size"], worth_naming(data, name))
    )
    rows, columns = np.nonzero(np.isfinite(size))
    senders, receivers = (
        list(map(str, data[dim].values)) for dim in ("sender", "receiver")
    )
    names = tuple(
        edge_name(senders[row], receivers[column])
        for row, column in zip(rows, columns, strict=True)
    )
    return Ranking(names, np.abs(size[rows, columns]), statements[rows, columns])


@method("path patching", EDGES)
def _paths(case: EvaluationCase) -> Ranking:
    names = [*map(str, case.components)]
    data = probes.path_patching(
        case.clean, case.corrupted, senders=names, receivers=[*names, "output"]
    )
    return _edges(data, "recovered")


@method("edge attribution", EDGES, applies=differentiable)
def _edge_attribution(case: EvaluationCase) -> Ranking:
    return _edges(
        probes.edge_attribution(case.clean, case.corrupted, nodes=case.components),
        "score",
    )


@method("self-repair", REPAIRED)
def _self_repair(case: EvaluationCase) -> Ranking:
    data = probes.causal_effects(case.clean, components=case.components)
    repair = data["self_repair_size"].values
    statements = worth_naming(data, "self_repair").values & (repair > 0)
    return Ranking(tuple(map(str, data["component"].values)), repair, statements)


@method("ablation of pairs", PAIRS)
def _pairs(case: EvaluationCase) -> Ranking:
    """Score pairs by how much more both move the forecast than each alone."""
    components = case.components
    pairs = list(combinations(range(len(components)), 2))
    sets = [(component,) for component in components] + [
        (components[a], components[b]) for a, b in pairs
    ]
    forecast_steps = slice(case.clean.first_step, None)
    shift = (
        point_forecasts(
            case.clean, [Variant.zero(*components_zeroed) for components_zeroed in sets]
        )
        - case.clean.point
    )
    shift = np.abs(shift)[..., forecast_steps].mean(-1)
    alone = shift[: len(components)]
    together = shift[len(components) :]
    interactions = [
        both - alone[a] - alone[b] for both, (a, b) in zip(together, pairs, strict=True)
    ]
    names = tuple(pair_name(str(components[a]), str(components[b])) for a, b in pairs)
    return Ranking(names, np.array(interactions).mean(-1))


# --- tokens of the context as the source of a forecast


def token_name(series: int, token: int) -> str:
    """Name a token of a series; tokens of all series are candidates."""
    return f"{series}:{token}"


def find_tokens(case: EvaluationCase) -> tuple[TokenSpans, list[int]]:
    """Return the spans of the stack that reads the context, and its context tokens.

    Those are the tokens that show some of the context.
    """
    spans = case.clean.spans[case.lens.wiring.stacks[0].name]
    return spans, [
        token
        for token in range(len(spans))
        if not spans.special[token] and spans.stop[token] <= 0
    ]


def true_tokens(case: EvaluationCase) -> dict[str, bool]:
    """Label by token name whether the rule reads any value that the token shows."""
    rule = case.card.rule
    assert not isinstance(rule, CovariateTimes)
    spans, tokens = find_tokens(case)
    labels = {}
    for row, values in enumerate(case.clean.batch.values):
        mask = np.abs(rule.inputs(np.asarray(values), case.card.horizon)).sum(0) > 0
        for token in tokens:
            start, stop = (
                max(edge + len(values), 0)
                for edge in (spans.start[token], spans.stop[token])
            )
            labels[token_name(row, token)] = bool(mask[start:stop].any())
    return labels


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
    cut = []
    for number in range(len(case.targets))[:count]:
        run = case.clean.item(number)
        parts = segments(run, parts=STRETCHES, season=1, others="stretches")
        cut.append((run, parts))
    return cut


def segment_names(number: int, parts: Sequence[Segment], horizon: int) -> list[str]:
    """Name segments at each step of a forecast: its number, the step, the segment."""
    steps = range(horizon)
    return [f"{number}:{step}:{part.name}" for part in parts for step in steps]


def true_segments(case: EvaluationCase) -> dict[str, float]:
    """Label, by name, whether the rule reads a segment for a forecast step.

    NaN is the label of those that only decide whether a gate is open.
    """
    labels: dict[str, float] = {}
    for number, (run, parts) in enumerate(cut_forecasts(case)):
        names = segment_names(number, parts, run.horizon)
        labels |= zip(
            names, _label_segments(case.card, run, parts).ravel(), strict=True
        )
    return labels


def _label_segments(card: Card, run: Run, parts: Sequence[Segment]) -> Scores:
    """Label segments of one forecast, (segment, step); see :func:`true_segments`."""
    rule = card.rule
    values = [np.asarray(value) for value in run.batch.values]
    target = values[0]
    if isinstance(rule, CovariateTimes):
        source = run.batch.roles.index("known")
        weights = rule.inputs(target, values[source], card.horizon)
    else:
        source = 0
        weights = rule.inputs(target, card.horizon)
    # segments count from the forecast start, weights from the start of the context
    n_past = len(target)
    stretches = [slice(part.start + n_past, part.stop + n_past) for part in parts]

    def has_weight(step_weights: Scores) -> Labels:
        """Test which stretches have a weight (step, time) other than 0."""
        return np.stack(
            [np.abs(step_weights[:, stretch]).any(1) for stretch in stretches]
        )

    is_of_source = np.array([part.row == source for part in parts])[:, None]
    labels = (has_weight(weights) & is_of_source).astype(float)
    if isinstance(rule, Gate):
        # the gate compares the last two periods, which a mean over both reads
        mean_of_both = LocalMean(width=2 * rule.period, ago=rule.ago)
        decides = has_weight(mean_of_both.inputs(target, card.horizon))
        labels[decides & (labels == 0)] = np.nan
    return labels


# --- methods that find tokens


def _token_scores(case: EvaluationCase, scores: Scores) -> Ranking:
    """Select, of scores (series, token), those of tokens that show the context."""
    _, tokens = find_tokens(case)
    names = tuple(
        token_name(row, token) for row in range(len(scores)) for token in tokens
    )
    return Ranking(names, scores[:, tokens].reshape(-1))


def _by_series(
    case: EvaluationCase, compute_scores: Callable[[Run], Scores]
) -> Ranking:
    return _token_scores(
        case,
        np.stack(
            [
                compute_scores(case.clean.select(row))
                for row in range(len(case.clean.batch))
            ]
        ),
    )


def _query_tokens(spans: TokenSpans) -> list[int]:
    """List the tokens that a forecast is read from.

    They are those that cover it, otherwise the last one.
    """
    return [token for token in range(len(spans)) if spans.stop[token] > 0] or [
        len(spans) - 1
    ]


def _cross(run: Run, values: xr.DataArray) -> Scores:
    """Average (key,) over layers, heads and the tokens that a forecast is read from."""
    queries = _query_tokens(run.encoded.spans[run.lens.wiring.output_stack.name])
    return np.asarray(
        values.mean(("layer", "head")).isel(query=queries).mean("query").values,
        dtype=float,
    )


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
    return np.asarray(_cross(run, probes.attention_patterns(run)["pattern"]) @ rollout)


method("attention, mean over heads", INPUTS)(
    lambda case: _by_series(
        case, lambda run: _cross(run, probes.attention_patterns(run)["pattern"])
    )
)
method("norm-weighted attention", INPUTS)(
    lambda case: _by_series(
        case, lambda run: _cross(run, probes.norm_weighted_attention(run)["norm"])
    )
)
method("attention rollout", INPUTS)(lambda case: _by_series(case, _rollout))


def _shift(
    case: EvaluationCase, probe: Callable[..., xr.Dataset], name: str, **options: Any
) -> Ranking:
    """Score tokens by how far their embedding moves the forecast.

    The embedding is put into the other run.
    """
    stack = case.lens.wiring.stacks[0]
    site: dict[str, Any] = {
        "at": [f"{stack.prefix}.0.hook_resid_pre"],
        "positions": "each",
        "direction": "noise",
    }
    data = probe(case.clean, case.corrupted, **site, **options)
    scores = np.full((len(case.clean.batch), len(case.clean.spans[stack.name])), np.nan)
    scores[:, data["position"].values] = np.abs(
        data[name].isel(component=0).transpose("series", "position").values
    )
    return _token_scores(case, scores)


method("activation patching of tokens", INPUTS)(
    lambda case: _shift(case, probes.activation_patching, "recovered")
)
method("attribution patching of tokens", INPUTS, applies=differentiable)(
    lambda case: _shift(case, probes.attribution_patching, "first_order", exact=False)
)
