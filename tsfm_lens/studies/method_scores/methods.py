"""Methods that score components: every head and MLP that a method can speak of, and claims of some methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens import probes
from tsfm_lens.hooks.component import Component
from tsfm_lens.models.noise import ranges
from tsfm_lens.probes.attention import pick_attention
from tsfm_lens.probes.attribution import decompositions_of
from tsfm_lens.probes.findings import SMALLEST_SHARE
from tsfm_lens.studies.method_scores.marks import Labels, Scores
from tsfm_lens.studies.method_scores.series import Bench

PARTS = "parts"


@dataclass(frozen=True)
class Found:
    """Scores and claims of a method.

    Attributes:
        names: its candidates.
        scores: (candidate,), more means more important; NaN where it says nothing.
        claims: (candidate,) whether it names the candidate; None if it never claims anything.
    """

    names: tuple[str, ...]
    scores: Scores
    claims: Labels | None = None


@dataclass(frozen=True)
class Method:
    """Way to name what a forecast comes from.

    Attributes:
        name: in the table.
        level: of its candidates: "parts", "edges", "inputs", "repaired" or "pairs".
        find: from a bench to scores and claims.
        applies: whether a model allows it.
    """

    name: str
    level: str
    find: Callable[[Bench], Found]
    applies: Callable[[Bench], bool]


METHODS: dict[str, Method] = {}


def method(
    name: str, level: str = PARTS, *, applies: Callable[[Bench], bool] = lambda bench: True
) -> Callable[[Callable[[Bench], Found]], Callable[[Bench], Found]]:
    """Declare a method that is scored on every planted model."""

    def declare(find: Callable[[Bench], Found]) -> Callable[[Bench], Found]:
        METHODS[name] = Method(name, level, find, applies)
        return find

    return declare


def reads_tokens(bench: Bench) -> bool:
    """Return whether the model is an encoder-decoder over value tokens."""
    return bench.lens.tokens is not None and has_cross(bench)


def has_cross(bench: Bench) -> bool:
    """Return whether the stack that is read out has cross-attention."""
    return "cross_attn" in bench.lens.wiring.output_stack.attention_kinds()


def differentiable(bench: Bench) -> bool:
    """Return whether the library's gradients are derivatives."""
    return bool(bench.lens.wiring.true_gradients)


def by_estimate(data: xr.Dataset, name: str) -> Found:
    """Score components by the size of an effect's estimate over series; claim those that stand out."""
    at = {"position": 0} if "position" in data[f"{name}_estimate"].dims else {}
    scores, claims = (data[f"{name}_{part}"].isel(at).values for part in ("estimate", "stands_out"))
    return Found(tuple(map(str, data["component"].values)), np.abs(scores), claims)


def of_heads(data: xr.Dataset, scores: xr.DataArray, claims: xr.DataArray | None = None, **at: str) -> Found:
    """Score heads by values (layer, head) of one kind of attention.

    Args:
        data: dataset with coordinates ``layer`` and ``head``; its attributes name stack and kind unless ``at`` does.
        scores, claims: (layer, head).
        at: ``stack`` and ``attention``.
    """
    where = {**data.attrs, **at}
    stack, kind = str(where.get("stack", "")), str(where["attention"])
    grid = [(int(layer), int(head)) for layer in data["layer"].values for head in data["head"].values]
    names = tuple(str(Component(stack, layer, kind, head)) for layer, head in grid)
    flat = scores.transpose("layer", "head").values.astype(float).reshape(-1)
    return Found(names, flat, None if claims is None else claims.transpose("layer", "head").values.reshape(-1))


# --- what happens when a component is changed ---------------------------------------------------------------


@lru_cache(maxsize=1)
def _ablation(bench: Bench) -> xr.Dataset:
    return probes.ablation_effects(bench.clean, components=bench.components)


@method("zero ablation")
def _zero(bench: Bench) -> Found:
    return by_estimate(_ablation(bench), "mean_shift")


@method("zero ablation, of the range")
def _zero_of_range(bench: Bench) -> Found:
    """Score by the share of the series' range; claim above the share below which we form no ratio elsewhere."""
    data, plain = _ablation(bench), bench.clean.point
    share = data["mean_shift"].transpose("component", "series").values / ranges(bench.clean, plain)
    return Found(tuple(map(str, data["component"].values)), share.mean(-1), share.mean(-1) > SMALLEST_SHARE)


@method("mean ablation")
def _mean(bench: Bench) -> Found:
    how: dict[str, Any] = {"how": "mean", "reference": bench.clean.batch}
    return by_estimate(probes.ablation_effects(bench.clean, components=bench.components, **how), "mean_shift")


@lru_cache(maxsize=1)
def _effects(bench: Bench) -> xr.Dataset:
    """Compute direct and total effects, which several methods read."""
    return probes.causal_effects(bench.clean, components=bench.read_out)


@method("total effect, read-out stack")
def _total(bench: Bench) -> Found:
    return by_estimate(_effects(bench), "total_share")


@method("direct effect, read-out stack")
def _direct(bench: Bench) -> Found:
    return by_estimate(_effects(bench), "direct_share")


def _patching(bench: Bench, direction: str) -> Found:
    how: dict[str, Any] = {"at": bench.components, "positions": "all", "direction": direction}
    return by_estimate(probes.activation_patching(bench.clean, bench.corrupted, **how), "recovered")


@method("activation patching, denoise")
def _denoise(bench: Bench) -> Found:
    return _patching(bench, "denoise")


@method("activation patching, noise")
def _noise(bench: Bench) -> Found:
    return _patching(bench, "noise")


def _attribution_patching(bench: Bench, direction: str) -> Found:
    how: dict[str, Any] = {"at": bench.components, "positions": "all", "direction": direction, "exact": False}
    return by_estimate(probes.attribution_patching(bench.clean, bench.corrupted, **how), "first_order")


@method("attribution patching, denoise", applies=differentiable)
def _first_order(bench: Bench) -> Found:
    return _attribution_patching(bench, "denoise")


@method("attribution patching, noise", applies=differentiable)
def _first_order_noise(bench: Bench) -> Found:
    return _attribution_patching(bench, "noise")


# --- what a component writes --------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _attribution(bench: Bench) -> xr.Dataset:
    return probes.attribute(bench.clean, nodes=16)


def _direct_attribution(bench: Bench, decomposition: str) -> Found:
    result = by_estimate(_attribution(bench).sel(decomposition=decomposition), "attribution_share")
    real = [i for i, name in enumerate(result.names) if name not in ("embed", "bias")]
    assert result.claims is not None
    return Found(tuple(result.names[i] for i in real), result.scores[real], result.claims[real])


def _decomposes(decomposition: str) -> Callable[[Bench], bool]:
    return lambda bench: decomposition in decompositions_of(bench.lens)


for _name in ("logit", "expected_value", "linearised", "integrated", "lens_difference"):
    method(f"direct attribution, {_name.replace('_', ' ')}", applies=_decomposes(_name))(
        partial(_direct_attribution, decomposition=_name)
    )


@method("stream shares")
def _shares(bench: Bench) -> Found:
    """Score heads, and branches without heads, by the mean size of their direct attribution."""
    data = probes.stream_shares(bench.clean)
    heads = (data["head_size"] / data["size"].sum("writer")).mean("series").transpose("writer", "head")
    wholes = (data["size"] / data["size"].sum("writer")).mean("series")
    shares = {}
    for row, writer in enumerate(data["writer"].values):
        for head in data["head"].values:
            shares[f"{writer}.{head}"] = float(heads[row, int(head)])
        shares[str(writer)] = float(wholes[row])
    names = tuple(map(str, bench.read_out))
    return Found(names, np.array([shares[name] for name in names]))


@method("norm of what heads write")
def _norms(bench: Bench) -> Found:
    data = [probes.norm_weighted_attention(bench.clean.select(i)) for i in range(len(bench.clean.batch))]
    norms = xr.concat([each["norm"].sum("key").mean("query") for each in data], dim="series")
    return of_heads(data[0], norms.mean("series"))


# --- circuits -----------------------------------------------------------------------------------------------


def _circuit(bench: Bench, ranking: str, contrast: bool) -> Found:
    other = bench.corrupted if contrast else None
    how: dict[str, Any] = {"nodes": bench.components, "ranking": ranking, "per_round": 8}
    data = probes.minimal_circuit(bench.clean, other, **how)
    order, in_circuit = data["taken"].values, data["in_circuit"].values
    # a component that is removed late matters more
    return Found(
        tuple(map(str, data["component"].values)), np.where(in_circuit, len(order), order).astype(float), in_circuit
    )


for _ranking in ("greedy", "effects"):
    for _contrast, _words in ((False, "zeroed"), (True, "patched")):
        method(f"circuit, {_ranking}, {_words}")(partial(_circuit, ranking=_ranking, contrast=_contrast))
method("circuit, edges, patched", applies=differentiable)(partial(_circuit, ranking="edges", contrast=True))


# --- what heads look at, and what their weights are like --------------------------------------------------------


@method("sharp heads")
def _sharp(bench: Bench) -> Found:
    data = probes.head_entropy(bench.clean)
    return of_heads(data, -data["entropy"], data["sharp"])


@method("induction: repeated tokens, prefix", applies=reads_tokens)
def _prefix(bench: Bench) -> Found:
    data = _repeated_tokens(bench)
    return of_heads(data, data["prefix_matching"], stack=bench.lens.wiring.output_stack.name)


@method("induction: repeated tokens, copy", applies=reads_tokens)
def _copy(bench: Bench) -> Found:
    data = _repeated_tokens(bench)
    return of_heads(data, data["copy_score"], data["induction"], stack=bench.lens.wiring.output_stack.name)


@lru_cache(maxsize=1)
def _repeated_tokens(bench: Bench) -> xr.Dataset:
    """Run the test along the given motif, so that scores do not depend on how well the model copies."""
    options: dict[str, Any] = {"motif": _motif(bench) or 12, "repeats": 4, "n_sequences": 16, "offset": 1}
    return probes.repeated_tokens(bench.lens, **options, decoding="forced", positions="all")


def _motif(bench: Bench) -> int | None:
    """Count the tokens of the rule's period, which a planted mechanism may need as motif; None without a period."""
    period = getattr(bench.card.rule, "period", None)
    spans = bench.clean.spans[bench.lens.wiring.stacks[0].name]
    return None if period is None else int(period) // (spans.stop[0] - spans.start[0])


@method("induction: repeated motifs")
def _motifs(bench: Bench) -> Found:
    motif = _motif(bench)
    # a motif of one token has no next token to find
    options: dict[str, Any] = {"n_series": 8, "motif": motif if motif and motif > 1 else None}
    data = probes.repeated_motif(bench.lens, **options, num_samples=1 if bench.lens.emits == "token" else None)
    one = data.sel(target="after_last")
    return of_heads(data, one["advantage"], one["advantage_stands_out"])


@lru_cache(maxsize=1)
def _parroting(bench: Bench) -> xr.Dataset:
    row, kind, _ = pick_attention(bench.lens, None, None)
    data = probes.head_parroting(bench.clean)
    return data.assign_attrs(stack=row.name, attention=kind)


@method("parroting: attention at the lag")
def _lag(bench: Bench) -> Found:
    data = _parroting(bench)
    return of_heads(data, data["mass_estimate"], data["mass_stands_out"])


@method("parroting: copy lost without the head")
def _parrot(bench: Bench) -> Found:
    data = _parroting(bench)
    above = data["copy_error_change_estimate"]
    return of_heads(data, above, data["copy_error_change_stands_out"] & (above > 0))


@method("kernel regression: concentration", applies=has_cross)
def _kernel(bench: Bench) -> Found:
    data = probes.kernel_regression(bench.clean.select(0))
    return of_heads(
        data, -data["missing"].mean("query"), stack=bench.lens.wiring.output_stack.name, attention="cross_attn"
    )


@method("low stable rank, QK")
def _rank_qk(bench: Bench) -> Found:
    return _stable_rank(bench, "QK")


@method("low stable rank, OV")
def _rank_ov(bench: Bench) -> Found:
    return _stable_rank(bench, "OV")


def _stable_rank(bench: Bench, product: str) -> Found:
    """Score all heads of all stacks, since weights need no run."""
    every: list[Found] = []
    for stack in bench.lens.wiring.stacks:
        for kind in stack.attention_kinds():
            data = probes.head_spectra(bench.lens, stack=stack.name, kind=kind, products=[product])
            every.append(of_heads(data, -data["stable_rank"].sel(product=product)))
    return joined(every)


def joined(parts: Sequence[Found]) -> Found:
    """Join several results of one method that claims nothing."""
    names = tuple(name for part in parts for name in part.names)
    return Found(names, np.concatenate([part.scores for part in parts]))
