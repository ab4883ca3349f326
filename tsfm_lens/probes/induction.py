"""Induction heads of token models: the repeated-random-tokens test."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.errors import InputError
from tsfm_lens.hooks.recorder import by_row
from tsfm_lens.models.base import TokenModel
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import relative_rounding
from tsfm_lens.probes.attention import row_entropy
from tsfm_lens.probes.findings import judge
from tsfm_lens.probes.labels import describe
from tsfm_lens.registry import probe
from tsfm_lens.stats import ratio_units

__all__ = ["induction_scores"]

PREFIX_FROM = 0.3
COPY_FROM = 2.0
WITHIN = 1.0124
DECODINGS = ("forced", "rollout")
POSITIONS = ("last", "first", "all")

_SOURCE = "tsfm-lens paper, appendix G (S3-RRT, S3-PREF, S3-COPY)"


class _Targets(NamedTuple):
    """Key of the last instance of each decoder token, the token after it, and whether there is one."""

    keys: Tensor
    right: Tensor
    valid: Tensor


@probe("induction", "lens", words="induction_scores, on series of its own")
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
    sub_extension: bool = False,
    prefix_from: float = PREFIX_FROM,
    copy_from: float = COPY_FROM,
    seed: int = 0,
) -> xr.Dataset:
    """Show a random motif several times and see which cross-attention heads find and copy its continuation.

    Tokens are drawn uniformly from the bins within ``within`` times the scale around zero (the paper's ids
    1911 to 2187 of 4096). The encoder sees motif × repeats and the end token; the decoder begins with its
    start token and the motif's first token.

    Args:
        lens: a token model.
        motif: tokens in a motif.
        repeats: times it is shown.
        n_sequences: random sequences.
        offset: key that the prefix-matching score reads: 1 is the token after the most recent instance (as in Olsson et
            al. and behind the paper's Table 5), 0 that instance itself (the paper's words).
        positions: positions of both scores, of those that have a right token: "last" as in the paper, "first" as in its
            released code, or the mean over "all"; entropies are means over all in any case.
        within: half-width of the range of values, in units of the scale.
        decoding: "rollout" continues the decoder by its own most probable token, as in the paper, and leaves out
            positions whose token is not in the context; "forced" feeds it the motif, so that all have a right token.
        sub_extension: as the released code does, show the motif's first token once more before the end token, and begin
            the decoder with its second; with ``positions="first"`` and ``offset=1`` that is its single step.
        prefix_from, copy_from: scores from which a head is an induction head.
        seed: of the motifs.

    Returns:
        Dataset of kind "induction" over (layer, head): ``prefix_matching`` (mean attention to the key),
        ``copy_score`` (the head's own logit of the right token, in standard deviations over the vocabulary; 0
        for a head that writes nothing), for both what :func:`tsfm_lens.probes.findings.judge` adds, over sequences;
        their floors are an even spread over the keys, and the copy score (sequence too) of the average of all tokens
        that motifs are drawn from. ``entropy`` of its attention rows in nats, ``induction`` (both scores
        reach their thresholds); and ``copy_accuracy``, the share of positions at which the model's most probable
        token is the right one, ``copy_rank_score``, the z-score of the right token under the whole model, and
        ``matched``, the share of positions that have a right token.

    Source:
        tsfm-lens paper, appendix G (S3-RRT, S3-PREF, S3-COPY); Olsson et al. 2022.

    Raises:
        InputError: not a token model with cross-attention, the sequence exceeds its context length, an option
            is not as above, or a rollout that never gives a token of its context.

    Example:
        >>> data = probes.induction_scores(lens, motif=8, n_sequences=8)
        >>> data["prefix_matching"].dims
        ('layer', 'head')
    """
    extra = int(sub_extension)
    tokens = _refuse(lens, motif, repeats, extra, offset, decoding, positions)
    stack = lens.wiring.output_stack
    ids, motifs = _sequences(lens, motif, repeats, n_sequences, within, seed, extra)
    # as the decoder goes through them
    decoder_motifs = motifs.roll(-extra, dims=1)
    start = torch.full((n_sequences, 1), tokens.model.config.decoder_start_token_id)
    if decoding == "forced":
        decoder = torch.cat([start, decoder_motifs[:, :-1]], dim=1)
        targets = _forced_targets(decoder_motifs, repeats, extra)
    else:
        decoder = _roll_out(lens, ids, torch.cat([start, decoder_motifs[:, :1]], dim=1), motif)
        targets = _match_targets(ids[:, : motif * repeats + extra], decoder[:, 1:])
    encoded = tokens.encode_tokens(ids, decoder)
    places = [f"{stack.prefix}.{layer}.cross_attn" for layer in range(stack.n_layers)]
    points = [f"{at}.{point}" for at in places for point in ("hook_pattern", "hook_result")]
    with torch.no_grad():
        targets = _Targets(*(part.to(lens.device) for part in targets))
        valid = targets.valid
        selection = targets._replace(valid=_select_positions(valid, positions))
        pool = frequent_tokens(lens, within).to(lens.device)
        score = by_row(partial(_copy_scores, lens, targets=selection, unembedding=_unembedding(lens), pool=pool))
        # the heads' writes are scored while the model runs, and never stored
        logits, acts = lens.run_with_cache(encoded, names_filter=points, reduce={"**.hook_result": score})
        patterns = [acts[f"{at}.hook_pattern"] for at in places]
        prefix = np.stack(
            [_by_sequence(_prefix_weights(pattern, selection, offset), selection.valid) for pattern in patterns]
        )
        scores = [acts[f"{at}.hook_result"] for at in places]
        copy, others = (np.stack([_by_sequence(part[..., of], selection.valid) for part in scores]) for of in (0, 1))
        entropy = [row_entropy(pattern.cpu().double().numpy()).mean(axis=(0, 2)) for pattern in patterns]
        accuracy = float((logits[:, 1:].argmax(-1) == targets.right)[valid].float().mean())
        strength = float(_z_score(logits[:, 1:], targets.right)[valid].mean())
    data = xr.Dataset(
        {
            "prefix_matching": (("layer", "head"), prefix.mean(-1)),
            "copy_score": (("layer", "head"), copy.mean(-1)),
            "entropy": (("layer", "head"), np.stack(entropy), {"units": "nats"}),
            "copy_accuracy": accuracy,
            "copy_rank_score": strength,
            "matched": float(valid.float().mean()),
        },
        coords={"layer": list(map(str, range(stack.n_layers))), "head": range(stack.n_heads)},
    )
    data["induction"] = (data["prefix_matching"] >= prefix_from) & (data["copy_score"] >= copy_from)
    settings: dict[str, Any] = {"motif": motif, "repeats": repeats, "n_sequences": n_sequences, "seed": seed}
    settings |= {"offset": offset, "positions": positions, "decoding": decoding, "sub_extension": sub_extension}
    settings |= {"prefix_from": prefix_from, "copy_from": copy_from}
    data.attrs = describe(lens, "induction", "Repeated random tokens", _SOURCE, attention="cross_attn", **settings)
    off, axes = relative_rounding(lens), ("layer", "head", "sequence")
    floors: dict[str, tuple[np.ndarray, Any]] = {
        "prefix_matching": (prefix, (1 + off) / patterns[0].shape[-1]),
        "copy_score": (copy, xr.DataArray(np.fmax(others, 0.0) + off * (1 + np.abs(others)), dims=axes)),
    }
    for name, (values, floor) in floors.items():
        data = judge(data, name, floor=floor, values=xr.DataArray(values, dims=axes), over="sequence")
    return data


def _refuse(lens: Lens, motif: int, repeats: int, extra: int, offset: int, decoding: str, positions: str) -> TokenModel:
    tokens, kinds = lens.tokens, lens.wiring.output_stack.attention_kinds()
    if tokens is None or "cross_attn" not in kinds:
        raise InputError(
            f"{lens.model_id} is no encoder-decoder model over value tokens; the repeated-tokens test needs one. "
            "repeated_motif asks the same of every model, in values"
        )
    if motif < 3 or repeats < 2 or motif * repeats + extra > lens.context_length:
        raise InputError(
            f"motif {motif} × repeats {repeats} does not fit: expected a motif of 3 or more, 2 or more repeats, and at "
            f"most {lens.context_length} tokens in all"
        )
    if offset not in (0, 1):
        raise InputError(f"offset is {offset!r}, expected 0 (the instance) or 1 (the token after it)")
    if decoding not in DECODINGS:
        raise InputError(f"decoding={decoding!r} is not known, choose {' or '.join(map(repr, DECODINGS))}")
    if positions not in POSITIONS:
        raise InputError(f"positions={positions!r} is not known, choose {' or '.join(map(repr, POSITIONS))}")
    return tokens


def _tokens_of(lens: Lens) -> TokenModel:
    assert lens.tokens is not None
    return lens.tokens


def frequent_tokens(lens: Lens, within: float = WITHIN) -> Tensor:
    """Return the ids that motifs are drawn from: the bins within ``within`` times the scale around zero."""
    centers = lens.native.tokenizer.centers
    return torch.nonzero(centers.abs() <= within).reshape(-1) + lens.first_value_token


def _sequences(
    lens: Lens, motif: int, repeats: int, count: int, within: float, seed: int, extra: int = 0
) -> tuple[Tensor, Tensor]:
    """Return encoder ids, with ``extra`` tokens of one more repeat and the end token, and the motifs."""
    settings = _tokens_of(lens).settings
    pool = frequent_tokens(lens, within)
    generator = torch.Generator().manual_seed(seed)
    motifs = pool[torch.randint(len(pool), (count, motif), generator=generator)]
    end = torch.full((count, int(settings.use_eos_token)), settings.eos_token_id)
    return torch.cat([motifs.repeat(1, repeats), motifs[:, :extra], end], dim=1), motifs


def _roll_out(lens: Lens, ids: Tensor, prompt: Tensor, motif: int) -> Tensor:
    """Continue the prompt to (sequence, motif) by its most probable tokens, by the library's own greedy search."""
    with torch.no_grad():
        tokens = (
            _tokens_of(lens)
            .model.generate(
                input_ids=ids.to(lens.device),
                attention_mask=torch.ones_like(ids).to(lens.device),
                decoder_input_ids=prompt.to(lens.device),
                max_new_tokens=motif - prompt.shape[1],
                do_sample=False,
            )
            .cpu()
        )
    # sequences that all ended early are shorter; what follows their end is padding anyway
    short = motif - tokens.shape[1]
    return torch.nn.functional.pad(tokens, (0, short), value=int(_tokens_of(lens).settings.pad_token_id))


def _forced_targets(motifs: Tensor, repeats: int, extra: int = 0) -> _Targets:
    """Return the same place in the last repeat: the decoder goes along the motif."""
    count, motif = motifs.shape
    keys = (repeats - 1) * motif + extra + torch.arange(motif - 1)
    return _Targets(keys.expand(count, -1), motifs[:, 1:], torch.ones(count, motif - 1, dtype=torch.bool))


def _match_targets(context: Tensor, tokens: Tensor) -> _Targets:
    """Return the last instance of each token that still has another one of the context after it."""
    # the last token of the context is followed by nothing that could be copied
    same = tokens[:, :, None] == context[:, None, :-1]
    places = torch.arange(context.shape[1] - 1)
    keys = torch.where(same, places, -1).amax(-1)
    valid = keys >= 0
    if not bool(valid.any()):
        raise InputError(
            "the rollout gives no token of its context, so there is nothing to match; use decoding='forced'"
        )
    keys = keys.clamp(min=0)
    return _Targets(keys, context.gather(1, keys + 1), valid)


def _select_positions(valid: Tensor, positions: str) -> Tensor:
    """Select the positions to read among those that have a right token, (sequence, position)."""
    if positions == "all":
        return valid
    rank = valid.cumsum(dim=1)
    return valid & (rank == (1 if positions == "first" else rank[:, -1:]))


def _prefix_weights(pattern: Tensor, targets: _Targets, offset: int) -> Tensor:
    """Return the attention to the targets, (sequence, position, head); pattern (sequence, head, query, key)."""
    keys = (targets.keys + offset)[:, None, :, None].expand(-1, pattern.shape[1], -1, 1)
    return pattern[:, :, 1:].gather(-1, keys)[..., 0].transpose(1, 2)


def _by_sequence(scores: Tensor, valid: Tensor) -> np.ndarray:
    """Return scores (sequence, position, head) of valid positions, as a sample of sequences (head, sequence)."""
    totals = (scores * valid[..., None]).sum(1).T
    return ratio_units(totals.cpu().double().numpy(), valid.sum(1).cpu().double().numpy())


def _copy_scores(
    lens: Lens, results: Tensor, targets: _Targets, unembedding: tuple[Tensor, Tensor], pool: Tensor
) -> Tensor:
    """Compute z-scores of the right token and a pool's mean one, (batch, pos, head, 2), from each head's writes."""
    centred, root = unembedding
    right, valid = (lens.registry.state.own(part) for part in (targets.right, targets.valid))
    # a z-score does not change with the scale of the logits, so factors on the way to them are left out
    states = lens.final_norm(results[:, 1:])
    above = torch.stack([torch.einsum("bphd,bpd->bph", states, centred[right]), states @ centred[pool].mean(0)], dim=-1)
    spread = (states @ root.T).norm(dim=-1)[..., None]
    score = torch.where(spread > 0, above / spread.clamp(min=torch.finfo(spread.dtype).tiny), 0.0)
    return torch.where(valid[..., None, None], score, 0.0)


def _unembedding(lens: Lens) -> tuple[Tensor, Tensor]:
    """Return the unembedding less its mean row, (vocabulary, d_model), and its triangular root."""
    weight = lens.model.get_submodule(lens.wiring.unembed.module).weight.detach()
    centred = weight - weight.mean(0)
    # the deviation of the logits over the vocabulary is the length of this root times the state
    root = torch.linalg.qr(centred.double(), mode="r").R / (len(weight) - 1) ** 0.5
    return centred, root.to(weight.dtype)


def _z_score(logits: Tensor, right: Tensor) -> Tensor:
    """Compute by how many standard deviations the right token's logit is above the mean; 0 where all are equal."""
    above = logits.gather(-1, right[..., None])[..., 0] - logits.mean(-1)
    spread = logits.std(-1)
    return torch.where(spread > 0, above / spread.clamp(min=torch.finfo(logits.dtype).tiny), 0.0)
