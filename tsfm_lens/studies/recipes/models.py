"""Restrictions of a recipe on a model before its first step: rank of its attentions, and of its vocabulary."""

from __future__ import annotations

import torch
from chronos.chronos import ChronosConfig
from torch import Tensor, nn
from transformers import PreTrainedModel

from tsfm_lens.compress import Factors, LowRank, cut_off, matrices, product, rank_schedule
from tsfm_lens.compress.layers import replace_layer
from tsfm_lens.compress.matrices import Matrix
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.models import Lens, load
from tsfm_lens.studies.rank_theory import ChebyshevEmbedding
from tsfm_lens.studies.recipes.export import as_pipeline
from tsfm_lens.studies.recipes.recipe import SKETCHES, AttentionRank

__all__ = ["attention_ranks", "factorise_attention", "fix_vocabulary"]


def attention_ranks(lens: Lens, target: AttentionRank) -> dict[str, int]:
    """Return the rank of every attention matrix, or of each of its heads, by the matrix's name.

    Raises:
        UnknownNameError: no such sketch.
        InputError: the first layer's rank is not from 1 to the full one, or the growth is negative.
    """
    if target.sketch not in SKETCHES:
        raise unknown_name("sketch", target.sketch, SKETCHES)
    by_head, layers = target.sketch == "by head", {stack.name: stack.n_layers for stack in lens.wiring.stacks}
    ranks = {}
    for name, matrix in matrices(lens).items():
        full = matrix.form(by_head=by_head).full
        if not 1 <= target.rank <= full:
            of = f"each head of {name}" if by_head else name
            raise InputError(f"rank {target.rank} of {of}; expected 1 to {full}")
        schedule = rank_schedule(target.rank, target.growth, layers[matrix.stack], full)
        ranks[name] = int(schedule[matrix.layer])
    return ranks


def factorise_attention(model: PreTrainedModel, target: AttentionRank) -> None:
    """Replace every attention matrix by factors, in the model itself.

    They begin as the best ones of the matrix that a dense model of the recipe begins with, so that runs of one seed
    differ in rank alone: of one size each, and with the norm of that matrix. A matrix of full rank stays.

    Source:
        Flow of ranks, equation 19 ("shared") and 20 ("by head"), ranks by layer as in its section 5 (S0-LR, S0-SCHED);
        it does not say how factors begin.

    Raises:
        UnknownNameError, InputError: as in :func:`attention_ranks`; the model is left as it was.
    """
    mode = model.training
    lens = load(as_pipeline(model.eval()), check=False)
    by_head, by_name = target.sketch == "by head", matrices(lens)
    for name, rank in attention_ranks(lens, target).items():
        matrix = by_name[name]
        if rank < matrix.form(by_head=by_head).full:
            layer = model.get_submodule(matrix.path)
            factors = _first_factors(layer.weight.detach(), matrix, rank, by_head)
            replace_layer(model, matrix.path, LowRank(factors, layer.bias, matrix.gain))
    model.train(mode)


def _first_factors(weight: Tensor, matrix: Matrix, rank: int, by_head: bool) -> Factors:
    heads = matrix.form(by_head=by_head).blocks
    down, up = cut_off(weight, rank, heads=heads, of=matrix.of)
    # cut_off leaves the singular values in `down`, whose rows are orthogonal
    sizes = down.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(down.dtype).tiny).sqrt()
    gain = (weight.norm() / product(Factors(down, up)).norm()).sqrt()
    over = sizes.reshape(len(up), 1, rank) if up.ndim == 3 else sizes.reshape(1, -1)
    return Factors(down / sizes * gain, up * over * gain)


def fix_vocabulary(model: PreTrainedModel, rank: int, *, seed: int) -> None:
    """Give a token model an embedding of a rank that training leaves as it is, in the model itself.

    A bin of value x has Σ_j T_j(x / x_max) u_j, j from 1 to the rank, with x_max the tokenizer's largest value; other
    tokens have a vector drawn in the same space. All are scaled so that entries are 1 in the root mean square. The head
    becomes a matrix of its own, which begins as the embedding did that is replaced, and is trained.

    Source:
        Flow of ranks, figure 4c and appendix I (S0-I, S0-CHEB), which says nothing of tokens without a value.

    Raises:
        InputError: the model has no tokens, or the rank is above its width.
    """
    config = model.config
    settings = getattr(config, "chronos_config", {})
    if "n_tokens" not in settings:
        raise InputError(f"a vocabulary of rank {rank} for a model that reads no tokens; expected a recipe of tokens")
    if not 1 <= rank <= config.d_model:
        raise InputError(f"a vocabulary of rank {rank}; expected 1 to the width of the model, {config.d_model}")
    chronos = ChronosConfig(**settings)
    centres = chronos.create_tokenizer().centers.double().numpy()
    embedding = ChebyshevEmbedding.random(config.d_model, rank, largest=float(centres[-1]), seed=seed)
    values = torch.from_numpy(embedding(centres)).T
    table = torch.zeros(config.vocab_size, config.d_model, dtype=torch.float64)
    first = chronos.n_special_tokens + 1
    table[first : first + len(values)] = values
    others = torch.randn(first, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    # T_j is 1/2 in the mean square
    table[:first] = others / 2**0.5 @ torch.from_numpy(embedding.directions).T
    table /= table[first:].square().mean().sqrt()
    # outputs of a head that is the embedding are scaled in the forward; as a matrix of its own it holds the scale
    model.lm_head.weight = nn.Parameter(model.shared.weight.detach() * config.d_model**-0.5)
    config.tie_word_embeddings = config.scale_decoder_outputs = False
    with torch.no_grad():
        model.shared.weight.copy_(table)
    model.shared.weight.requires_grad_(False)
