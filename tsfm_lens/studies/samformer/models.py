"""SAMformer's network with its ablations and baselines.

:class:`ChannelTransformer` is the network; its options are the ablations, and
:data:`MODELS` names the combinations that the paper compares. :class:`RevIN`,
:class:`SigmaReparam`, :class:`LinearForecaster` and :class:`TSMixer` are its parts and
baselines. Training tasks are in :mod:`tsfm_lens.studies.samformer.tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.core.extensions import extensible

__all__ = [
    "ATTENTIONS",
    "ChannelTransformer",
    "LinearForecaster",
    "MODELS",
    "RevIN",
    "SigmaReparam",
    "TSMixer",
    "make_model",
    "oracle_loss",
    "sigma_reparametrised",
]


class RevIN(nn.Module):
    """Normalisation of every window by its mean and deviation, undone on the forecast.

    Each channel has its own (S1-REVIN): x̃ = γ (x − μ̂) / √(σ̂² + ε) + β, with the
    biased variance σ̂² of the window alone; ``weight`` and ``bias`` are γ and β,
    (channel,), 1 and 0 at first.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return μ̂ and √(σ̂² + ε) of windows, each (…, channel, 1).

        Windows are (…, channel, time).
        """
        variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
        return mean, (variance + self.eps).sqrt()

    def forward(self, x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        """Normalise windows (…, channel, time) by statistics (…, channel, 1)."""
        return self.weight[:, None] * ((x - mean) / scale) + self.bias[:, None]

    def inverse(self, y: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        """Return forecasts (…, channel, step) in the units of the windows."""
        return scale * ((y - self.bias[:, None]) / self.weight[:, None]) + mean

    def around(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a map between the normalisation and its inverse.

        Its forecasts are returned in the units of the windows.
        """
        mean, scale = self.statistics(x)
        return self.inverse(function(self(x, mean, scale)), mean, scale)


def spectral_norm(weight: Tensor) -> Tensor:
    """Compute the largest singular value of a matrix exactly.

    It can be differentiated twice where that value is not repeated.
    """
    # the smaller of the two Gram matrices: they share their largest eigenvalue
    if weight.shape[-2] < weight.shape[-1]:
        gram = weight @ weight.mT
    else:
        gram = weight.mT @ weight
    return torch.linalg.eigvalsh(gram)[..., -1].clamp(min=0).sqrt()


class SigmaReparam(nn.Module):
    """Parametrisation Ŵ = γ W / ‖W‖₂ of a weight matrix (S1-SREP).

    So ‖Ŵ‖₂ = |γ|, a learned ``gamma``, 1 at first. It is a parametrisation of torch,
    and acts on weights; ``scaled_inputs`` of :class:`ChannelTransformer` is what
    SAMformer's released code does (E1-5).
    """

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones((), dtype=dtype))

    def forward(self, weight: Tensor) -> Tensor:
        """Return Ŵ, of the shape of W."""
        return self.gamma / spectral_norm(weight) * weight


def sigma_reparametrised(model: nn.Module) -> nn.Module:
    """Put σReparam on the weight matrices of a model's linear layers, in place.

    Each has a γ of its own.

    Example:
        >>> layer = samformer.sigma_reparametrised(torch.nn.Linear(6, 4))
        >>> norm = torch.linalg.matrix_norm(layer.weight, 2)
        >>> bool(torch.isclose(norm, torch.tensor(1.0)))
        True
    """
    for layer in list(model.modules()):
        if isinstance(layer, nn.Linear):
            reparam = SigmaReparam(layer.weight.dtype)
            parametrize.register_parametrization(layer, "weight", reparam)
    return model


Over = Literal["channels", "identity", "time"]
ATTENTIONS: tuple[Over, ...] = get_args(Over)


class SingleHead(nn.Module):
    """Attention A(X) X W_V W_O with A(X) = softmax(X W_Q W_Kᵀ Xᵀ / √d_m).

    The rows of X are tokens with so many numbers (``size``). With ``identity``, A is
    the identity. With ``scaled``, X is divided by the largest singular value of any
    window of the batch, and multiplied by ``gamma``.
    """

    def __init__(
        self, size: int, width: int, *, bias: bool, identity: bool, scaled: bool = False
    ) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(size, width, bias=bias) for _ in range(3))
        self.o = nn.Linear(width, size, bias=bias)
        self.identity = identity
        self.gamma = nn.Parameter(torch.ones(())) if scaled else None

    def forward(self, x: Tensor) -> Tensor:
        """Compute the attention's addition to a stream (batch, token, size)."""
        if self.gamma is not None:
            x = self.gamma / spectral_norm(x).max() * x
        q, k, v = (part(x).unsqueeze(1) for part in (self.q, self.k, self.v))
        mask = None
        if self.identity:
            mask = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        return self.o(
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask).squeeze(1)
        )


class ChannelBlock(nn.Module):
    """Residual block X + A(X) X W_V W_O, without norm and without feed-forward."""

    def __init__(self, attn: SingleHead) -> None:
        super().__init__()
        self.attn = attn

    def forward(self, x: Tensor) -> Tensor:
        """Map a stream (batch, token, size) to the next stream."""
        return x + self.attn(x)


@contextmanager
def _drawn(model: nn.Module, seed: int) -> Iterator[None]:
    """Draw the weights of a model as Glorot and Bengio (2010) do.

    The model is made while the block runs; its random numbers are those of the seed
    alone.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


SIZES = {"length", "horizon", "channels", "width", "blocks", "hidden"}


def check_sizes(**sizes: int | None) -> None:
    """Raise InputError for sizes that are no whole numbers above 0, nor None."""
    for name, size in sizes.items():
        if size is not None and (type(size) is not int or size < 1):
            raise InputError(f"{name}={size!r}, expected a whole number of at least 1")


class NormalisedForecaster(nn.Module):
    """Map of windows to forecasts, between RevIN and its inverse or without them.

    ``settings`` are the arguments that it was made with, out of the names that are
    ``local`` to its initialisation.
    """

    revin: RevIN | None

    def __init__(self, local: dict[str, Any]) -> None:
        super().__init__()
        settings = {
            name: value
            for name, value in local.items()
            if name not in ("self", "__class__")
        }
        self.settings = settings
        self.length: int = settings["length"]
        self.horizon: int = settings["horizon"]
        self.channels: int | None = settings["channels"]
        check_sizes(**{key: settings[key] for key in settings.keys() & SIZES})
        over_time = settings.get("attention") == "time"
        if self.channels is None and (settings["normalise"] or over_time):
            raise InputError(
                "channels is None, but RevIN and attention over time are made for a"
                " number of channels"
            )

    def mix(self, x: Tensor) -> Tensor:
        """Map normalised windows to normalised forecasts."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Map windows (batch, channel, L) to forecasts (batch, channel, H).

        Both are in the same units.
        """
        if self.revin is None:
            return self.mix(x)
        return self.revin.around(x, self.mix)


@extensible
class ChannelTransformer(NormalisedForecaster):
    """Transformer f(X) = [X + A(X) X W_V W_O] W, between RevIN and its inverse.

    It is that of S1-TRF and S1-SAMF. Windows are (batch, channel, L), forecasts (batch,
    channel, H). With ``normalise`` and trained with SAM it is SAMformer. Matrices are
    drawn as by Glorot and Bengio. It opens behind a lens: ``load(model)``.

    Args:
        length, horizon, channels, width: L, H, D and d_m; D may be None, but for RevIN
            or attention over time.
        bias: whether linear maps have one; the paper's have none, its released code has
            (E1-2).
        normalise, affine: whether RevIN stands around the network, and whether its γ
            and β are trained.
        attention: over "channels"; "identity", where A is the identity and W_V W_O is
            still trained (S1-IA); or over "time", where the tokens are the L time steps
            of D numbers each (S1-TA).
        frozen: whether the attention stays as drawn, so that only W is trained, and
            RevIN where there is one (S1-RT).
        sigma_reparam: whether every weight matrix is reparametrised as γ W / ‖W‖₂
            (S1-SREP).
        scaled_inputs: whether the attention's input is, X as γ X / ‖X‖₂ of a batch, as
            in its released code (E1-5).
        released_draws: whether W_Q, W_K, W_V are drawn as there, by L as if it were a
            kernel's length: smaller by √(L (d_m + 1) / (L + d_m)).

    Raises:
        InputError: a size is below 1, or the number of channels is needed and not
            given.
        UnknownNameError: an unknown kind of attention.
    """

    def __init__(
        self,
        length: int,
        horizon: int,
        channels: int | None = None,
        *,
        width: int = 16,
        bias: bool = False,
        normalise: bool = False,
        affine: bool = True,
        attention: Over = "channels",
        frozen: bool = False,
        sigma_reparam: bool = False,
        scaled_inputs: bool = False,
        released_draws: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(locals())
        if attention not in ATTENTIONS:
            raise unknown_name("attention", attention, ATTENTIONS)
        # options that were added later are left out at their defaults, so that earlier
        # runs can be resumed
        defaults = {"affine": True, "scaled_inputs": False, "released_draws": False}
        self.settings = {
            name: value
            for name, value in self.settings.items()
            if (name, value) not in defaults.items()
        }
        self.over = attention
        self.size = length if channels is None or attention != "time" else channels
        self.width = width
        with _drawn(self, seed):
            self.embed: RevIN | nn.Identity = (
                RevIN(channels) if normalise and channels else nn.Identity()
            )
            attn = SingleHead(
                self.size,
                width,
                bias=bias,
                identity=attention == "identity",
                scaled=scaled_inputs,
            )
            self.blocks = nn.ModuleList([ChannelBlock(attn)])
            self.readout = nn.Linear(length, horizon, bias=bias)
        if released_draws:
            with torch.no_grad():
                # 6 / (L + L d_m) under the root of the bound, in place of 6 / (L + d_m)
                ratio = (self.size + width) / (self.size * (width + 1))
                for layer in (attn.q, attn.k, attn.v):
                    layer.weight.mul_(ratio**0.5)
        if sigma_reparam:
            sigma_reparametrised(self)
        if not affine:
            self.embed.requires_grad_(requires_grad=False)
        if frozen:
            attn.requires_grad_(requires_grad=False)
        elif attention == "identity":
            # the identity takes no scores, so that these layers are not trained
            attn.q.requires_grad_(requires_grad=False)
            attn.k.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map windows (batch, channel, L) to forecasts (batch, channel, H).

        Both are in the same units.
        """
        statistics = self.statistics(x)
        if statistics:
            stream = self.embed(x, *statistics)
        else:
            stream = self.embed(x)
        if self.over == "time":
            stream = stream.mT
        for block in self.blocks:
            stream = block(stream)
        return self.forecast(stream, statistics)

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return RevIN's statistics of windows (…, channel, L); None without RevIN."""
        if isinstance(self.embed, RevIN):
            return self.embed.statistics(x)
        return None

    def forecast(
        self, stream: Tensor, statistics: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Map the last stream (…, token, size) to forecasts (…, channel, H).

        They are in the units of the windows.
        """
        out = self.readout(stream.mT if self.over == "time" else stream)
        if isinstance(self.embed, RevIN) and statistics:
            return self.embed.inverse(out, *statistics)
        return out


class LinearForecaster(NormalisedForecaster):
    """Linear map f(X) = X W, between RevIN and its inverse (S1-LIN).

    It maps windows (batch, channel, L) to forecasts (batch, channel, H).

    Raises:
        InputError: a size is below 1, or RevIN has no number of channels.
    """

    def __init__(
        self,
        length: int,
        horizon: int,
        channels: int | None = None,
        *,
        bias: bool = False,
        normalise: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(locals())
        with _drawn(self, seed):
            self.revin = RevIN(channels) if normalise and channels else None
            self.readout = nn.Linear(length, horizon, bias=bias)

    def mix(self, x: Tensor) -> Tensor:
        """Map normalised windows to normalised forecasts."""
        return self.readout(x)


def oracle_loss(length: int, rows: int) -> float:
    """Compute the expected squared error of least squares, 1 + L / (n − L − 1).

    There are n rows for L unknowns, with noise of variance 1.

    Raises:
        InputError: n is not above L + 1, where the expectation is infinite.

    Example:
        >>> round(samformer.oracle_loss(512, 70_000), 4)
        1.0074
    """
    if rows <= length + 1:
        raise InputError(
            f"{rows} rows for {length} unknowns: the expected error is finite from"
            f" {length + 2} rows on"
        )
    return 1 + length / (rows - length - 1)


class MixerBlock(nn.Module):
    """Linear map over time, and a two-layer one over channels.

    Each reads a batch norm of its input and is added to it.
    """

    def __init__(self, length: int, channels: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList(_FlatBatchNorm(channels * length) for _ in range(2))
        self.time = nn.Linear(length, length)
        self.up = nn.Linear(channels, hidden)
        self.down = nn.Linear(hidden, channels)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channel, L) to the same shape."""
        x = x + self.drop(F.relu(self.time(self.norms[0](x))))
        mixed = self.down(self.drop(F.relu(self.up(self.norms[1](x).mT))))
        return x + self.drop(mixed).mT


class TSMixer(NormalisedForecaster):
    """TSMixer (Chen et al., 2023): a stack of mixing blocks and a linear map (S1-TSM).

    Blocks mix over time and over channels; RevIN is around all of it.

    Args:
        length, horizon, channels: L, H and D.
        blocks, hidden, dropout: how many, width of the map over channels, and in
            training.

    Raises:
        InputError: a size is below 1, or dropout is not from 0 to below 1.
    """

    def __init__(
        self,
        length: int,
        horizon: int,
        channels: int,
        *,
        blocks: int = 2,
        hidden: int = 64,
        dropout: float = 0.0,
        normalise: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(locals())
        if not 0 <= dropout < 1:
            raise InputError(f"dropout={dropout}, expected from 0 to below 1")
        with _drawn(self, seed):
            self.revin = RevIN(channels) if normalise else None
            self.blocks = nn.ModuleList(
                MixerBlock(length, channels, hidden, dropout) for _ in range(blocks)
            )
            self.readout = nn.Linear(length, horizon)

    def mix(self, x: Tensor) -> Tensor:
        """Map normalised windows to normalised forecasts."""
        return nn.Sequential(*self.blocks, self.readout)(x)


class _FlatBatchNorm(nn.BatchNorm1d):
    """Batch norm of every channel and time step by itself."""

    def forward(self, input: Tensor) -> Tensor:
        """Map (batch, channel, L) to the same shape.

        One window has no variance, and is normalised as in evaluation.
        """
        rows = input.flatten(1)
        if len(rows) > 1:
            return super().forward(rows).view_as(input)
        statistics = self.running_mean, self.running_var, self.weight, self.bias
        return F.batch_norm(rows, *statistics, eps=self.eps).view_as(input)


MODELS: dict[str, Callable[..., nn.Module]] = {
    "transformer": ChannelTransformer,
    "random-transformer": partial(ChannelTransformer, frozen=True),
    "sigma-reparam": partial(ChannelTransformer, sigma_reparam=True),
    "samformer": partial(ChannelTransformer, normalise=True),
    "identity-attention": partial(
        ChannelTransformer, normalise=True, attention="identity"
    ),
    "temporal-attention": partial(ChannelTransformer, normalise=True, attention="time"),
    "linear": LinearForecaster,
    "tsmixer": TSMixer,
}
"""Models that the paper compares, by name.

SAMformer and the transformer of tables 1 and 6 are one network with RevIN; the
optimiser makes the difference.
"""


def make_model(
    name: str, length: int, horizon: int, channels: int, **options: Any
) -> nn.Module:
    """Make a model of ``MODELS`` with drawn weights.

    It takes windows of L = ``length`` steps and D channels, and has a horizon H.

    Raises:
        UnknownNameError: an unknown name.
        InputError: a size is below 1.

    Example:
        >>> samformer.make_model("samformer", 512, 96, 7)(torch.zeros(2, 7, 512)).shape
        torch.Size([2, 7, 96])
    """
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    return MODELS[name](length, horizon, channels, **options)
