"""Widening of a model that computes the same as before, so that training goes on from its state."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from chronos.chronos_bolt import ChronosBoltModelForForecasting
from torch import Tensor
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention

from tsfm_lens.errors import InputError, unknown_name

__all__ = ["widened"]

WIDTHS = ("d_model", "d_kv", "d_ff")
BUCKETS = ("relative_attention_num_buckets", "relative_attention_max_distance")
NEW_SHARE = 0.5
"""Standard deviation of new weights, of that of the old ones of their matrix."""


def widened(model: PreTrainedModel, changes: Mapping[str, Any], *, seed: int) -> PreTrainedModel:
    """Widen a model to one with the same logits or quantiles, up to the epsilon of its norms and their rounding.

    Random weights read the new directions of the residual stream and the new features of heads and feed-forward layers;
    no weights write them. So they are 0 at first and have gradients from the first step on. Gains of norms make up for
    the root mean square over more entries. The last norm of a token model needs no such gain: T5 scales the logits of a
    shared embedding by the width. A finer table of relative positions begins with the coarser one's values.

    Source:
        Net2Net (Chen et al. 2016) widens by copies; zeros at the writers keep the model as well and break no symmetry.

    Args:
        model: a T5 that shares its embedding with its logits, or a Chronos-Bolt.
        changes: new values of "d_model", "d_kv", "d_ff", "relative_attention_num_buckets" and
            "relative_attention_max_distance", each at least the old one.
        seed: of the new weights.

    Returns:
        The wider model, with the mode of the old one; that one stays as it was.

    Raises:
        InputError: the model is of another kind, a value is below the old one, or a new bucket would hold distances
            of two old ones.
        UnknownNameError: an entry that cannot change.
    """
    if not isinstance(model, T5ForConditionalGeneration | ChronosBoltModelForForecasting):
        raise InputError(f"only Chronos and Chronos-Bolt are widened, not {type(model).__name__}")
    for name, value in changes.items():
        if name not in (*WIDTHS, *BUCKETS):
            raise unknown_name("entry that can grow", name, [*WIDTHS, *BUCKETS])
        if value < getattr(model.config, name):
            raise InputError(f"{name}={value} is below the model's {getattr(model.config, name)}; a model only grows")
    config = T5Config(**copy.deepcopy(model.config.to_dict()) | dict(changes))
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        wider = type(model)(config).to(model.dtype)
    old, weights = model.state_dict(), wider.state_dict()
    for name in old:
        if "relative_attention_bias" in name:
            weights[name] = _finer_table(old[name], model.config, config, bidirectional=name.startswith("encoder"))
        else:
            same_gain = isinstance(model, T5ForConditionalGeneration) and name == "decoder.final_layer_norm.weight"
            shape = weights[name].shape
            weights[name] = _wider(name, old[name].cpu(), shape, model.config, generator, same_gain=same_gain)
    wider.load_state_dict(weights)
    return wider.to(model.device).train(model.training)


def _wider(
    name: str, old: Tensor, shape: torch.Size, config: T5Config, generator: torch.Generator, *, same_gain: bool
) -> Tensor:
    """Return the weight `old` in the corner of one of `shape`."""
    kind, heads = name.split(".")[-2], config.num_heads
    if name.endswith("bias"):
        return torch.cat([old, old.new_zeros(shape[0] - len(old))])
    random = NEW_SHARE * old.std() * torch.randn(shape, generator=generator, dtype=old.dtype)
    if old.ndim == 1:
        gain = 1.0 if same_gain else (len(old) / shape[0]) ** 0.5
        return torch.cat([gain * old, old.new_full((shape[0] - len(old),), gain)])
    if kind in ("q", "k", "v"):
        new = random.view(heads, -1, shape[1])
        new[:, : config.d_kv, : config.d_model] = old.view(heads, config.d_kv, -1)
        if kind == "k":
            # a new feature of the scores is 0 until its key is learnt
            new[:, config.d_kv :] = 0.0
        return new.reshape(shape)
    new = random if kind in ("wi", "hidden_layer") else torch.zeros(shape, dtype=old.dtype)
    if kind == "o":
        new = new.view(shape[0], heads, -1)
        new[: config.d_model, :, : config.d_kv] = old.view(-1, heads, config.d_kv)
        return new.reshape(shape)
    new[: old.shape[0], : old.shape[1]] = old
    return new


def _finer_table(table: Tensor, before: T5Config, after: T5Config, *, bidirectional: bool) -> Tensor:
    """Return biases (bucket, head) of `after` that give every distance the bias that it had."""
    reach = 2 * after.relative_attention_max_distance
    distances = torch.arange(-reach, reach + 1)
    old, new = (
        T5Attention._relative_position_bucket(
            distances,
            bidirectional=bidirectional,
            num_buckets=config.relative_attention_num_buckets,
            max_distance=config.relative_attention_max_distance,
        )
        for config in (before, after)
    )
    finer = torch.zeros(after.relative_attention_num_buckets, table.shape[1], dtype=table.dtype)
    finer[new] = table.cpu()[old]
    if not torch.equal(finer[new], table.cpu()[old]):
        sizes = {name: getattr(after, name) for name in BUCKETS}
        raise InputError(f"a bucket of {sizes} holds distances of two of the model's buckets, whose biases differ")
    return finer
