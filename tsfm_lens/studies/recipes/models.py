"""Models of recipes before their first step, and their widening between phases.

Read :func:`build_model` first: it draws the native model and then restricts its
attention in rank (:func:`factorise_attention`), its vocabulary (:func:`fix_vocabulary`)
or its scores (:func:`score_by_levels`). :func:`widened` grows a trained model without
changing what it computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from chronos.chronos import ChronosConfig
from chronos.chronos_bolt import ChronosBoltModelForForecasting
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PretrainedConfig,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.masking_utils import eager_mask
from transformers.models.t5.modeling_t5 import T5Attention, eager_attention_forward

from tsfm_lens.compress import (
    Factors,
    LowRankLinear,
    matrices,
    product,
    truncate,
)
from tsfm_lens.compress.layers import replace_layer
from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.models import Lens, load
from tsfm_lens.studies.rank_theory.embeddings import ChebyshevEmbedding
from tsfm_lens.studies.rank_theory.schedules import rank_schedule
from tsfm_lens.studies.recipes.export import as_pipeline
from tsfm_lens.studies.recipes.recipe import AttentionRank, TrainingRecipe
from tsfm_lens.studies.structured.forms import token_blocks
from tsfm_lens.studies.structured.scores import spread

EMBEDDING_NOISE = 0.1
"""Standard deviation of the noise on value bins, whose features have that of 1."""


def attention_ranks(lens: Lens, target: AttentionRank) -> dict[str, int]:
    """Return the rank of every attention matrix, or of each of its heads, by name."""
    by_head = target.sketch == "by head"
    ranks = {}
    for name, matrix in matrices(lens).items():
        full = matrix.form(by_head=by_head).full
        if not 1 <= target.rank <= full:
            part = "each head of " if by_head else ""
            raise InputError(
                f"rank {target.rank} of {part}{name}; expected 1 to {full}"
            )
        layers = lens.wiring.stack(matrix.stack).n_layers
        schedule = rank_schedule(target.rank, target.growth, layers, full)
        ranks[name] = int(schedule[matrix.layer])
    return ranks


def factorise_attention(model: PreTrainedModel, target: AttentionRank) -> None:
    """Replace every attention matrix by factors, in the model itself."""
    mode = model.training
    lens = load(as_pipeline(model.eval()), check=False)
    by_name = matrices(lens)
    for name, rank in attention_ranks(lens, target).items():
        matrix = by_name[name]
        form = matrix.form(by_head=target.sketch == "by head")
        if rank < form.full:
            layer = model.get_submodule(matrix.path)
            weight = layer.weight.detach()
            down, up = truncate(weight, rank, heads=form.blocks, of=matrix.of)
            # the singular values are the lengths of the rows of `down`; the root of
            # each goes to either factor
            lengths = down.norm(dim=-1, keepdim=True)
            roots = lengths.clamp(min=torch.finfo(down.dtype).tiny).sqrt()
            # the product has the norm of the initialised matrix, despite the cut
            gain = (weight.norm() / product(Factors(down, up)).norm()).sqrt()
            # along the last axis of `up`, head by head where it has heads
            of_up = roots.reshape(*up.shape[:-2], 1, -1)
            factors = Factors(down / roots * gain, up * of_up * gain)
            replace_layer(
                model, matrix.path, LowRankLinear(factors, layer.bias, matrix.gain)
            )
    model.train(mode)


def fix_vocabulary(model: PreTrainedModel, rank: int, *, seed: int) -> None:
    """Give a token model a fixed embedding of a rank.

    The model itself is changed. Training leaves the embedding as it is.
    """
    config = model.config
    tokenizer_settings = getattr(config, "chronos_config", {})
    if "n_tokens" not in tokenizer_settings:
        raise InputError(
            f"a vocabulary of rank {rank} for a model that reads no tokens; expected a"
            " recipe of tokens"
        )
    if not 1 <= rank <= config.d_model:
        raise InputError(
            f"a vocabulary of rank {rank}; expected 1 to the width of the model,"
            f" {config.d_model}"
        )
    chronos = ChronosConfig(**tokenizer_settings)
    centres = chronos.create_tokenizer().centers.double().numpy()
    embedding = ChebyshevEmbedding.random(
        config.d_model, rank, largest=float(centres[-1]), seed=seed
    )
    values = torch.from_numpy(embedding(centres)).T
    table = torch.zeros(config.vocab_size, config.d_model, dtype=torch.float64)
    # behind the special tokens, Chronos numbers the value bins from 1
    first_bin = chronos.n_special_tokens + 1
    table[first_bin : first_bin + len(values)] = values
    generator = torch.Generator().manual_seed(seed)
    others = torch.randn(first_bin, rank, generator=generator, dtype=torch.float64)
    # the Chebyshev polynomials of a value have a mean square of about 1/2
    table[:first_bin] = others / 2**0.5 @ torch.from_numpy(embedding.directions).T
    # entries of value bins get a mean square of 1, as T5 draws an embedding
    table /= table[first_bin:].square().mean().sqrt()
    # T5 scales the stream before a head that shares the embedding; a head of its own
    # has that scale in its weights
    model.lm_head.weight = nn.Parameter(
        model.shared.weight.detach() * config.d_model**-0.5
    )
    config.tie_word_embeddings = config.scale_decoder_outputs = False
    with torch.no_grad():
        model.shared.weight.copy_(table)
    model.shared.weight.requires_grad_(False)


NAME = "token-levels"
"""Name of :func:`attend` among the attention functions of transformers."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    **options: Any,
) -> Any:
    """Compute T5's attention, with scores by levels if the module has level ranks."""
    ranks = getattr(module, "level_ranks", ())
    if ranks:
        blocks = token_blocks(query.shape[-2], len(ranks))
        query = spread(query, ranks, blocks)
        key = spread(key, ranks, blocks)
    return eager_attention_forward(module, query, key, value, mask, **options)


def score_by_levels(model: PreTrainedModel, ranks: Sequence[int]) -> None:
    """Let the encoder of a T5 score by nested blocks of tokens.

    ``ranks`` are the features of a head by level. The model itself is changed; its
    weights stay as they are.
    """
    size = model.config.d_kv
    if sum(ranks) != size or min(ranks) < 1:
        raise InputError(
            f"ranks {list(ranks)} sum to {sum(ranks)}; expected whole numbers from 1"
            f" that sum to {size}"
        )
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, eager_mask)
    # encoder and decoder may have copies of the model's configuration
    for part in (model, model.get_encoder(), model.get_decoder()):
        part.set_attn_implementation(NAME)
    for module in model.get_encoder().modules():
        if isinstance(module, T5Attention):
            module.level_ranks = tuple(ranks)


WIDTHS = ("d_model", "d_kv", "d_ff")
BUCKETS = ("relative_attention_num_buckets", "relative_attention_max_distance")
NEW_SHARE = 0.5
"""Standard deviation of random new weights, as a share of that of the old weights."""


def widened(
    model: PreTrainedModel, changes: Mapping[str, Any], *, seed: int
) -> PreTrainedModel:
    """Widen a model to one with the same logits or quantiles.

    They differ by rounding, and by the epsilon of the norms. ``changes`` are new values
    of the configuration, by name.
    """
    entries = (*WIDTHS, *BUCKETS)
    for name, value in changes.items():
        if name not in entries:
            raise unknown_name("entry that can grow", name, entries)
        if value < getattr(model.config, name):
            raise InputError(
                f"{name}={value} is below the model's {getattr(model.config, name)}; a"
                " model only grows"
            )
    config = type(model.config)(**{**model.config.to_dict(), **changes})
    generator = torch.Generator().manual_seed(seed)
    # the new model draws weights, all of which are replaced
    with torch.random.fork_rng(devices=[]):
        wider = type(model)(config).to(model.dtype)
    old = model.state_dict()
    weights = wider.state_dict()
    for name, weight in old.items():
        if "relative_attention_bias" in name:
            is_encoder = name.startswith("encoder")
            weights[name] = _finer_table(
                weight, model.config, config, bidirectional=is_encoder
            )
        else:
            weights[name] = _widen_weight(
                name, weight.cpu(), weights[name].shape, model.config, generator
            )
    wider.load_state_dict(weights)
    return wider.to(model.device).train(model.training)


def _widen_weight(
    name: str,
    old: Tensor,
    shape: torch.Size,
    config: PretrainedConfig,
    generator: torch.Generator,
) -> Tensor:
    """Return a weight of `shape` with the weight `old` in its corner.

    New features of the stream stay 0, as what writes to it gets zeros. Weights that
    only read these features, or whose results meet zeros, are random, to be trained.
    """
    kind = name.split(".")[-2]
    heads = config.num_heads
    if name.endswith("bias"):
        return F.pad(old, (0, shape[0] - len(old)))
    random = torch.randn(shape, generator=generator, dtype=old.dtype)
    new = NEW_SHARE * old.std() * random
    if old.ndim == 1:
        # the norm averages over more features, of which the new ones are 0
        gain = (len(old) / shape[0]) ** 0.5
        is_patched = config.architectures == [ChronosBoltModelForForecasting.__name__]
        if name == "decoder.final_layer_norm.weight" and not is_patched:
            # before its tied head, T5 divides by the root of the width itself
            gain = 1.0
        return F.pad(gain * old, (0, shape[0] - len(old)), value=gain)
    if kind in ("q", "k", "v"):
        new = new.view(heads, -1, shape[1])
        if kind == "k":
            # a new feature of the scores is 0 until its key is learnt
            new[:, config.d_kv :] = 0.0
        new[:, : config.d_kv, : config.d_model] = old.view(heads, config.d_kv, -1)
        return new.reshape(shape)
    if kind not in ("wi", "hidden_layer"):
        new.zero_()
    if kind == "o":
        new = new.view(shape[0], heads, -1)
        new[: config.d_model, :, : config.d_kv] = old.view(-1, heads, config.d_kv)
        return new.reshape(shape)
    new[: old.shape[0], : old.shape[1]] = old
    return new


def _finer_table(
    table: Tensor, before: T5Config, after: T5Config, *, bidirectional: bool
) -> Tensor:
    """Return a table (bucket, head) for the buckets of the configuration `after`.

    Every distance between tokens keeps the bias that it has in `table`.
    """
    # well into the last buckets, which hold all longer distances
    longest = 2 * after.relative_attention_max_distance
    distances = torch.arange(-longest, longest + 1)
    old_buckets, new_buckets = (
        T5Attention._relative_position_bucket(
            distances,
            bidirectional=bidirectional,
            num_buckets=config.relative_attention_num_buckets,
            max_distance=config.relative_attention_max_distance,
        )
        for config in (before, after)
    )
    finer = torch.zeros(
        after.relative_attention_num_buckets, table.shape[1], dtype=table.dtype
    )
    biases = table.cpu()[old_buckets]
    # where distances of one new bucket have several biases, one overwrites the others
    finer[new_buckets] = biases
    if not torch.equal(finer[new_buckets], biases):
        sizes = {name: getattr(after, name) for name in BUCKETS}
        raise InputError(
            f"a bucket of {sizes} holds distances of two of the model's buckets, whose"
            " biases differ"
        )
    return finer


def ordinal_embedding(
    tokens: int,
    width: int,
    first_bin: int,
    generator: torch.Generator,
    *,
    finest: float,
) -> torch.Tensor:
    """Draw an embedding (tokens, width) in which near value bins are near.

    Tokens from ``first_bin`` on are value bins. They get Fourier features of their
    number, with wavelengths from twice the vocabulary down to ``finest`` bins.
    """
    table = torch.randn(tokens, width, generator=generator)
    bins = torch.arange(tokens - first_bin, dtype=torch.float32)
    wavelengths = torch.logspace(np.log10(2.0 * tokens), np.log10(finest), width // 2)
    angle = 2 * torch.pi * bins[:, None] / wavelengths[None]
    features = 2**0.5 * torch.cat([torch.sin(angle), torch.cos(angle)], dim=1)
    table[first_bin:] = features + EMBEDDING_NOISE * table[first_bin:]
    return table


def _draw_native(recipe: TrainingRecipe) -> PreTrainedModel:
    """Draw the native model of a recipe, before any restriction.

    The patch embeddings are drawn anew, as the native initialisation ignores their
    number of inputs; so is the embedding of tokens. The recipe's biases are added.
    """
    config = T5Config(**recipe.config)
    if recipe.kind == "patch":
        model = ChronosBoltModelForForecasting(config)
        for block in (model.input_patch_embedding, model.output_patch_embedding):
            for linear in (
                block.hidden_layer,
                block.output_layer,
                block.residual_layer,
            ):
                nn.init.normal_(linear.weight, std=0.5 * linear.in_features**-0.5)
    else:
        model = T5ForConditionalGeneration(config)
        first_bin = recipe.config["chronos_config"]["n_special_tokens"] + 1
        model.shared.weight.data.copy_(
            ordinal_embedding(
                config.vocab_size,
                config.d_model,
                first_bin,
                torch.Generator().manual_seed(recipe.seed),
                finest=recipe.finest,
            )
        )
    with torch.no_grad():
        for stack, entries in (
            (model.encoder, recipe.encoder_bias),
            (model.decoder, recipe.decoder_bias),
        ):
            bias = stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight
            for bucket, head, logit in entries:
                bias[bucket, head] += logit
    return model


def build_model(recipe: TrainingRecipe, step: int = 0) -> PreTrainedModel:
    """Build the untrained native model of `recipe` from its seed.

    Its widths are those of the phase of `step`.
    """
    torch.manual_seed(recipe.seed)
    model = _draw_native(
        recipe.model_copy(update={"config": recipe.select_config(step)})
    )
    if recipe.vocabulary_rank is not None:
        fix_vocabulary(model, recipe.vocabulary_rank, seed=recipe.seed)
    if recipe.attention_rank is not None:
        factorise_attention(model, recipe.attention_rank)
    if recipe.attention_levels:
        score_by_levels(model, recipe.attention_levels)
    return model
