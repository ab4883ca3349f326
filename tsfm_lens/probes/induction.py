"""Induction heads of token models: the repeated-random-tokens test."""

from __future__ import annotations

import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.errors import InputError
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.trajectory import describe

PREFIX_FROM = 0.3
COPY_FROM = 2.0
WITHIN = 1.0124


def repeated_tokens(
    lens: Lens,
    *,
    motif: int = 32,
    repeats: int = 4,
    n_sequences: int = 64,
    offset: int = 1,
    within: float = WITHIN,
    seed: int = 0,
) -> xr.Dataset:
    """Show a random motif several times and see which cross-attention heads find and copy its continuation.

    Tokens are drawn uniformly from the bins within ``within`` times the scale around zero (the paper's ids
    1911 to 2187 of 4096). The encoder sees motif × repeats and the end token. The decoder is forced along
    the motif, which equals its rollout as long as it copies; at every position but the first two, the current
    token has a most recent instance in the context and the token after that is the right continuation.

    Args:
        lens: a token model.
        motif: tokens in a motif.
        repeats: times it is shown.
        n_sequences: random sequences.
        offset: key that the prefix-matching score looks at: 1 the token after the most recent instance
            (induction), 0 the instance itself.
        within: half-width of the range of values, in units of the scale.
        seed: of the motifs.

    Returns:
        Dataset of kind "induction" over (layer, head): ``prefix_matching`` (mean attention to the key),
        ``copy_score`` (the head's own logit of the right token, in standard deviations over the vocabulary),
        ``induction`` (prefix matching at least 0.3 and copy score at least 2); and ``copy_accuracy``, the
        share of positions at which the model's most probable token is the right one, and
        ``copy_rank_score``, the z-score of the right token under the whole model.

    Source:
        tsfm-lens paper, appendix G (S3-RRT, S3-PREF, S3-COPY); Olsson et al. 2022.

    Raises:
        InputError: not a token model with cross-attention, or the sequence exceeds its context length.
    """
    stack = lens.wiring.output_stack
    if not hasattr(lens.adapter, "encode_tokens") or "cross_attn" not in stack.attention_kinds():
        raise InputError(
            f"{lens.model_id} is no encoder-decoder model over value tokens; the repeated-tokens test needs one"
        )
    if motif < 3 or repeats < 2 or motif * repeats > lens.adapter.context_length:
        raise InputError(
            f"motif {motif} × repeats {repeats} does not fit: expected a motif of 3 or more, 2 or more repeats, and at "
            f"most {lens.adapter.context_length} tokens in all"
        )
    ids, motifs = _sequences(lens, motif, repeats, n_sequences, within, seed)
    start = torch.full((n_sequences, 1), lens.adapter.model.config.decoder_start_token_id)
    encoded = lens.adapter.encode_tokens(ids, torch.cat([start, motifs[:, :-1]], dim=1))
    places = [f"{stack.prefix}.{layer}.cross_attn" for layer in range(stack.n_layers)]
    wanted = [f"{at}.{point}" for at in places for point in ("hook_pattern", "hook_result")]
    with torch.no_grad():
        logits, acts = lens.run_with_cache(encoded, names_filter=wanted)
        queries = torch.arange(1, motif)
        keys = (repeats - 1) * motif + queries - 1 + offset
        right = motifs[:, 1:].to(logits.device)
        prefix = [acts[f"{at}.hook_pattern"][:, :, queries, keys].mean(dim=(0, 2)) for at in places]
        copy = [_copy_scores(lens, acts[f"{at}.hook_result"], encoded, right) for at in places]
        accuracy = float((logits[:, 1:].argmax(-1) == right).float().mean())
        strength = float(_z_score(logits[:, 1:], right).mean())
    data = xr.Dataset(
        {
            "prefix_matching": (("layer", "head"), torch.stack(prefix).cpu().double().numpy()),
            "copy_score": (("layer", "head"), torch.stack(copy).cpu().double().numpy()),
            "copy_accuracy": accuracy,
            "copy_rank_score": strength,
        },
        coords={"layer": list(map(str, range(stack.n_layers))), "head": range(stack.n_heads)},
    )
    data["induction"] = (data["prefix_matching"] >= PREFIX_FROM) & (data["copy_score"] >= COPY_FROM)
    data.attrs = describe(
        lens,
        "induction",
        "Repeated random tokens",
        "tsfm-lens paper, appendix G (S3-RRT, S3-PREF, S3-COPY)",
        motif=motif,
        repeats=repeats,
        n_sequences=n_sequences,
        offset=offset,
        seed=seed,
    )
    return data


def _sequences(lens: Lens, motif: int, repeats: int, count: int, within: float, seed: int) -> tuple[Tensor, Tensor]:
    """Encoder ids with the end token, and the motifs."""
    settings = lens.adapter.settings  # type: ignore[attr-defined]
    centers = lens.native.tokenizer.centers
    allowed = torch.nonzero(centers.abs() <= within).reshape(-1) + lens.adapter.first_value_token  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(seed)
    motifs = allowed[torch.randint(len(allowed), (count, motif), generator=generator)]
    end = torch.full((count, int(settings.use_eos_token)), settings.eos_token_id)
    return torch.cat([motifs.repeat(1, repeats), end], dim=1), motifs


def _copy_scores(lens: Lens, results: Tensor, encoded: object, right: Tensor) -> Tensor:
    """Mean z-score of the right token under each head's own logits, (head,); results (batch, pos, head, d_model)."""
    scores = []
    for head in range(results.shape[2]):
        logits = lens.readout(results[:, 1:, head], encoded)  # type: ignore[arg-type]
        scores.append(_z_score(logits, right).mean())
    return torch.stack(scores)


def _z_score(logits: Tensor, right: Tensor) -> Tensor:
    chosen = logits.gather(-1, right[..., None])[..., 0]
    return (chosen - logits.mean(-1)) / logits.std(-1)
