"""Chronos-2: attention over time and, at each token, over the series of a group.

It is an encoder over patches. Read :class:`Chronos2Adapter` first. The categories of a
covariate become the numbers that the library's own preprocessing gives them
(``_encode_categories``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.wiring import Attention, Site, Stack, Wiring
from tsfm_lens.models import cards
from tsfm_lens.models.adapter import ALL_DTYPES, Adapter
from tsfm_lens.models.architecture import (
    Architecture,
    Encoded,
    Levels,
    Prediction,
    declare_row_independent,
    register,
)
from tsfm_lens.models.arguments import DECILES
from tsfm_lens.models.wirings import _common, t5
from tsfm_lens.models.wirings._common import (
    attention_row,
    copied,
    keys,
    mlp_row,
    projections,
)

KEYS = t5.KEYS | keys(
    "attn_implementation rope_theta",
    chronos_config=keys(
        "context_length input_patch_size input_patch_stride max_output_patches"
        " output_patch_size quantiles time_encoding_scale use_arcsinh use_reg_token"
    ),
)


def _attention(kind: str, sublayer: int, *, by_group: bool) -> Attention:
    at = f"layer.{sublayer}.self_attention"
    fields: dict[str, Any] = {
        "reads": Site(f"layer.{sublayer}", "in", 0),
        "norm": f"layer.{sublayer}.layer_norm",
    }
    if by_group:
        # the library transposes the stream here: series attend to series at each token
        fields |= {
            "stream": "pos batch d_model",
            "z_layout": "pos batch (head d_head)",
            "qkv_layout": "pos head batch d_head",
            "pattern_layout": "pos head query key",
            "over": "variate",
        }
    return attention_row(kind, at, projections(f"{at}.{{}}", "q k v o"), **fields)


def _wiring(config: Any, patch: int) -> Wiring:
    mlp = mlp_row(
        "layer.2.mlp",
        "layer.2",
        ("layer.2.mlp.wi", "layer.2.mlp.wo"),
        config.dense_act_fn,
        norm="layer.2.layer_norm",
    )
    stack = Stack(
        "",
        "encoder.block",
        n_layers=config.num_layers,
        n_heads=config.num_heads,
        d_model=config.d_model,
        d_head=config.d_kv,
        d_mlp=config.d_ff,
        writers=(
            _attention("time_attn", 0, by_group=False),
            _attention("group_attn", 1, by_group=True),
            mlp,
        ),
        ln_final="encoder.final_layer_norm",
    )
    unembed = Site("output_patch_embedding", layout="batch pos d_out")
    return Wiring("chronos-2", (stack,), unembed, "input_patch_embedding", patch)


class Chronos2Adapter(Adapter):
    """Adapter of a ``Chronos2Pipeline``.

    Each variate is one row of the batch, and the rows of an item share a group id.
    """

    architecture = "chronos-2"
    rollout = "refeed"
    multivariate = True
    covariates = ("past", "known", "categories")
    # attention over series compares all pairs of rows, even of different groups, so its
    # cost grows with the square of their number: a thousand rows took 20 GB, and five
    # times as long as in parts
    rows_at_once = 128
    package = "chronos-forecasting"
    unrolled = DECILES
    dtypes = ALL_DTYPES

    def __init__(self, native: Any) -> None:
        self.native = native
        self.model = native.model
        self.settings = self.model.chronos_config
        self.patch = int(self.settings.output_patch_size)
        self.context_length = int(self.settings.context_length)
        self.prediction_length = int(self.settings.max_output_patches) * self.patch
        self.levels = tuple(float(level) for level in self.settings.quantiles)
        self.wiring = _wiring(self.model.config, self.prediction_length)

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Pad contexts on the left, and append a token for each patch to forecast.

        These patches hold the future of known covariates, and no values in other rows.

        Returns:
            The encoded batch.
        """
        numbered = self.numbered(batch)
        context = _common.padded(numbered, self.longest(batch)).to(self.device)
        steps = self.prediction_length if horizon is None else horizon
        # horizon and context are rounded up to whole patches
        n_future = -(-steps // self.patch)
        width = int(self.settings.input_patch_size)
        stride = int(self.settings.input_patch_stride)
        length = width * -(-context.shape[1] // width)
        n_context = (length - width) // stride + 1
        special = ("REG",) if self.settings.use_reg_token else ()
        # steps count from the start of the forecast
        spans = TokenSpans.patches(-length, n_context, width, special, stride=stride)
        spans += TokenSpans.patches(0, n_future, self.patch)
        _, (loc, scale) = self.model.instance_norm(context)
        inputs = {
            "context": context,
            "group_ids": torch.as_tensor(batch.group_index, device=self.device),
            "num_output_patches": n_future,
        }
        if batch.has_covariates:
            inputs["future_covariates"] = (
                torch.tensor(numbered.known_future(steps)).float().to(self.device)
            )
        # copies of a batch must not attend to each other's series
        ids = ("group_ids",)
        return Encoded(
            inputs,
            {"": spans},
            loc[:, 0],
            scale[:, 0],
            batch,
            horizon=n_future * self.patch,
            ids=ids,
        )

    def numbered(self, batch: SeriesBatch) -> SeriesBatch:
        """Replace the categories of covariates by the numbers that the library gives.

        Beside one target, a category becomes the smoothed mean of the target where it
        occurs; beside several, it keeps its code.

        Returns:
            The batch with numbers only.
        """
        if not any(batch.categories):
            return batch
        values = list(batch.values)
        futures = list(batch.futures)
        for group in np.unique(batch.group_index):
            rows = np.flatnonzero(batch.group_index == group)
            # a category's number depends on the targets of its own item alone
            targets = [
                batch.values[row] for row in rows if batch.roles[row] == "target"
            ]
            for row in rows:
                if batch.categories[row] is not None:
                    values[row], futures[row] = _encode_categories(
                        batch, int(row), np.stack(targets)
                    )
        return replace(
            batch,
            values=tuple(values),
            futures=tuple(futures),
            categories=(None,) * len(batch),
        )

    def with_level_numbers(self, batch: SeriesBatch) -> SeriesBatch:
        """Fix the number of each category before the history is cut to the context.

        The library computes these numbers from the whole history.

        Returns:
            The batch with its ``level_numbers``.
        """
        numbered = self.numbered(batch)
        tables: list[np.ndarray | None] = []
        for row, levels in enumerate(batch.categories):
            if levels is None:
                tables.append(None)
                continue
            # the last row is that of a missing value
            table = np.full(len(levels) + 1, np.nan)
            parts = ((batch.values, numbered.values), (batch.futures, numbered.futures))
            for codes, numbers in parts:
                row_codes = codes[row]
                if row_codes is not None:
                    table[_table_rows(row_codes, levels)] = numbers[row]
            tables.append(table)
        return replace(batch, level_numbers=tuple(tables))

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute quantiles in data units, (batch, quantile, step)."""
        result: Tensor = self.model(**inputs).quantile_preds
        return result

    @declare_row_independent
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None
    ) -> Prediction:
        """Run the pipeline for its own quantiles, all items in one native batch."""
        # 256 is the library's default. It counts rows, and a larger batch would be
        # split into native calls whose padding differs.
        rows = max(256, len(batch))
        numbered = self.numbered(batch)
        inputs: Any = self.lengthened(_common.items(numbered))
        if batch.has_covariates:
            inputs = prepared(numbered, inputs, horizon)
        items = self.native.predict(inputs, prediction_length=horizon, batch_size=rows)
        quantiles = torch.cat(items).transpose(1, 2)
        return self.at(quantiles, levels)

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute quantiles in data units, (…, batch, quantile, step)."""
        n_future = encoded.inputs["num_output_patches"]
        flat = self.model.output_patch_embedding(normalized[..., -n_future:, :])
        # as the library, which goes back to data units in single precision
        wide = flat.to(torch.promote_types(flat.dtype, torch.float32))
        raw = rearrange(wide, "... n (q p) -> ... q (n p)", q=len(self.levels))
        return encoded.in_data_units(
            torch.sinh(raw) if self.settings.use_arcsinh else raw
        )


def prepared(
    batch: SeriesBatch, contexts: list[Tensor], horizon: int
) -> list[dict[str, Any]]:
    """Prepare items as the library does, but with every row declared a target.

    The library then forecasts covariates too. Each context is (time,) or (row, time).

    Returns:
        The library's inputs of each item.
    """
    sizes = np.bincount(batch.group_index).tolist()
    futures = torch.tensor(batch.known_future(horizon)).float().split(sizes)
    pasts = [context.float().reshape(-1, context.shape[-1]) for context in contexts]
    counts = {"n_covariates": 0, "n_future_covariates": 0}
    return [
        {"context": past, "future_covariates": future, "n_targets": len(past), **counts}
        for past, future in zip(pasts, futures, strict=True)
    ]


def _encode_categories(
    batch: SeriesBatch, row: int, targets: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return past and future of a covariate with the library's number per category.

    ``targets`` are those of its item, (target, time).
    """
    from chronos.chronos2.preprocess import from_list_of_dicts

    levels = batch.categories[row] or ()
    past = batch.values[row]
    future = batch.futures[row]
    table = batch.level_numbers[row]
    if table is not None:
        if future is not None:
            future = table[_table_rows(future, levels)]
        return table[_table_rows(past, levels)], future
    if len(targets) > 1:
        _refuse_unseen(batch, row)
        # the code after the last category is that of a missing value
        return np.nan_to_num(past, nan=len(levels)), future
    # a missing value, as code -1, picks the last name, which is None
    names = np.array([*levels, None], dtype=object)
    past_names = names[np.nan_to_num(past, nan=-1).astype(int)]
    item: dict[str, Any] = {
        "target": targets,
        "past_covariates": {"covariate": past_names},
    }
    if future is None or not len(future):
        result = from_list_of_dicts([item], prediction_length=1)[0]
        return result["context"][-1].double().numpy(), future
    item["future_covariates"] = {"covariate": names[future.astype(int)]}
    result = from_list_of_dicts([item], prediction_length=len(future))[0]
    return (
        result["context"][-1].double().numpy(),
        result["future_covariates"][-1].double().numpy(),
    )


def _table_rows(codes: np.ndarray, levels: Sequence[str]) -> np.ndarray:
    """Return the rows of codes in a table of levels whose last row is for NaN."""
    result: np.ndarray = np.nan_to_num(codes, nan=len(levels)).astype(int)
    return result


def _refuse_unseen(batch: SeriesBatch, row: int) -> None:
    """Refuse a category of a covariate's future that occurs in no item's past.

    Beside several targets there is no mean of a target to use as its number.
    """
    pasts = [
        values
        for values, name in zip(batch.values, batch.variates, strict=True)
        if name == batch.variates[row]
    ]
    seen = np.unique(np.concatenate(pasts))
    future = batch.futures[row]
    levels = batch.categories[row] or ()
    unseen = []
    if future is not None:
        unseen = [levels[int(code)] for code in future if code not in seen]
    if unseen:
        past = ", ".join(levels[int(code)] for code in seen[np.isfinite(seen)])
        raise InputError(
            f"the future of known covariate {batch.ids[row]!r} has the category"
            f" {unseen[0]!r}, which no past has ({past}); beside several targets the"
            " model has no number for it, so give one target, or a category of the"
            " past"
        )


def _library() -> Any:
    return import_module("chronos.chronos2")


register(
    Architecture(
        **cards.CARDS["chronos-2"].fields,
        classes=("Chronos2Pipeline", "Chronos2Model"),
        keys=KEYS,
        values=t5.VALUES | {"architectures": ["Chronos2Model"]},
        blank=lambda config: _library().Chronos2Model(
            _library().config.Chronos2CoreConfig.from_dict(copied(config))
        ),
        adapter=Chronos2Adapter,
        **t5.pipeline("Chronos2Pipeline"),
    )
)
