"""Moirai 1.1-R: an encoder over all variates of an item, with a mixture as head.

The encoder is bidirectional, the mixture of four distributions. Read
:class:`MoiraiAdapter` first; packing and the wiring table are shared with
:mod:`tsfm_lens.models.wirings.moirai_2`.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.core.errors import CheckpointError, InputError, WiringError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.wiring import Site, Wiring
from tsfm_lens.models import cards
from tsfm_lens.models.architecture import (
    Architecture,
    Encoded,
    Levels,
    Prediction,
    declare_row_independent,
    register,
)
from tsfm_lens.models.wirings import _common, moirai_2
from tsfm_lens.models.wirings._common import copied, keys

NAME = "moirai-1.1"
KEYS = keys(
    "attn_dropout_p d_model distr_output dropout_p max_seq_len num_layers patch_sizes"
    " scaling"
)
TARGET = re.compile(r"uni2ts\.distribution(\.[a-z_]+)?\.[A-Z][A-Za-z]*Output")
# patch size of models that leave the choice to the library
PATCH = 32


class MoiraiAdapter(moirai_2.PackedAdapter):
    """Adapter of a ``MoiraiModule`` at one patch size.

    It also takes a ``MoiraiForecast``, of which it opens the module.
    """

    architecture = NAME
    readout = "distribution"
    levels = (0.5,)
    # uni2ts draws (sample, item, …)
    draw_axis = 1
    prediction_length = 64
    longest_pass = 1024

    def __init__(self, native: Any) -> None:
        self.native = native
        self.model = getattr(native, "module", native)
        hparams = getattr(native, "hparams", {})
        patch = hparams.get("patch_size")
        self.prediction_length = int(
            hparams.get("prediction_length", self.prediction_length)
        )
        self.context_length = int(hparams.get("context_length", self.context_length))
        self.samples = int(hparams.get("num_samples", 100))
        # under "auto" the library tries every size on the series; a wiring needs one
        nearest = min(self.model.patch_sizes, key=lambda size: abs(size - PATCH))
        self.patch = patch if isinstance(patch, int) else nearest
        mixture = Site(
            "param_proj", "out", "weights_logits", "batch pos patch_step component"
        )
        self.wiring = Wiring(
            NAME,
            (moirai_2.describe_stack(self.model),),
            mixture,
            "in_proj",
            self.prediction_length,
        )

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Pack one sequence per item, tokens of one patch size."""
        encoded = super().encode(batch, horizon)
        encoded.inputs["patch_size"] = torch.full_like(
            encoded.inputs["time_id"], self.patch
        )
        return encoded

    def library_input(
        self, batch: SeriesBatch, horizon: int
    ) -> tuple[Any, dict[str, Tensor]]:
        """Return a ``MoiraiForecast`` and its arguments."""
        if self.patch not in self.model.patch_sizes:
            raise InputError(
                f"patch {self.patch} is none of the model's sizes"
                f" {tuple(self.model.patch_sizes)}"
            )
        length = self.longest(batch)
        roles = batch.roles[: batch.n_variates]
        forecast = self.forecaster(
            _library().MoiraiForecast,
            roles,
            prediction_length=horizon,
            context_length=length,
            patch_size=self.patch,
            # that of a call counts, see predict
            num_samples=100,
        )
        return forecast, moirai_2.native_input(batch, length, horizon, self.device)

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute the mean of the mixture.

        Returns:
            Means in data units, (batch, 1, step), of whole patches; covariates are NaN.
        """
        native = {name: value for name, value in inputs.items() if name != "layout"}
        return self._future(self.model(**native).mean, inputs["layout"])

    def _future(self, per_token: Tensor, layout: moirai_2.Layout) -> Tensor:
        """Turn (…, item, pos, patch) into (…, item · variate, 1, step)."""
        n_targets = len(layout.targets)
        # the contexts of all targets come first, then their futures
        start = n_targets * layout.n_context
        stop = start + n_targets * layout.n_future
        # tokens of every size are padded to the largest patch size
        future = per_token[..., start:stop, : self.patch]
        by_variate = future.unflatten(-2, (n_targets, -1)).flatten(-2)
        rows = by_variate.flatten(-3, -2).unsqueeze(-2)
        return _common.with_covariates(rows, layout.roles, -3)

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute the mean in data units, (…, batch, 1, step)."""
        # the projection has a matrix for each patch size, chosen by token
        sizes = encoded.inputs["patch_size"].expand(normalized.shape[:-1])
        parameters = self.model.param_proj(normalized, sizes)
        mixture = self.model.distr_output.distribution(
            parameters, loc=encoded.stats["loc"], scale=encoded.stats["scale"]
        )
        return self._future(mixture.mean, encoded.inputs["layout"])

    @declare_row_independent
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None
    ) -> Prediction:
        """Draw sample paths, and take their empirical quantiles.

        They come from one masked pass of ``MoiraiForecast.forward``.

        Returns:
            Quantiles, mean and paths, in data units.
        """
        forecast, inputs = self.library_input(batch, horizon)
        draws = self.samples if num_samples is None else num_samples
        with torch.no_grad():
            paths = forecast(**inputs, num_samples=draws).cpu()
        # the library drops the axis of a single variate
        if paths.ndim < 4:
            paths = paths.unsqueeze(-1)
        roles = batch.roles[: batch.n_variates]
        samples = paths.permute(0, 3, 1, 2).flatten(0, 1)
        return self.of_paths(_common.with_covariates(samples, roles, 0), levels)


def _check(config: Mapping[str, Any], where: str) -> None:
    """Refuse output distributions that are not of uni2ts.

    The loader calls whatever a ``_target_`` names, with its arguments.
    """
    nodes: list[Any] = [config.get("distr_output")]
    for node in nodes:
        target = None
        if isinstance(node, Mapping):
            target = node.get("_target_")
        if not isinstance(target, str) or not TARGET.fullmatch(target):
            raise WiringError(
                f"{where} has {reprlib.repr(node)} as output distribution; expected a"
                " class of uni2ts.distribution"
            )
        parts = node.get("components", ())
        # the list grows while it is walked, so that parts of parts are checked, too
        if isinstance(parts, list):
            nodes += parts
        elif parts:
            nodes.append(parts)
        for key, value in node.items():
            is_positive = type(value) in (int, float) and value > 0
            is_argument = key.isidentifier() and key[0] != "_" and is_positive
            if key not in ("_target_", "components") and not is_argument:
                raise CheckpointError(
                    f"{where} has distr_output.{key}={reprlib.repr(value)}, expected a"
                    " number above 0"
                )


def _blank(config: Mapping[str, Any]) -> Any:
    library = moirai_2.LIBRARY.require("uni2ts.model.moirai.module")
    distribution = library.decode_distr_output(copied(config["distr_output"]))
    return library.MoiraiModule(**{**config, "distr_output": distribution})


def _library() -> Any:
    return moirai_2.LIBRARY.require("uni2ts.model.moirai")


register(
    Architecture(
        **cards.CARDS[NAME].fields,
        classes=("MoiraiModule", "MoiraiForecast"),
        keys=KEYS,
        check=_check,
        open=lambda folder, dtype, device: (
            _library()
            .MoiraiModule.from_pretrained(folder, strict=True)
            .to(device, dtype)
        ),
        blank=_blank,
        adapter=MoiraiAdapter,
    )
)
