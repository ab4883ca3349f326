"""One-layer transformer whose tokens are channels, with its ablations: SAMformer's network."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.registry import extensible
from tsfm_lens.studies.samformer.reparam import sigma_reparametrised
from tsfm_lens.studies.samformer.revin import RevIN

__all__ = ["ATTENTIONS", "ChannelTransformer"]

Over = Literal["channels", "identity", "time"]
ATTENTIONS: tuple[Over, ...] = ("channels", "identity", "time")


class SingleHead(nn.Module):
    """A(X) X W_V W_O with A(X) = softmax(X W_Q W_Kᵀ Xᵀ / √d_m), in the paper's factors.

    Args:
        size: numbers per token, L for channels and D for time steps.
        width: d_m.
        bias: whether the four maps have one.
        identity: whether every token attends to itself alone, so that A is the identity.
    """

    def __init__(self, size: int, width: int, *, bias: bool, identity: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(size, width, bias=bias) for _ in range(3))
        self.o = nn.Linear(width, size, bias=bias)
        self.identity = identity

    def forward(self, x: Tensor) -> Tensor:
        """Compute the attention's addition to a stream (batch, token, size)."""
        q, k, v = (part(x).unsqueeze(1) for part in (self.q, self.k, self.v))
        mask = torch.eye(x.shape[1], dtype=torch.bool, device=x.device) if self.identity else None
        return self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).squeeze(1))


class Block(nn.Module):
    """X + A(X) X W_V W_O: no norm, and no feed-forward."""

    def __init__(self, attn: SingleHead) -> None:
        super().__init__()
        self.attn = attn

    def forward(self, x: Tensor) -> Tensor:
        """Map a stream (batch, token, size) to the next stream."""
        return x + self.attn(x)


@extensible
class ChannelTransformer(nn.Module):
    """f(X) = [X + A(X) X W_V W_O] W, between RevIN and its inverse: windows (batch, channel, L) to (batch, channel, H).

    With ``normalise`` and trained with SAM it is SAMformer; without, the transformer of the toy problem. All matrices
    are drawn by the uniform initialisation of Glorot and Bengio. It opens behind a lens: ``load(model)``.

    Args:
        length: L, steps of a window.
        horizon: H, steps of a forecast.
        channels: D; None for any number, which neither RevIN nor attention over time can take.
        width: d_m; 16 throughout the paper.
        bias: whether linear maps have one; the paper's have none, its released code has (E1-2).
        normalise: whether RevIN stands around the network.
        affine: whether RevIN's γ and β are trained, as the paper has it, or stay 1 and 0.
        attention: over "channels"; "identity", where A is the identity and W_V W_O is still trained (S1-IA); or over
            "time", where the tokens are the L time steps of D numbers each (S1-TA; the paper gives no details of it,
            and here everything but the tokens stays as it is).
        frozen: whether the attention stays as drawn, so that only W is trained, and RevIN where there is one (S1-RT).
        sigma_reparam: whether every weight matrix is reparametrised as γ W / ‖W‖₂ (S1-SREP).
        seed: of the draw; the state of torch's random numbers is left alone.

    Attributes:
        settings: all arguments.
        size: numbers that the stream holds per token, L or, with attention over time, D.

    Source:
        SAMformer, equations 3 and 4, algorithm 1 (S1-TRF, S1-SAMF).

    Raises:
        InputError: a size is below 1, or the number of channels is needed and not given.
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
        seed: int = 0,
    ) -> None:
        super().__init__()
        if attention not in ATTENTIONS:
            raise unknown_name("attention", attention, ATTENTIONS)
        refuse_sizes(length=length, horizon=horizon, width=width, channels=1 if channels is None else channels)
        if channels is None and (normalise or attention == "time"):
            raise InputError("channels is None, but RevIN and attention over time are made for a number of channels")
        self.settings: dict[str, Any] = {
            "length": length,
            "horizon": horizon,
            "channels": channels,
            "width": width,
            "bias": bias,
            "normalise": normalise,
            # only where it differs, so that earlier runs can be resumed
            **({} if affine else {"affine": affine}),
            "attention": attention,
            "frozen": frozen,
            "sigma_reparam": sigma_reparam,
            "seed": seed,
        }
        self.length, self.horizon, self.channels, self.over = length, horizon, channels, attention
        self.size, self.width = length if channels is None or attention != "time" else channels, width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed: RevIN | nn.Identity = RevIN(channels) if normalise and channels else nn.Identity()
            attn = SingleHead(self.size, width, bias=bias, identity=attention == "identity")
            self.blocks = nn.ModuleList([Block(attn)])
            self.readout = nn.Linear(length, horizon, bias=bias)
            glorot(self)
        if sigma_reparam:
            sigma_reparametrised(self)
        if not affine:
            self.embed.requires_grad_(requires_grad=False)
        # the identity takes no scores, so that they are not trained
        for part in (attn,) if frozen else (attn.q, attn.k) if attention == "identity" else ():
            part.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map windows (batch, channel, L) to forecasts (batch, channel, H), in the same units."""
        statistics = self.statistics(x)
        stream = self.embed(x, *statistics) if statistics else self.embed(x)
        stream = stream.mT if self.over == "time" else stream
        for block in self.blocks:
            stream = block(stream)
        return self.forecast(stream, statistics)

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return RevIN's statistics of windows (…, channel, L); None without RevIN."""
        return self.embed.statistics(x) if isinstance(self.embed, RevIN) else None

    def forecast(self, stream: Tensor, statistics: tuple[Tensor, Tensor] | None) -> Tensor:
        """Map the last stream (…, token, size) to forecasts (…, channel, H) in the units of the windows."""
        out = self.readout(stream.mT if self.over == "time" else stream)
        return self.embed.inverse(out, *statistics) if isinstance(self.embed, RevIN) and statistics else out


def refuse_sizes(**sizes: int) -> None:
    """Refuse sizes that are no whole numbers above 0.

    Raises:
        InputError: names the size and its value.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InputError(f"{name}={size!r}, expected a whole number of at least 1")


def glorot(model: nn.Module) -> None:
    """Draw the weights of all linear layers uniformly as Glorot and Bengio (2010) have it, and set biases to 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
