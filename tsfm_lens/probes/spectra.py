"""Singular spectra and stable rank of the heads' query-key and value-output products: weights alone."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.hooks.weights import HeadWeights
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.given import describe
from tsfm_lens.probes.places import stack_named
from tsfm_lens.registry import probe

__all__ = ["head_spectra", "stable_rank"]

PRODUCTS = ("QK", "OV")


@probe("spectra", "lens")
def head_spectra(
    lens: Lens,
    *,
    kind: str | None = None,
    stack: str | None = None,
    products: Iterable[str] = PRODUCTS,
    fold_norm: bool = False,
) -> xr.Dataset:
    """Compute singular values of W_Q W_Kᵀ and W_V W_O of every head, from a d_head × d_head core of each product.

    Args:
        lens: the model.
        kind: kind of attention; the stack's last kind if None.
        stack: the stack of the attention; the one that is read out if None.
        products: "QK", "OV" or both.
        fold_norm: with the gain of the norm before the branch in the matrices.

    Returns:
        Dataset of kind "spectra": ``singular_value`` (product, layer, head, mode), descending; ``stable_rank``
        (product, layer, head), the squared Frobenius over the squared spectral norm, NaN for zero weights; ``order``
        (product, layer, head), the place of a head in its layer by ascending stable rank.

    Source:
        tsfm-lens paper, definition 5.1 (S3-SRANK); factors of 1/sqrt(d_head) change no stable rank.

    Raises:
        UnknownNameError: no such stack, kind of attention or product.

    Example:
        >>> probes.head_spectra(lens)["stable_rank"].dims
        ('product', 'layer', 'head')
    """
    column = stack_named(lens.wiring, stack, lens.wiring.output_stack)
    attention, layers = column.layers_with(kind)
    names = list(products)
    for product in names:
        if product not in PRODUCTS:
            raise unknown_name("product", product, PRODUCTS)
    if not names:
        raise InputError("products is empty; choose QK, OV or both")
    values = np.empty((len(names), len(layers), column.n_heads, column.d_head))
    for place, layer in enumerate(layers):
        weights = lens.weights.heads(layer, attention, column.name, fold_norm=fold_norm)
        for index, product in enumerate(names):
            values[index, place] = core_singular_values(*_factors(weights, product)).cpu().numpy()
    ranks = stable_rank(values)
    data = xr.Dataset(
        {
            "singular_value": (("product", "layer", "head", "mode"), values),
            "stable_rank": (("product", "layer", "head"), ranks),
            "order": (("product", "layer", "head"), ranks.argsort(axis=-1).argsort(axis=-1)),
        },
        coords={"product": names, "layer": list(map(str, layers)), "head": range(column.n_heads)},
    )
    title, source = f"Spectra of {attention}", "tsfm-lens paper, definition 5.1 (S3-SRANK)"
    facts = {"stack": column.name, "attention": attention, "fold_norm": int(fold_norm)}
    data.attrs = describe(lens, "spectra", title, source, **facts)
    return data


def stable_rank(singular_values: np.ndarray) -> np.ndarray:
    """Compute ‖A‖_F² / ‖A‖₂² from singular values, (…, mode) descending -> (…); NaN for zero matrices.

    Example:
        >>> float(probes.stable_rank(np.array([1.0, 1.0, 1.0])))
        3.0
    """
    values = np.asarray(singular_values, dtype=float)
    # relative to the largest, so that tiny and huge weights neither underflow nor overflow
    top = values[..., :1]
    shares = np.divide(values, top, out=np.full_like(values, np.nan), where=top > 0)
    return np.square(shares).sum(axis=-1)


def core_singular_values(left: Tensor, right: Tensor) -> Tensor:
    """Compute the singular values of ``left @ right``, descending, in float64."""
    a, b = left.detach().double(), right.detach().double().transpose(-2, -1)
    core = torch.linalg.qr(a, mode="r").R @ torch.linalg.qr(b, mode="r").R.transpose(-2, -1)
    return torch.linalg.svdvals(core)


def core_svd(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the singular value decomposition of ``left @ right`` without that product, in float64."""
    a, b = left.detach().double(), right.detach().double().transpose(-2, -1)
    (q_a, r_a), (q_b, r_b) = torch.linalg.qr(a), torch.linalg.qr(b)
    u, s, vt = torch.linalg.svd(r_a @ r_b.transpose(-2, -1))
    return q_a @ u, s, vt @ q_b.transpose(-2, -1)


def _factors(weights: HeadWeights, product: str) -> tuple[Tensor, Tensor]:
    if product == "QK":
        return weights.W_Q, weights.W_K.transpose(-2, -1)
    return weights.W_V, weights.W_O
