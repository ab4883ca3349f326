"""Planted models in Chronos-2's format.

Time attention finds patches by rotary positions, group attention finds a known
covariate. Read :class:`Chronos2` first, then :func:`_covariate`. The seasonal copies
are declared by :func:`tsfm_lens.zoo.planted.patches.declare_copies`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from chronos import Chronos2Pipeline
from chronos.chronos2 import Chronos2Model
from chronos.chronos2.config import Chronos2CoreConfig

from tsfm_lens.zoo.planted.draft import (
    N_CENTRING,
    N_TRIALS,
    Array,
    Draft,
    Trials,
    draw_choice,
    steps_ago,
)
from tsfm_lens.zoo.planted.patches import (
    CONTEXT,
    FLAG,
    HEADS,
    LOUD,
    PATCH,
    PATCHES,
    SHARP,
    SIZES,
    WIDTH,
    Head,
    Mlp,
    PatchModel,
    Stream,
    declare,
    declare_copies,
    rotary_query_and_key,
)
from tsfm_lens.zoo.planted.rules import CovariateTimes, Reads

NAME = "chronos-2"
LAYERS = 3
AHEAD = 2
"""Patches of one forecast."""
HORIZON = AHEAD * PATCH
KINDS = ("time_attn", "group_attn")
COVARIATE = "covariate"
"""Name of the covariate in the library's inputs."""


class Chronos2(PatchModel):
    """Chronos-2, in which mechanisms are planted.

    Its stream also has "known", `FLAG` times the share of the patch that is observed,
    and "found", the values that the forecast is read from.
    """

    layers = LAYERS
    # a patch comes as its times, its values, and whether they are known
    columns = slice(PATCH, 2 * PATCH)

    def __init__(self, *, arcsinh: bool, **blocks: int) -> None:
        settings = {
            "output_patch_size": PATCH,
            "max_output_patches": AHEAD,
            "use_arcsinh": arcsinh,
        }
        config = Chronos2CoreConfig(
            **SIZES,
            num_layers=LAYERS,
            # the library fills the gains of the norms with it
            initializer_factor=1.0,
            architectures=["Chronos2Model"],
            chronos_pipeline_class="Chronos2Pipeline",
            chronos_config={**PATCHES, **settings, "time_encoding_scale": CONTEXT},
        )
        stream = Stream(WIDTH, one=1, known=1, values=PATCH, found=PATCH, **blocks)
        # the only stack has no name
        super().__init__(Chronos2Model(config).double().eval(), {"": stream})
        # the last third of the inputs says which values of the patch are known
        self.blocks()[0].residual_layer.weight[stream["known"], 2 * PATCH :] = (
            FLAG / PATCH
        )
        # the REG token has the constant direction as patches have, but no values
        self.model.shared.weight.zero_()[:, stream["one"]] = self.one

    def attentions(self, stack: str) -> list[Any]:
        """Return the native attentions."""
        return [
            block.layer[index].self_attention
            for block in self.model.encoder.block
            for index in range(len(KINDS))
        ]

    def mlps(self, stack: str) -> list[Mlp]:
        """Return the weights of each MLP."""
        mlps = [block.layer[2].mlp for block in self.model.encoder.block]
        return [([mlp.wi.weight], mlp.wo.weight) for mlp in mlps]

    def head(self, kind: str, layer: int, number: int) -> Head:
        """Return a head without its noise, all 0."""
        index = layer * len(KINDS) + KINDS.index(kind)
        return self.view_head(self.attentions("")[index], number).clear()

    def named(self, layer: int, number: int) -> str:
        """Name a time-attention head as a component."""
        return f"{layer}.time_attn.{number}"

    def back(self, layer: int, number: int, lags: Sequence[int]) -> Head:
        """Return a time-attention head that attends one number of tokens back."""
        (tokens,) = lags
        head = self.head("time_attn", layer, number)
        frequencies = self.attentions("")[0].rope_embed.inv_freq
        query, key = rotary_query_and_key(
            frequencies, tokens, CONTEXT // PATCH + 1 + AHEAD
        )
        # rotary positions turn each channel of the first half together with one of the
        # second half, so the first entries of all pairs come before the second ones
        head.q[:, self.stream["one"]] = query.T.reshape(-1, 1) / self.one
        head.k[:, self.stream["one"]] = key.T.reshape(-1, 1) / self.one
        return head

    def attend_to_known(self, layer: int, number: int) -> Head:
        """Return a group-attention head that attends to the known covariate.

        That is the series whose values are known at the time of the token.
        """
        head = self.head("group_attn", layer, number)
        head.q[-1, self.stream["one"]] = 1 / self.one
        # one known value of a patch is enough
        head.k[-1, self.stream["known"]] = PATCH * SHARP / FLAG
        return head

    def plant_decoys(self, lags: Sequence[int]) -> None:
        """Plant decoys, among them a head of group attention that writes to "junk"."""
        super().plant_decoys(lags)
        layer = LAYERS - 1
        number = draw_choice(*range(HEADS))
        self.attend_to_known(layer, number).carry(
            self.stream["found"], self.stream.rest("found"), gain=LOUD
        )
        task = f"writes {LOUD} times what is found to where nobody reads"
        self.draft.part(f"{layer}.group_attn.{number}", "decoy", task)


# ``later`` is 2, as the REG token comes between the last patch and the forecast; a
# period has at least 2 patches, as a forecast has, so that its later patch finds an
# observed patch, too
declare_copies(
    NAME,
    partial(Chronos2, arcsinh=True),
    later=2,
    horizon=HORIZON,
    squash=np.arcsinh,
)


def forecast_covariate(pipeline: Any, cases: Sequence[Array]) -> Array:
    """Compute the library's own forecast with a known covariate.

    Returns:
        (case, quantile, step).
    """
    inputs = [
        {
            "target": case[0, :-HORIZON],
            "past_covariates": {COVARIATE: case[1, :-HORIZON]},
            "future_covariates": {COVARIATE: case[1, -HORIZON:]},
        }
        for case in cases
    ]
    return (
        torch.cat(pipeline.predict(inputs, prediction_length=HORIZON)).double().numpy()
    )


def draw_cases(context: tuple[int, int], count: int, *, seed: int = 0) -> list[Array]:
    """Draw targets and covariates, (2, time) each.

    One of the two is a random walk and the other white noise, in turn, on random levels
    and scales.

    Returns:
        The cases.
    """
    rng = np.random.default_rng(seed)
    cases = []
    for number in range(count):
        # past and future of both rows in one array, cut where they are used
        time = int(rng.integers(context[0], context[1] + 1)) + HORIZON
        walk = rng.standard_normal(time).cumsum() / 5
        noise = rng.standard_normal(time)
        pair = np.stack([walk, noise] if number % 2 else [noise, walk])
        cases.append(
            rng.uniform(0.2, 20.0, (2, 1)) * (pair + rng.standard_normal((2, 1)))
        )
    return cases


class _WithCovariate(Draft):
    """Draft of a model that forecasts a target with a known covariate.

    Its contexts are arrays (2, time), as those of :func:`draw_cases`.
    """

    def tried(self, model: Any, contexts: Iterable[Array]) -> Trials:
        """Forecast targets with their covariates, by the model and by the rule."""
        cases = list(contexts)
        rule = [
            self.rule.compute_forecast(*case[:, :-HORIZON], case[1, -HORIZON:])
            for case in cases
        ]
        return (
            forecast_covariate(Chronos2Pipeline(model), cases),
            np.stack(rule),
            [case[0, :-HORIZON] for case in cases],
        )

    def easy(self) -> Iterable[Array]:
        return np.random.default_rng(0).standard_normal(
            (N_CENTRING, 2, self.context[1] + HORIZON)
        )

    def hard(self, seed: int = 0) -> Iterable[Array]:
        return draw_cases(self.context, N_TRIALS, seed=seed)


@declare("covariate", NAME)
def _covariate(reads: Reads) -> Chronos2:
    """Build a multiple of a known covariate, which group attention finds."""
    ago = steps_ago(reads, 0, PATCH)
    # the published model takes the inverse hyperbolic sine of standardised values, of
    # which a multiple would not be a multiple of the values
    chronos = Chronos2(arcsinh=False, **({"earlier values": PATCH} if any(ago) else {}))
    coefficient = draw_choice(-2, -1, 1, 2, 3) / 2
    layer = draw_choice(*range(LAYERS))
    number = chronos.numbers[""][0]
    stream = chronos.stream
    chronos.read_out(found=torch.eye(PATCH))
    source = "values"
    if any(ago):
        source = "earlier values"
    chronos.attend_to_known(layer, number).carry(
        stream[source], stream["found"], gain=coefficient
    )
    chronos.draft = draft = _WithCovariate(
        CovariateTimes(coefficient=coefficient, ago=ago),
        (max(PATCH, *ago), CONTEXT),
        HORIZON,
    )
    task = (
        "looks, in the tokens to come, at the series that is known, and writes"
        f" {coefficient} times its {source}"
    )
    name = f"{layer}.group_attn.{number}"
    options = {"series": "known covariate"}
    draft.path(
        draft.part(name, "mechanism", task, "forecast token", [0], **options), "output"
    )
    # an ago of 0 needs no head, as the group attention itself reads that stretch; not
    # strict, since there are more heads than other stretches
    for other_number, steps in zip(
        chronos.numbers[""], filter(None, ago), strict=False
    ):
        # the same layer will do, as its time attention comes before its group attention
        head = (draw_choice(*range(layer + 1)), other_number)
        # one more for the REG token, which stands between the context and the forecast
        tokens = steps // PATCH + 1
        chronos.back(*head, [tokens]).carry(
            stream["values"], stream[source], gain=1 / len(ago)
        )
        task = (
            f"writes 1/{len(ago)} of the patch {tokens} tokens back to where the other"
            " head reads"
        )
        draft.path(
            draft.part(
                chronos.named(*head), "mechanism", task, "every token", [tokens]
            ),
            name,
        )
    return chronos
