"""Induction heads of token models: the test with repeated random tokens.

:func:`induction_scores` tests which heads find and copy the continuation of a motif;
:func:`induction_overlap` compares them with the sharp heads of ``head_entropy``. Both
need value tokens and cross-attention; ``repeated_motif`` asks the same of every model.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import ratio, ratio_units
from tsfm_lens.hooks.recorder import by_row
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import relative_rounding
from tsfm_lens.probes.attention import SHARP_BELOW, normalise, row_entropy
from tsfm_lens.probes.given import check_option, of_kind

__all__ = ["induction_overlap", "induction_scores"]


# the paper's thresholds (S3-PREF); of a published Chronos, values within 1.0124 are the
# token ids that the paper draws, 1911 to 2187
PREFIX_FROM = 0.3
COPY_FROM = 2.0
WITHIN = 1.0124


class _Targets(NamedTuple):
    """Last instance of each decoder token, and the token after it.

    ``valid`` marks the tokens that have such an instance.
    """

    keys: Tensor
    right: Tensor
    valid: Tensor


@probe(
    "lens",
    title="Induction heads",
    theme="Behaviour",
    summary="repeated random tokens: prefix matching, copy score, induction heads",
    description=(
        "A motif of random tokens is repeated. An induction head attends to the "
        "token that followed earlier instances, and raises its probability."
    ),
    source="tsfm-lens paper, appendix G (S3-RRT, S3-PREF, S3-COPY)",
    paper=(
        "S3-PREF",
        "S3-RRT",
    ),
    needs="sequences",
    computes="induction_scores, on series of its own",
    example={"n_sequences": 3, "motif": 5},
)
def induction_scores(
    lens: Lens,
    *,
    motif: int = 32,
    repeats: int = 4,
    n_sequences: int = 64,
    offset: int = 1,
    positions: str = "last",
    within: float = WITHIN,
    decoding: str = "rollout",
    prefix_from: float = PREFIX_FROM,
    copy_from: float = COPY_FROM,
    seed: int = 0,
) -> xr.Dataset:
    """Score the cross-attention heads that copy the continuation of a random motif.

    Each head is scored by its attention to the continuation, and by what it writes. The
    encoder sees motif × repeats and the end token; the decoder begins with the motif's
    first token.

    Args:
        lens: a token model.
        motif: tokens in a motif.
        repeats: number of times that it is shown.
        n_sequences: random sequences.
        offset: the key of the prefix-matching score. 1 is the token after the most
            recent instance (Olsson et al., and the paper's Table 5); 0 is that instance
            itself (the paper's text).
        positions: which positions with a right token both scores use: "last" as in the
            paper, "first" as in its released code, or the mean over "all". Entropies
            are always means over all.
        within: tokens are drawn from values within this many scales of 0.
        decoding: "rollout" continues with the decoder's own most probable token, as in
            the paper, and leaves out positions whose token is not in the context.
            "forced" teacher-forces the motif.
        prefix_from: prefix-matching score from which a head is an induction head.
        copy_from: copy score from which it is one.
        seed: of the motifs.

    Returns:
        Dataset of kind "induction_scores":

        - ``prefix_matching`` (layer, head): mean attention to the key.
        - ``copy_score`` (layer, head): the head's own logit of the right token, in
          standard deviations over the vocabulary; 0 for a head that writes nothing.
        - ``entropy`` (layer, head): of its attention rows, in nats.
        - ``induction`` (layer, head): whether both scores reach their thresholds.
        - ``copy_accuracy``: share of positions at which the model's most probable token
          is the right one.
        - ``matched``: share of positions that have a right token.

        Both scores come with what :func:`.estimates.add_estimates` adds over sequences,
        against an even spread and the copy score of the average token.

    Source:
        tsfm-lens paper, appendix G (S3-RRT, S3-PREF, S3-COPY); Olsson et al. 2022.

    Raises:
        InputError: not a token model with cross-attention, a sequence longer than its
            context length, an option other than above, or a rollout without any token
            of its context.

    Example:
        >>> scores = probes.induction_scores(lens, motif=8, n_sequences=8)
        >>> scores["prefix_matching"].dims
        ('layer', 'head')
    """
    tokens = _check_options(lens, motif, repeats, offset, decoding, positions)
    stack = lens.wiring.output_stack
    ids, motifs = _sequences(lens, motif, repeats, n_sequences, within, seed)
    start = torch.full((n_sequences, 1), tokens.model.config.decoder_start_token_id)
    if decoding == "forced":
        decoder = torch.cat([start, motifs[:, :-1]], dim=1)
        # the same index in the last repeat: the decoder goes along the motif
        keys = ((repeats - 1) * motif + torch.arange(motif - 1)).expand(n_sequences, -1)
        targets = _Targets(
            keys, motifs[:, 1:], torch.ones(n_sequences, motif - 1, dtype=torch.bool)
        )
    else:
        decoder = _continue_prompts(
            lens, ids, torch.cat([start, motifs[:, :1]], dim=1), motif
        )
        targets = _match_targets(ids[:, : motif * repeats], decoder[:, 1:])
    encoded = tokens.encode_tokens(ids, decoder)
    prefixes = [f"{stack.prefix}.{layer}.cross_attn" for layer in range(stack.n_layers)]
    names = ("hook_pattern", "hook_result")
    points = [f"{prefix}.{name}" for prefix in prefixes for name in names]
    with torch.no_grad():
        targets = _Targets(*(part.to(lens.device) for part in targets))
        valid = targets.valid
        # the valid positions of a sequence are numbered from 1 on, so the last has
        # their number
        rank = valid.cumsum(dim=1)
        chosen_rank = {"all": rank, "first": 1, "last": rank[:, -1:]}[positions]
        selection = targets._replace(valid=valid & (rank == chosen_rank))
        pool = frequent_tokens(lens, within).to(lens.device)
        score = by_row(
            partial(
                _copy_scores,
                lens,
                targets=selection,
                unembedding=_unembedding(lens),
                pool=pool,
            )
        )
        # the heads' writes are scored while the model runs, and never stored
        logits, activations = lens.run_with_cache(
            encoded, names_filter=points, reduce={"**.hook_result": score}
        )
        patterns, scores = (
            [activations[f"{prefix}.{name}"] for prefix in prefixes] for name in names
        )
        weights = [_prefix_weights(pattern, selection, offset) for pattern in patterns]
        right_scores = [score[..., 0] for score in scores]
        pool_scores = [score[..., 1] for score in scores]
        prefix_matching, copy, average = (
            np.stack([_by_sequence(of_layer, selection.valid) for of_layer in layers])
            for layers in (weights, right_scores, pool_scores)
        )
        entropy = [
            row_entropy(pattern.cpu().double().numpy()).mean(axis=(0, 2))
            for pattern in patterns
        ]
        accuracy = float(
            # position 0 reads the start token, which the context does not hold
            (logits[:, 1:].argmax(-1) == targets.right)[valid].float().mean()
        )
    data = xr.Dataset(
        {
            "prefix_matching": (("layer", "head"), prefix_matching.mean(-1)),
            "copy_score": (("layer", "head"), copy.mean(-1)),
            "entropy": (("layer", "head"), np.stack(entropy), {"units": "nats"}),
            "copy_accuracy": accuracy,
            "matched": float(valid.float().mean()),
        },
        coords={
            "layer": range(stack.n_layers),
            "head": range(stack.n_heads),
        },
    )
    data["induction"] = (data["prefix_matching"] >= prefix_from) & (
        data["copy_score"] >= copy_from
    )
    data.attrs = {
        "attention": "cross_attn",
        "motif": motif,
        "repeats": repeats,
        "n_sequences": n_sequences,
        "seed": seed,
        "offset": offset,
        "positions": positions,
        "decoding": decoding,
        "prefix_from": prefix_from,
        "copy_from": copy_from,
    }
    rounding = relative_rounding(lens)
    axes = ("layer", "head", "sequence")
    # a head that raises the average token as much does not copy
    copy_floor = xr.DataArray(
        np.fmax(average, 0.0) + rounding * (1 + np.abs(average)), dims=axes
    )
    even_spread = (1 + rounding) / patterns[0].shape[-1]
    for name, values, floor in (
        ("prefix_matching", prefix_matching, even_spread),
        ("copy_score", copy, copy_floor),
    ):
        data[f"{name}_by_sequence"] = (axes, values)
        data = add_estimates(
            data,
            name,
            floor=floor,
            values=xr.DataArray(values, dims=axes),
            over="sequence",
        )
    return data


def _check_options(
    lens: Lens, motif: int, repeats: int, offset: int, decoding: str, positions: str
) -> Any:
    """Check the options of :func:`induction_scores`; return the model's tokens."""
    tokens = lens.tokens
    kinds = lens.wiring.output_stack.attention_kinds()
    if tokens is None or "cross_attn" not in kinds:
        raise InputError(
            f"{lens.model_id} is not an encoder-decoder model over value tokens; the"
            " repeated-tokens test needs one. repeated_motif asks the same of every"
            " model, in values"
        )
    if motif < 3 or repeats < 2 or motif * repeats > lens.context_length:
        raise InputError(
            f"motif {motif} × repeats {repeats} does not fit: expected a motif of 3 or"
            f" more, 2 or more repeats, and at most {lens.context_length} tokens in all"
        )
    if offset not in (0, 1):
        raise InputError(
            f"offset is {offset!r}, expected 0 (the instance) or 1 (the token after it)"
        )
    check_option("decoding", decoding, ("forced", "rollout"))
    check_option("positions", positions, ("last", "first", "all"))
    return tokens


def frequent_tokens(lens: Lens, within: float = WITHIN) -> Tensor:
    """Return the ids that motifs are drawn from.

    They are the bins within ``within`` times the scale around zero.
    """
    centers = lens.native.tokenizer.centers
    return torch.nonzero(centers.abs() <= within).reshape(-1) + lens.first_value_token


def _sequences(
    lens: Lens, motif: int, repeats: int, count: int, within: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Return encoder ids, the end token included, and the motifs."""
    settings = lens.tokens.settings
    pool = frequent_tokens(lens, within)
    generator = torch.Generator().manual_seed(seed)
    motifs = pool[torch.randint(len(pool), (count, motif), generator=generator)]
    end = torch.full((count, int(settings.use_eos_token)), settings.eos_token_id)
    return torch.cat([motifs.repeat(1, repeats), end], dim=1), motifs


def _continue_prompts(lens: Lens, ids: Tensor, prompt: Tensor, motif: int) -> Tensor:
    """Return prompts continued to (sequence, motif) by their most probable tokens.

    The search is the library's own greedy one.
    """
    with torch.no_grad():
        options: dict[str, Any] = {
            "max_new_tokens": motif - prompt.shape[1],
            "do_sample": False,
            "attention_mask": torch.ones_like(ids).to(lens.device),
        }
        inputs = {
            "input_ids": ids.to(lens.device),
            "decoder_input_ids": prompt.to(lens.device),
        }
        tokens = lens.tokens.model.generate(**inputs, **options).cpu()
    # sequences that all ended early are shorter; what follows their end is padding
    # anyway
    short = motif - tokens.shape[1]
    return torch.nn.functional.pad(
        tokens, (0, short), value=int(lens.tokens.settings.pad_token_id)
    )


def _match_targets(context: Tensor, tokens: Tensor) -> _Targets:
    """Return the last instance of each token that the context continues.

    Another token of the context must come after it.
    """
    # the last token of the context is followed by nothing that could be copied
    same = tokens[:, :, None] == context[:, None, :-1]
    positions = torch.arange(context.shape[1] - 1)
    # (sequence, position): the largest index is that of the last instance
    keys = torch.where(same, positions, -1).amax(-1)
    valid = keys >= 0
    if not bool(valid.any()):
        raise InputError(
            "the rollout gives no token of its context, so there is no match; use"
            " decoding='forced'"
        )
    # gather needs an index everywhere; ``valid`` leaves these positions out
    keys = keys.clamp(min=0)
    return _Targets(keys, context.gather(1, keys + 1), valid)


def _prefix_weights(pattern: Tensor, targets: _Targets, offset: int) -> Tensor:
    """Return the attention to the targets, (sequence, position, head).

    The pattern is (sequence, head, query, key).
    """
    # an instance is never the last token of the context, so the key after it exists
    keys = (targets.keys + offset)[:, None, :, None].expand(-1, pattern.shape[1], -1, 1)
    # without the query of the start token, as in the targets
    return pattern[:, :, 1:].gather(-1, keys)[..., 0].transpose(1, 2)


def _by_sequence(scores: Tensor, valid: Tensor) -> np.ndarray:
    """Return mean scores over the valid positions of a sequence, (head, sequence).

    The scores are (sequence, position, head).
    """
    totals = (scores * valid[..., None]).sum(1).T
    return ratio_units(
        totals.cpu().double().numpy(), valid.sum(1).cpu().double().numpy()
    )


def _copy_scores(
    lens: Lens,
    results: Tensor,
    targets: _Targets,
    unembedding: tuple[Tensor, Tensor],
    pool: Tensor,
) -> Tensor:
    """Return how far each head's write raises the right token, as a z-score.

    The result (batch, pos, head, 2) has the right token, and the average token of a
    pool.
    """
    centred, root = unembedding
    # a batch may run in parts, of which each has its own rows of the targets
    right, valid = (
        lens.registry.state.own(part) for part in (targets.right, targets.valid)
    )
    # a z-score does not change with the scale of the logits, so factors on the way to
    # them are left out
    states = lens.final_norm(results[:, 1:])
    above = torch.stack(
        [
            torch.einsum("bphd,bpd->bph", states, centred[right]),
            states @ centred[pool].mean(0),
        ],
        dim=-1,
    )
    # (batch, pos, head, 1)
    spread = (states @ root.T).norm(dim=-1)[..., None]
    # torch.where evaluates both branches; 0/0 is NaN even where it is not chosen
    score = torch.where(
        spread > 0, above / spread.clamp(min=torch.finfo(spread.dtype).tiny), 0.0
    )
    return torch.where(valid[..., None, None], score, 0.0)


def _unembedding(lens: Lens) -> tuple[Tensor, Tensor]:
    """Return the centred unembedding (vocabulary, d_model) and its triangular root.

    Its mean row is subtracted.
    """
    weight = lens.model.get_submodule(lens.wiring.unembed.module).weight.detach()
    centred = weight - weight.mean(0)
    # the deviation of the logits over the vocabulary is the length of this root times
    # the state
    root = torch.linalg.qr(centred.double(), mode="r").R / (len(weight) - 1) ** 0.5
    return centred, root.to(weight.dtype)


SCORES = ("prefix_matching", "copy_score", "normalised")
GRIDS = {
    # rounded, since np.arange adds up rounding errors and heads at a threshold count
    "copy_threshold": np.round(np.arange(0.0, 4.01, 0.25), 2),
    "entropy_threshold": np.round(np.arange(0.05, 1.01, 0.05), 2),
    "prefix_threshold": np.round(np.arange(0.0, 1.01, 0.05), 2),
}
"""Thresholds of the sweeps."""
_SHARED_ATTRIBUTES = (
    "model revision architecture versions motif repeats n_sequences offset decoding"
).split()


@probe(
    ("induction_scores", "head_entropy"),
    title="Induction heads and sharp heads",
    theme="Behaviour",
    summary="overlap of induction and sharp heads, over thresholds",
    description=(
        "Whether the heads that copy a motif are the sharp ones, and how much that "
        "depends on the thresholds."
    ),
    source="tsfm-lens paper, appendix G (S3-OVER, S3-F23)",
    paper=(
        "S3-T5",
        "S3-F23",
    ),
    needs="sequences",
)
def induction_overlap(
    induction: xr.Dataset,
    entropy: xr.Dataset | None = None,
    *,
    prefix_from: float = PREFIX_FROM,
    copy_from: float = COPY_FROM,
    sharp_below: float = SHARP_BELOW,
) -> xr.Dataset:
    """Count the heads that are induction heads, sharp heads, both or neither.

    Both scores of an induction head reach their thresholds; a sharp head's min-max
    scaled entropy is below its own. The shares are also computed at every threshold of
    a grid.

    Args:
        induction: result of kind "induction_scores".
        entropy: result of kind "head_entropy", of the same heads (the paper's figure
            5); None means the entropies along the repeated tokens in ``induction`` (the
            paper's text).
        prefix_from: prefix-matching score of the table.
        copy_from: copy score of the table.
        sharp_below: normalised entropy of the table, below which a head is sharp.

    Returns:
        Dataset of kind "induction_overlap". A share of no heads is NaN. Over (layer,
        head):

        - ``prefix_matching``, ``copy_score``: with their statistics.
        - ``normalised``: entropy, min-max scaled.
        - ``induction``, ``sharp``: whether the head is one.

        The table:

        - ``count``, ``proportion`` (induction_state, sharp_state).
        - ``proportion_induction`` (induction_state), ``proportion_sharp``
          (sharp_state): totals.
        - ``p_sharp_given_induction``, ``p_induction_given_sharp``: shares of heads.

        The sweeps over thresholds:

        - ``sweep_sharp_given_induction``, ``sweep_induction_given_sharp``
          (copy_threshold, entropy_threshold): shares of heads.
        - ``sweep_induction_count``, ``sweep_sharp_count``: their denominators.
        - ``sweep_proportion_induction`` (copy_threshold, prefix_threshold).
        - ``correlation`` (score, other_score): Pearson's, over heads.

    Source:
        tsfm-lens paper, appendix G, table 5 and figure 23 (S3-OVER, S3-F23).

    Raises:
        InputError: a Dataset of another kind, or two of different heads.

    Example:
        >>> scores = probes.induction_scores(lens, motif=8, n_sequences=8)
        >>> data = probes.induction_overlap(scores)
        >>> int(data["count"].sum()) == data["induction"].size
        True
    """
    of_kind(induction, "induction_scores", "induction_overlap")
    if entropy is None and "entropy" not in induction:
        raise InputError(
            "this induction result holds no entropies; give a head_entropy result"
            " beside it"
        )
    if entropy is None:
        normalised = normalise(induction["entropy"]).drop_attrs()
    else:
        normalised = _align(induction, entropy)
    # the scores with their statistics, whose names begin with those of the scores
    names = [name for name in induction.data_vars if str(name).startswith(SCORES[:2])]
    data = induction[names].assign(normalised=normalised).assign_coords(GRIDS)
    data["induction"] = (data["prefix_matching"] >= prefix_from) & (
        data["copy_score"] >= copy_from
    )
    data["sharp"] = normalised < sharp_below
    data = _sweeps(_table(data), prefix_from)
    centred = np.stack(
        [data[name].values.ravel() - data[name].values.mean() for name in SCORES]
    )
    norms = np.linalg.norm(centred, axis=1)
    correlation = ratio(centred @ centred.T, np.outer(norms, norms))
    data["correlation"] = (("score", "other_score"), correlation)
    data = data.assign_coords(score=list(SCORES), other_score=list(SCORES))
    data.attrs = {
        **{
            key: induction.attrs[key]
            for key in _SHARED_ATTRIBUTES
            if key in induction.attrs
        },
        "entropy_along": "repeated tokens" if entropy is None else "forecasts",
        "prefix_from": prefix_from,
        "copy_from": copy_from,
        "sharp_below": sharp_below,
        "undefined": "NaN is a share of no heads, or a correlation with a constant",
    }
    return data


def _table(data: xr.Dataset) -> xr.Dataset:
    """Add counts, proportions and both conditional ones."""
    induction, sharp = (
        # along a state, index 0 marks the heads that are in it, index 1 all others
        xr.concat([data[name], ~data[name]], dim=f"{name}_state")
        for name in ("induction", "sharp")
    )
    count = (induction & sharp).sum(["layer", "head"])
    share = count / data["sharp"].size
    return data.assign(
        count=count,
        proportion=share,
        proportion_induction=share.sum("sharp_state"),
        proportion_sharp=share.sum("induction_state"),
        p_sharp_given_induction=_share(count[0, 0], count[0].sum()),
        p_induction_given_sharp=_share(count[0, 0], count[:, 0].sum()),
    ).assign_coords(
        induction_state=["induction", "other"], sharp_state=["sharp", "other"]
    )


def _sweeps(data: xr.Dataset, prefix_from: float) -> xr.Dataset:
    """Add the same shares at every threshold of the grids."""
    heads = ["layer", "head"]
    copies = data["copy_score"] >= data["copy_threshold"]
    induction = copies & (data["prefix_matching"] >= prefix_from)
    sharp = data["normalised"] < data["entropy_threshold"]
    both, n_induction, n_sharp = (
        mask.sum(heads) for mask in (induction & sharp, induction, sharp)
    )
    return data.assign(
        sweep_sharp_given_induction=_share(both, n_induction),
        sweep_induction_given_sharp=_share(both, n_sharp),
        sweep_induction_count=n_induction,
        sweep_sharp_count=n_sharp,
        sweep_proportion_induction=(
            copies & (data["prefix_matching"] >= data["prefix_threshold"])
        ).mean(heads),
    )


def _share(part: xr.DataArray, total: xr.DataArray) -> xr.DataArray:
    # NaN for a share of no heads
    return part / total.where(total > 0)


def _align(induction: xr.Dataset, entropy: xr.Dataset) -> xr.DataArray:
    """Return the normalised entropies of the heads that were tested for induction.

    Entropies of other heads, or of another model, are refused.
    """
    of_kind(entropy, "head_entropy", "induction_overlap")
    for key in ("model", "attention"):
        ours = induction.attrs.get(key)
        theirs = entropy.attrs.get(key)
        if None not in (ours, theirs) and ours != theirs:
            raise InputError(
                f"the induction scores are of the {key} {ours!r}, the entropies of"
                f" {theirs!r}"
            )
    for dim in ("layer", "head"):
        ours, theirs = (
            list(map(str, data[dim].values)) for data in (induction, entropy)
        )
        if ours != theirs:
            raise InputError(
                f"the induction scores have the {dim}s {ours}, the entropies {theirs}"
            )
    normalised = entropy["normalised"].transpose("layer", "head")
    return induction["copy_score"].copy(data=normalised.values).drop_attrs()
