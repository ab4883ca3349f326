"""Tensors in the inputs and outputs of native modules: read, replaced, rearranged.

:func:`to_vocabulary` and :func:`to_native` translate between a module's layout and the
axes of hook points; read them first. The rest reads and replaces one tensor of a call,
forms attention scores as torch does, and applies norms with a given scale.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from weakref import WeakSet

import torch
from einops import EinopsError, rearrange
from torch import Tensor, nn

from tsfm_lens.core.errors import WiringError


def widest_float(device: torch.device) -> torch.dtype:
    """Return the most precise type of numbers that a device has."""
    # Apple's GPUs have no double precision
    if device.type == "mps":
        return torch.float32
    return torch.float64


def get_output(output: Any, arg: int | str) -> Tensor:
    """Return the tensor at ``arg`` of a module's output.

    An output that is a tensor itself is returned, whatever ``arg`` is.
    """
    if isinstance(output, Tensor):
        return output
    try:
        value = output[arg]
    except (LookupError, TypeError) as error:
        raise WiringError(
            f"module output {type(output).__name__} has no element {arg!r}"
        ) from error
    if not isinstance(value, Tensor):
        raise WiringError(
            f"element {arg!r} of the module output is {type(value).__name__}, not a"
            " tensor"
        )
    return value


def put_output(output: Any, arg: int | str, value: Tensor) -> Any:
    """Return a copy of a module's output with the tensor at ``arg`` replaced."""
    if isinstance(output, Tensor):
        return value
    # a tuple with _fields is a named one
    if isinstance(output, tuple) and not hasattr(output, "_fields"):
        index = int(arg)
        return (*output[:index], value, *output[index + 1 :])
    if isinstance(output, list):
        return [value if index == arg else item for index, item in enumerate(output)]
    fields = dict(output.items())
    key = arg
    if isinstance(arg, int):
        key = list(fields)[arg]
    return type(output)(**{**fields, key: value})


def get_input(args: tuple[Any, ...], kwargs: dict[str, Any], arg: int | str) -> Tensor:
    """Return the tensor at ``arg`` of a module's inputs, a position or a keyword.

    Positions go on from the positional arguments to those passed by keyword.
    """
    value: Any = None
    if isinstance(arg, str):
        value = kwargs.get(arg)
    elif arg < len(args):
        value = args[arg]
    elif arg - len(args) < len(kwargs):
        value = list(kwargs.values())[arg - len(args)]
    if not isinstance(value, Tensor):
        raise WiringError(
            f"input {arg!r} of the module is {type(value).__name__}, not a tensor"
        )
    return value


def put_input(
    args: tuple[Any, ...], kwargs: dict[str, Any], arg: int | str, value: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return copies of a module's inputs with the tensor at ``arg`` replaced."""
    if isinstance(arg, int) and arg < len(args):
        return (*args[:arg], value, *args[arg + 1 :]), kwargs
    if isinstance(arg, str):
        key = arg
    else:
        key = list(kwargs)[arg - len(args)]
    return args, {**kwargs, key: value}


def list_modules(model: nn.Module) -> list[nn.Module]:
    """List a module and all within it; shared modules occur several times.

    This takes a tenth of the time of torch's own walk over modules.

    Returns:
        The modules in the order in which they are defined.
    """
    modules: list[nn.Module | None] = [model]
    # the list grows while it is read
    for module in modules:
        # a registered name may hold None
        if module is not None and module._modules:
            modules.extend(module._modules.values())
    return [module for module in modules if module is not None]


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the precision of ``torch.autocast`` on a device; None where it is off."""
    kind = device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return None


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors of one shape and type have the same bits.

    NaN is equal to itself here.
    """
    kind = _INTEGERS.get(a.element_size(), a.dtype)
    # as integers, since NaN is unequal to itself, and −0.0 equal to 0.0
    return torch.equal(a.detach().view(kind), b.detach().view(kind))


Sizes = Mapping[str, int]
"""Lengths of axes that a layout may fold together: head, series, variate."""


def to_vocabulary(
    tensor: Tensor, layout: str, axes: tuple[str, ...], sizes: Sizes
) -> Tensor:
    """Return a native tensor in the axes of the vocabulary.

    It is a view wherever torch can make one.
    """
    if _is_vocabulary(layout, axes):
        # an axis of length 1 that the vocabulary lacks
        if " 1 " in layout:
            return tensor.squeeze(layout.split().index("1"))
        return tensor
    side = _vocabulary_side(layout, axes)
    try:
        return rearrange(tensor, f"{layout} -> {side}", **_bracket_sizes(layout, sizes))
    except EinopsError as error:
        reason = str(error).strip().splitlines()[-1]
        raise WiringError(
            f"a tensor of shape {tuple(tensor.shape)} does not have the layout"
            f" {layout!r} of the wiring: {reason}"
        ) from error


def to_native(
    tensor: Tensor, layout: str, axes: tuple[str, ...], sizes: Sizes
) -> Tensor:
    """Invert :func:`to_vocabulary`."""
    if _is_vocabulary(layout, axes):
        if " 1 " in layout:
            return tensor.unsqueeze(layout.split().index("1"))
        return tensor
    side = _vocabulary_side(layout, axes)
    return rearrange(tensor, f"{side} -> {layout}", **_bracket_sizes(side, sizes))


def fold_leading(tensor: Tensor, layout: str) -> Tensor:
    """Fold axes in front of those of the layout into its first axis.

    Such axes are the quantile paths of a rollout.

    Returns:
        The tensor with as many axes as the layout; itself if it has no more.
    """
    extra = tensor.ndim - len(split_axes(layout))
    if extra > 0:
        return tensor.flatten(0, extra)
    return tensor


@cache
def split_axes(layout: str) -> list[str]:
    """Split a layout into its axes, a bracket as one."""
    return re.findall(r"\([^)]*\)|\S+", layout)


@cache
def _is_vocabulary(layout: str, axes: tuple[str, ...]) -> bool:
    """Return whether a native tensor has the axes of the vocabulary already.

    Patterns always have them, up to an axis of length 1 and names of leading axes.
    """
    return layout.split() == list(axes) or axes[-2:] == ("query", "key")


def _vocabulary_side(layout: str, axes: tuple[str, ...]) -> str:
    """Write the vocabulary's side of an einops rearrangement.

    Returns:
        Axes in the words of the vocabulary; "batch" is "(series variate)" if the layout
        has these two.
    """
    return " ".join(
        "(series variate)" if axis == "batch" and "variate" in layout else axis
        for axis in axes
    )


def _bracket_sizes(side: str, sizes: Sizes) -> dict[str, int]:
    """Return the lengths that einops needs: all but one axis of every bracket."""
    lengths: dict[str, int] = {}
    for bracket in re.findall(r"\(([^)]*)\)", side):
        axes = bracket.split()
        known = [axis for axis in axes if axis in sizes]
        # einops infers the last one
        lengths.update({axis: sizes[axis] for axis in known[: len(axes) - 1]})
    return lengths


def explicit_attention(
    q: Tensor,
    k: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Compute attention scores before the softmax, with mask and bias.

    They are formed as scaled_dot_product_attention forms them.

    Returns:
        Scores (batch, head, query, key), -inf where the mask forbids a key.
    """
    # the default of scaled_dot_product_attention
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q @ k.transpose(-2, -1) * factor
    if is_causal:
        visible = torch.ones(
            q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device
        ).tril()
        scores = scores.masked_fill(~visible, float("-inf"))
    if attn_mask is None:
        return scores
    if attn_mask.dtype == torch.bool:
        return scores.masked_fill(~attn_mask, float("-inf"))
    return scores + attn_mask


def softmax_rows(scores: Tensor) -> Tensor:
    """Apply the softmax over keys.

    A row with no allowed key gets pattern 0, as the fused kernels give.

    Returns:
        Patterns of the same shape, each row of which sums to 1 or is 0.
    """
    pattern = torch.softmax(scores, dim=-1)
    # softmax makes NaN of a row that is −inf throughout
    empty = (scores == float("-inf")).all(dim=-1, keepdim=True)
    return torch.where(empty, torch.zeros_like(pattern), pattern)


# norms that have passed the test of rms_scale
_RMS_NORMS: WeakSet[Any] = WeakSet()


def rms_scale(norm: Any, x: Tensor) -> Tensor:
    """Return the factor per channel that a root-mean-square norm puts on ``x``.

    Its shape is (…, d_model) or (…, 1).
    """
    if norm not in _RMS_NORMS:
        # their mean is not 0, so that a norm that subtracts the mean does not pass
        channels = torch.linspace(
            -2.0, 3.0, x.shape[-1], dtype=x.dtype, device=x.device
        )
        probe = channels[None] * 1.7
        with torch.no_grad():
            # forward itself, not the module: hooks must not see this
            normed = norm.forward(probe)
            # half precision rounds both the scale and the product
            rtol = max(1e-3, 4 * torch.finfo(normed.dtype).eps)
            if not torch.allclose(
                probe * _rms_scale(norm, probe),
                normed.to(x.dtype),
                rtol=rtol,
                atol=1e-5,
            ):
                raise WiringError(
                    f"{type(norm).__name__} is not a root-mean-square norm with a plain"
                    " gain; its scale cannot be frozen. For the last norm, give the"
                    " adapter its own final_norm(resid, like), which divides by the"
                    " scale of like"
                )
        _RMS_NORMS.add(norm)
    return _rms_scale(norm, x)


def _rms_scale(norm: Any, x: Tensor) -> Tensor:
    """Return the factor of a root-mean-square norm, gain included."""
    gains = [getattr(norm, name, None) for name in ("weight", "scale")]
    weight = next((gain for gain in gains if gain is not None), None)
    scale = _inverse_root_mean_square(norm, x)
    if weight is None:
        return scale
    result: Tensor = scale * weight
    return result


def _inverse_root_mean_square(norm: Any, x: Tensor) -> Tensor:
    """Return the factor of a root-mean-square norm without its gain."""
    if isinstance(norm, nn.Identity):
        return torch.ones_like(x[..., :1])
    names = ("variance_epsilon", "epsilon", "eps")
    given = [getattr(norm, name, None) for name in names]
    # nn.RMSNorm takes that of the number format if its eps is None
    default = torch.finfo(x.dtype).eps
    eps = next((epsilon for epsilon in given if epsilon is not None), default)
    # in single precision at least: squares of float16 overflow above 255
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps).to(x.dtype)


def without_gain(norm: Any, parts: Tensor, like: Tensor) -> Tensor:
    """Normalise parts of a stream with the scale of the full stream.

    Gain and bias of the norm are left out.

    Returns:
        The normalised parts, of the shape of ``parts``.
    """
    if isinstance(norm, nn.LayerNorm):
        # subtracting the mean is linear, so each part loses its own
        deviation = (like.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
        return (parts - parts.mean(-1, keepdim=True)) / deviation
    # called only to refuse a norm of another kind
    rms_scale(norm, like)
    return parts * _inverse_root_mean_square(norm, like)
