"""Planted models in Chronos-2's format.

Rotary positions hold a time-attention head at a fixed lag; group attention carries a known covariate to the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from chronos import Chronos2Pipeline
from chronos.chronos2 import Chronos2Model
from chronos.chronos2.config import Chronos2CoreConfig
from torch import Tensor

from tsfm_lens.zoo.planted.draft import N_CENTRING, N_TRIALS, Array, Draft, Trials, declarer, draw_choice
from tsfm_lens.zoo.planted.patches import DECILES, FLAG, LOUD, PATCH, SHARP, SIGNAL, Head, Stream
from tsfm_lens.zoo.planted.rotary import HEADS, RotaryModel, declare_copies, plant_copy, rotary_query_and_key
from tsfm_lens.zoo.planted.rules import CovariateTimes, SeasonalCopy

NAME = "chronos-2"
CONTEXT = 128
WIDTH = 64
CHANNELS = 16
LAYERS = 3
AHEAD = 2
"""Patches of one forecast."""
HORIZON = AHEAD * PATCH
ONE = WIDTH**0.5
"""Length of the constant direction, which gives every token a root mean square of 1."""
KINDS = ("time_attn", "group_attn")
COVARIATE = "covariate"
"""Name of the covariate in the library's inputs."""
COEFFICIENTS = (-2, -1, 1, 2, 3)
"""Of the covariate, in halves."""


def _blank(*, arcsinh: bool) -> Chronos2Model:
    settings = {
        "context_length": CONTEXT,
        "input_patch_size": PATCH,
        "input_patch_stride": PATCH,
        "output_patch_size": PATCH,
        "max_output_patches": AHEAD,
        "quantiles": list(DECILES),
        "use_reg_token": True,
        "use_arcsinh": arcsinh,
        "time_encoding_scale": CONTEXT,
    }
    config = Chronos2CoreConfig(
        d_model=WIDTH,
        d_kv=CHANNELS,
        d_ff=WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        # the gain of the norms
        initializer_factor=1.0,
        dropout_rate=0.0,
        vocab_size=2,
        pad_token_id=0,
        reg_token_id=1,
        architectures=["Chronos2Model"],
        chronos_pipeline_class="Chronos2Pipeline",
        chronos_config=settings,
    )
    return Chronos2Model(config).double().eval()


class Chronos2(RotaryModel):
    """Chronos-2, to plant in; see the base class.

    The stream has also "known", `FLAG` times the share of the patch that is observed; "found" is read at the tokens to
    come.

    Args:
        arcsinh: pass standardised values through the inverse hyperbolic sine, as in the published model.
    """

    layers, channels = LAYERS, CHANNELS

    def __init__(self, *, arcsinh: bool) -> None:
        super().__init__(_blank(arcsinh=arcsinh), Stream(WIDTH, one=1, known=1, values=PATCH, found=PATCH))
        # a patch comes as its times, its values, and whether they are known
        linear = self.model.input_patch_embedding.residual_layer
        linear.weight[self.stream["values"], PATCH : 2 * PATCH] = SIGNAL * torch.eye(PATCH, dtype=torch.float64)
        linear.weight[self.stream["known"], 2 * PATCH :] = FLAG / PATCH
        self.model.shared.weight.zero_()[:, self.stream["one"]] = ONE

    def attentions(self) -> list[Any]:
        """Return the native attentions."""
        return [block.layer[place].self_attention for block in self.model.encoder.block for place in range(len(KINDS))]

    def mlps(self) -> list[tuple[list[Tensor], Tensor]]:
        """Return reading weights and writing weight of each MLP."""
        inside = [block.layer[2].mlp for block in self.model.encoder.block]
        return [([mlp.wi.weight], mlp.wo.weight) for mlp in inside]

    def blocks(self) -> tuple[Any, Any]:
        """Return the residual blocks of patches to the stream, and of the stream to a forecast."""
        return self.model.input_patch_embedding, self.model.output_patch_embedding

    def head(self, kind: str, layer: int, number: int) -> Head:
        """Return a head without its noise, all 0."""
        return self.head_of(self.attentions()[layer * len(KINDS) + KINDS.index(kind)], number).clear()

    def named(self, layer: int, number: int) -> str:
        """Name a time-attention head as a component."""
        return f"{layer}.time_attn.{number}"

    def back(self, layer: int, number: int, tokens: int) -> Head:
        """Return a time-attention head that attends, from every token, so many tokens back."""
        head = self.head("time_attn", layer, number)
        frequencies = self.attentions()[0].rope_embed.inv_freq
        far = CONTEXT // PATCH + 1 + AHEAD
        query, key = rotary_query_and_key(frequencies, tokens, far)
        # a pair is a channel and the one half of all channels further on
        head.q[:, self.stream["one"]] = query.T.reshape(-1, 1) / ONE
        head.k[:, self.stream["one"]] = key.T.reshape(-1, 1) / ONE
        return head

    def look_at_known(self, layer: int, number: int) -> Head:
        """Return a group-attention head that attends to the series whose values are known at this time."""
        head = self.head("group_attn", layer, number)
        head.q[-1, self.stream["one"]] = 1 / ONE
        # one known value of a patch is enough
        head.k[-1, self.stream["known"]] = PATCH * SHARP / FLAG
        return head


declare = declarer(NAME, "output_patch_embedding")


def _build_copy() -> tuple[Chronos2, Draft, int]:
    lag = draw_choice(2, 3, 4)
    # the REG token stands between the context and what is to come
    tokens = lag + 1
    chronos = Chronos2(arcsinh=True)
    draft = Draft(SeasonalCopy(period=lag * PATCH), (lag * PATCH, CONTEXT), HORIZON, squash=np.arcsinh)
    plant_copy(chronos, draft, tokens)
    return chronos, draft, tokens


def _plant_loud(chronos: Chronos2, draft: Draft) -> None:
    layer, number = LAYERS - 1, draw_choice(*range(HEADS))
    chronos.look_at_known(layer, number).carry(chronos.stream["found"], chronos.stream.rest("found"), gain=LOUD)
    task = f"writes {LOUD} times what is found to where nobody reads"
    draft.part(f"{layer}.group_attn.{number}", "decoy", task)


declare_copies(declare, _build_copy, _plant_loud)


def forecast_with(pipeline: Any, cases: Sequence[Array]) -> Array:
    """Compute the library's own forecast with a known covariate: (case, quantile, step)."""
    inputs = [
        {
            "target": case[0, :-HORIZON],
            "past_covariates": {COVARIATE: case[1, :-HORIZON]},
            "future_covariates": {COVARIATE: case[1, -HORIZON:]},
        }
        for case in cases
    ]
    forecasts = pipeline.predict(inputs, prediction_length=HORIZON)
    return np.asarray(torch.cat(forecasts).double().numpy())


def draw_cases(context: tuple[int, int], count: int, *, seed: int = 0) -> list[Array]:
    """Draw targets and covariates, (2, time) each: a walk and white noise in turn, on random levels and scales."""
    rng = np.random.default_rng(seed)
    cases = []
    for number in range(count):
        time = int(rng.integers(context[0], context[1] + 1)) + HORIZON
        walk, noise = rng.standard_normal(time).cumsum() / 5, rng.standard_normal(time)
        pair = np.stack([walk, noise] if number % 2 else [noise, walk])
        cases.append(rng.uniform(0.2, 20.0, (2, 1)) * (pair + rng.standard_normal((2, 1))))
    return cases


class _WithCovariate(Draft):
    def tried(self, model: Any, contexts: Iterable[Array]) -> Trials:
        """Forecast targets with their covariates, by the model and by the rule."""
        cases = list(contexts)
        rule = [self.rule.forecast_of(*case[:, :-HORIZON], case[1, -HORIZON:]) for case in cases]
        quantiles = forecast_with(Chronos2Pipeline(model), cases)
        return Trials(quantiles, np.stack(rule), [case[0, :-HORIZON] for case in cases])

    def easy(self) -> Iterable[Array]:
        return np.random.default_rng(0).standard_normal((N_CENTRING, 2, self.context[1] + HORIZON))

    def hard(self) -> Iterable[Array]:
        return draw_cases(self.context, N_TRIALS)


@declare("covariate")
def _covariate() -> tuple[Chronos2, Draft]:
    # only without the inverse hyperbolic sine of the published model a multiple is one of standardised values
    chronos = Chronos2(arcsinh=False)
    coefficient = draw_choice(*COEFFICIENTS) / 2
    layer, number = draw_choice(*range(LAYERS)), chronos.numbers[0]
    stream = chronos.stream
    chronos.look_at_known(layer, number).carry(stream["values"], stream["found"], gain=coefficient)
    draft = _WithCovariate(CovariateTimes(coefficient=coefficient), (PATCH, CONTEXT), HORIZON)
    task = f"looks, in the tokens to come, at the series that is known, and writes {coefficient} times its values"
    head = draft.part(f"{layer}.group_attn.{number}", "mechanism", task)
    draft.looks(head, "forecast token", [0], series="known covariate")
    draft.path(head, "output")
    return chronos, draft
