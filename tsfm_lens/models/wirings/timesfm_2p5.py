"""TimesFM 2.5 in Google's own package: a decoder whose branches end in a norm.

It is a decoder over patches with a key-value cache. Read :class:`TimesFmAdapter` first.
:func:`cleaned`, :func:`patched` and :func:`deciles` are shared with the port of the
model in transformers. :func:`shared_prefixes` computes once what the contexts of
several rows have in common.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.replay import shadowed
from tsfm_lens.hooks.wiring import Mlp, Projection, Site, Stack, Wiring
from tsfm_lens.models import cards
from tsfm_lens.models.adapter import Adapter
from tsfm_lens.models.architecture import (
    Architecture,
    Encoded,
    Levels,
    Prediction,
    declare_row_independent,
    in_data_units,
    register,
)
from tsfm_lens.models.arguments import DECILES
from tsfm_lens.models.wirings._common import (
    attention_row,
    fused,
    mlp_row,
)

LIBRARY = cards.TIMESFM


def branches(norms: tuple[str, str]) -> dict[str, Any]:
    """Return the fields of an attention between the norms before and after it."""
    # what the branch writes into the stream is the output of the second norm
    return {"write": norms[1], "norm": norms[0], "post_norm": norms[1]}


def describe_mlp(
    norms: tuple[str, str],
    layers: tuple[str, str],
    act: str,
    stream: str = "batch pos d_model",
) -> Mlp:
    """Describe an MLP by the names of the norms around it and of its two layers.

    ``act`` is the activation function as the library names it.

    Returns:
        The row of the wiring.
    """
    name = {"swish": "silu", "none": "linear"}.get(act, act)
    rest: dict[str, Any] = {"norm": norms[0], "post_norm": norms[1], "aside": True}
    return mlp_row(norms[1], norms[0], layers, name, stream=stream, **rest)


def cleaned(batch: SeriesBatch) -> list[np.ndarray]:
    """Return the series without leading NaN, and with other gaps interpolated.

    ``timesfm`` does the same. The arrays are copies.
    """
    complete = []
    for series in batch.values:
        is_value = ~np.isnan(series)
        # argmax() finds the first True; a batch holds no series without a value
        first = int(np.argmax(is_value))
        index = np.arange(len(series))
        filled = np.interp(index, index[is_value], series[is_value])
        complete.append(filled[first:])
    return complete


def patched(batch: SeriesBatch, length: int, patch: int) -> tuple[Tensor, Tensor]:
    """Return values and masks of the last steps, (batch, time), in whole patches.

    There are ``length`` steps, rounded up. Series are padded with 0 at the front; masks
    are True where there is padding.
    """
    width = -(-length // patch) * patch
    values = torch.zeros(len(batch), width)
    masks = torch.ones_like(values, dtype=torch.bool)
    for row, mask, series in zip(values, masks, cleaned(batch), strict=True):
        tail = torch.as_tensor(series[-width:], dtype=torch.float32)
        row[width - len(tail) :] = tail
        mask[width - len(tail) :] = False
    return values, masks


def running_statistics(
    patches: Tensor, masks: Tensor, update: Callable[..., tuple[Tensor, Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Compute mean and standard deviation of the values up to each patch.

    Both are (batch, patch). ``update`` is the library's function for one more patch.

    Returns:
        Means and standard deviations, (batch, patch) each.
    """
    # patch by patch, since the library's own update rounds differently from a
    # cumulative sum over the whole context
    # number, mean and deviation of the values so far
    n, mu, sigma = (torch.zeros(len(patches), device=patches.device) for _ in range(3))
    means = []
    deviations = []
    for index in range(patches.shape[1]):
        n, mu, sigma = update(n, mu, sigma, patches[:, index], masks[:, index])
        means.append(mu)
        deviations.append(sigma)
    return torch.stack(means, dim=1), torch.stack(deviations, dim=1)


def deciles(flat: Tensor, horizon: int, mu: Tensor, sigma: Tensor) -> Tensor:
    """Turn the raw output of an output head into quantiles in data units.

    The output ``flat`` is (…, batch, horizon · 10), the result (…, batch, quantile,
    step).

    Returns:
        The quantiles in data units, (…, batch, quantile, step).
    """
    by_step = flat.reshape(*flat.shape[:-1], horizon, -1)
    # entry 0 of the ten is the mean
    return in_data_units(by_step[..., 1:].transpose(-1, -2), mu, sigma)


def shared_prefixes(model: Any, prefixes: np.ndarray) -> AbstractContextManager[None]:
    """Let a native module compute the common prefixes of rows once, inside the block.

    ``prefixes`` (row, patch) are numbers: rows with the same number at a patch are
    equal up to its end.

    Returns:
        A block in which the module does so.
    """

    def forward(inputs: Tensor, masks: Tensor, decode_caches: Any = None) -> Any:
        plain = type(model).forward
        # only the first pass (empty cache) reads contexts; later ones read forecasts
        is_prefill = (
            decode_caches is not None and int(decode_caches[0].next_index[0]) == 0
        )
        if (
            not is_prefill
            or len(inputs) != len(prefixes)
            or inputs.shape[1] < prefixes.shape[1]
        ):
            return plain(model, inputs, masks, decode_caches)
        # the library may pad further patches in front; these are equal in all rows, so
        # they may take the numbers of the first patch
        padding = inputs.shape[1] - prefixes.shape[1]
        numbers = np.concatenate(
            [np.repeat(prefixes[:, :1], padding, axis=1), prefixes], axis=1
        )
        return _in_pieces(model, inputs, masks, decode_caches, numbers)

    return shadowed([(model, lambda _plain: forward)])


def _in_pieces(
    model: Any, inputs: Tensor, masks: Tensor, caches: Any, prefixes: np.ndarray
) -> Any:
    """Compute the outputs and caches of all rows, piece by piece (:func:`pieces`).

    Of rows that are equal up to the end of a piece, only one is computed.

    Returns:
        What the module returns for all rows.
    """
    outputs: list[tuple[Tensor, ...]] = []
    # for each row of the batch, the row that stands for it in the caches so far; at
    # first that is row 0, as all caches are empty
    previous = np.zeros(len(inputs), dtype=int)
    state = caches
    for start, stop in pieces(prefixes):
        # the first row of each group of equal rows, and the group of each row
        _, firsts, group = np.unique(
            prefixes[:, stop - 1], return_index=True, return_inverse=True
        )
        rows, group_of_row = (
            torch.as_tensor(indices.reshape(-1), device=inputs.device)
            for indices in (firsts, group)
        )
        state = [_rows(cache, previous[firsts]) for cache in state]
        # the forward of the class, since the model's own is replaced inside the block
        results, state = type(model).forward(
            model, inputs[rows, start:stop], masks[rows, start:stop], state
        )
        outputs.append(tuple(result[group_of_row] for result in results))
        previous = group.reshape(-1)
    full = tuple(torch.cat(parts, dim=1) for parts in zip(*outputs, strict=True))
    return full, [_rows(cache, previous) for cache in state]


def _rows(cache: Any, rows: np.ndarray) -> Any:
    """Return a cache of some rows, a copy that can be written to."""
    parts = {
        name: part[torch.as_tensor(rows, device=part.device)]
        for name, part in vars(cache).items()
    }
    return type(cache)(**parts)


def pieces(prefixes: np.ndarray) -> list[tuple[int, int]]:
    """Return ranges of patches, (start, stop), in which no two rows begin to differ.

    Rows that are equal at the first patch of a range are equal at its last.
    """
    # Rows begin to differ where the number of distinct prefixes grows. It never falls,
    # since prefixes that differ once differ at all later patches.
    counts = [len(np.unique(column)) for column in prefixes.T]
    splits = [
        index for index in range(1, len(counts)) if counts[index] > counts[index - 1]
    ]
    return list(pairwise([0, *splits, len(counts)]))


NAME = "timesfm-2.5"


def _cache_length(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return how many patches a pass finds in its cache."""
    if len(args) > 2:
        caches = args[2]
    else:
        caches = kwargs.get("decode_caches")
    if caches is None:
        return 0
    # the same for all layers and rows
    return int(caches[0].next_index[0])


def _wiring(model: Any) -> Wiring:
    """Describe the library's module."""
    matrices = fused("attn.qkv_proj", "(part head d_head)", Projection("attn.out"))
    attention = attention_row(
        "attn", "attn", matrices, **branches(("pre_attn_ln", "post_attn_ln"))
    )
    act = {"ReLU": "relu", "SiLU": "swish", "Identity": "none"}[
        type(model.stacked_xf[0].activation).__name__
    ]
    mlp = describe_mlp(("pre_ff_ln", "post_ff_ln"), ("ff0", "ff1"), act)
    d_mlp = model.stacked_xf[0].ff0.out_features
    stack = Stack(
        "",
        "stacked_xf",
        n_layers=model.x,
        n_heads=model.h,
        d_model=model.md,
        d_head=model.hd,
        d_mlp=d_mlp,
        writers=(attention, mlp),
        upstream=("tokenizer",),
        cached=_cache_length,
    )
    unembed = Site("output_projection_point", layout="batch pos d_out")
    # the library calls this output head in every pass, while our run() does not read it
    unread = ("output_projection_quantiles",)
    return Wiring(
        NAME, (stack,), unembed, "tokenizer", steps_per_readout=model.o, unread=unread
    )


class TimesFmAdapter(Adapter):
    """Adapter of a ``TimesFM_2p5_200M_torch``.

    A single forward reads the point head, which gives the deciles of the next patch.
    """

    architecture = NAME
    rollout = "cache"
    levels = DECILES
    package = "timesfm"

    def __init__(self, native: Any) -> None:
        self.native = native
        self.model = native.model
        self.context_length = int(self.model.config.context_limit) - self.model.o
        self.prediction_length = int(self.model.o)
        self.wiring = _wiring(self.model)

    @property
    def passes(self) -> int:
        """Number of forwards of one forecast.

        It is 2 with the library's flip invariance, which averages over x and -x.
        """
        config = getattr(self.native, "forecast_config", None)
        if config is not None and config.force_flip_invariance:
            return 2
        return 1

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Normalise patches by running statistics, as the library's ``decode`` does."""
        from timesfm.torch import util

        patch = self.model.p
        values, masks = patched(batch, self.longest(batch), patch)
        patches = values.unflatten(1, (-1, patch)).to(self.device)
        masks = masks.unflatten(1, (-1, patch)).to(self.device)
        n_patches = patches.shape[1]
        mu, sigma = running_statistics(
            patches, masks, lambda *state: util.update_running_stats(*state)[0]
        )
        inputs = {
            "inputs": torch.where(masks, 0.0, util.revin(patches, mu, sigma)),
            "masks": masks,
            "mu": mu[:, -1],
            "sigma": sigma[:, -1],
        }
        spans = {"": TokenSpans.patches(-n_patches * patch, n_patches, patch)}
        return Encoded(inputs, spans, inputs["mu"], inputs["sigma"], batch)

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute deciles of the patch after the last one.

        Returns:
            Deciles in data units, (batch, quantile, step).
        """
        (_, _, output, _), _ = self.model(inputs["inputs"], inputs["masks"])
        return deciles(output[:, -1], self.model.o, inputs["mu"], inputs["sigma"])

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute deciles in data units, (…, batch, quantile, step)."""
        flat = self.model.output_projection_point(normalized[..., -1, :])
        return deciles(flat, self.model.o, encoded.loc, encoded.scale)

    @declare_row_independent
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None
    ) -> Prediction:
        """Run the library's ``forecast`` under the object's own configuration.

        If it has none, one is made that fits the batch and the horizon.

        Returns:
            Quantiles and mean, in data units.
        """
        # ``compile`` writes settings onto the object, so it is called on a copy. A
        # shallow one has the same module.
        native = copy.copy(self.native)
        # the library sends inputs to the device that the model had when it was made
        self.model.device = self.device
        native.compile(self._forecast_config(batch, horizon))
        # or the library would fill the batch up for every device
        native.global_batch_size = len(batch)
        _, values = native.forecast(horizon=horizon, inputs=cleaned(batch))
        quantiles = torch.from_numpy(np.ascontiguousarray(values))
        return self.at(quantiles[..., 1:], levels, mean=quantiles[..., 0])

    def _forecast_config(self, batch: SeriesBatch, horizon: int) -> Any:
        """Return the library's configuration of a forecast of the batch."""
        import timesfm

        config = getattr(self.native, "forecast_config", None)
        if config is not None:
            if horizon > config.max_horizon:
                raise InputError(
                    f"horizon {horizon} is longer than the max_horizon"
                    f" {config.max_horizon} that this model was compiled for; compile"
                    " it with a larger ForecastConfig.max_horizon"
                )
            # with a backcast, the output would begin with steps of the context
            return dataclasses.replace(
                config, per_core_batch_size=len(batch), return_backcast=False
            )
        limit = int(self.model.config.context_limit)
        if horizon > limit - self.model.p:
            raise InputError(
                f"horizon {horizon} is longer than the model's context limit of {limit}"
                " steps allows"
            )
        # The library rounds context and horizon up to whole patches, which together
        # have to stay within its limit.
        steps = -(-horizon // self.model.o) * self.model.o
        longest = -(-self.padded_length(batch) // self.model.p) * self.model.p
        return timesfm.ForecastConfig(
            max_context=min(longest, (limit - steps) // self.model.p * self.model.p),
            max_horizon=steps,
            normalize_inputs=True,
            # the library refuses this output head for a longer horizon
            use_continuous_quantile_head=steps <= self.model.os,
            force_flip_invariance=False,
            infer_is_positive=True,
            fix_quantile_crossing=True,
            per_core_batch_size=len(batch),
        )

    def sharing(self, prefixes: np.ndarray) -> AbstractContextManager[None]:
        """Compute the common prefixes of rows once; see :func:`shared_prefixes`."""
        return shared_prefixes(self.model, prefixes)

    def joined(
        self, calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Join the arguments of all passes of a rollout into those of one pass."""
        # each pass after the prefill has its new patches alone; the result has no cache
        patches = torch.cat([args[0] for args, _ in calls], dim=1)
        masks = torch.cat([args[1] for args, _ in calls], dim=1)
        return (patches, masks), {}


def wrap(module: Any) -> Any:
    """Build the library's forecaster around a module."""
    # without __init__, which would make another module of 200 million weights
    forecaster = LIBRARY.require().TimesFM_2p5_200M_torch
    native = forecaster.__new__(forecaster)
    native.model = module
    native.torch_compile = False
    return native


def _open(folder: Path, dtype: torch.dtype, device: str) -> Any:
    """Load the forecaster from a folder of weights."""
    # hooks do not act inside compiled modules
    native = LIBRARY.require().TimesFM_2p5_200M_torch.from_pretrained(
        folder, torch_compile=False
    )
    native.model.to(device=device, dtype=dtype).device = torch.device(device)
    return native


def module_class() -> Any:
    """Return the class of the torch module."""
    return LIBRARY.require(
        "timesfm.timesfm_2p5.timesfm_2p5_torch"
    ).TimesFM_2p5_200M_torch_module


register(
    Architecture(
        **cards.CARDS[NAME].fields,
        claims_tensors=lambda names: "stacked_xf.0.attn.qkv_proj.weight" in names,
        classes=("TimesFM_2p5_200M_torch", "TimesFM_2p5_200M_torch_module"),
        open=_open,
        # the library has no configuration file: sizes are part of its code
        blank=lambda config: module_class()(),
        adapter=TimesFmAdapter,
        wrap=lambda native: (
            wrap(native) if isinstance(native, torch.nn.Module) else native
        ),
    )
)
