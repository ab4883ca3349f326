"""The matrices of a model that can be truncated, and copies with low-rank factors.

:func:`matrices` lists them by the model's wiring and refuses layers that factors cannot
replace; :func:`factorised` truncates a copy of the model to given ranks. Ranks are
chosen in :mod:`.methods` and :mod:`.schedule`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from tsfm_lens.compress.layers import (
    Compressed,
    Factors,
    LowRankLinear,
    product,
    replace_layer,
    truncate,
)
from tsfm_lens.compress.schedule import BlockShape, Ratio, compute_ratio
from tsfm_lens.core.errors import InputError, WiringError, unknown_name
from tsfm_lens.hooks.weights import parameters
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Stack, Writer
from tsfm_lens.models.lens import Lens

__all__ = ["WeightMatrix", "factorised", "parameter_share", "matrices"]

# largest difference between a layer's output and the product with its matrix, as a
# share of the product's largest entry (at least 1), in single precision
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class WeightMatrix:
    """One matrix of a model, with the blocks of its heads and the gain of its layer.

    Attributes:
        name: such as "encoder_blocks.0.self_attn.q"; a fused matrix has the letters of
            all parts ("…attn.qkv").
        path: of the layer that holds it, in the native model.
        stack, layer, kind: the stack, the layer, and the kind of attention or MLP that
            the matrix belongs to.
        shape: (out, in).
        heads: number of equal blocks of consecutive rows or columns, one for each head
            of each part; 1 for MLPs, or if heads are interleaved.
        of: the side that these blocks divide, "rows" or "columns".
        gain: factor that the layer puts on its weights and bias.
    """

    name: str
    path: str
    stack: str
    layer: int
    kind: str
    shape: tuple[int, int]
    heads: int
    of: str
    gain: float

    def form(self, *, by_head: bool = False) -> BlockShape:
        """Return the shape that is truncated: one block, or one per head.

        Args:
            by_head: whether every head is truncated by itself.

        Returns:
            Number and shape of the blocks.

        Raises:
            InputError: ``by_head``, and the heads are interleaved.
        """
        rows, columns = self.shape
        if not by_head or not self.is_attention:
            return BlockShape(1, rows, columns)
        if self.heads == 1:
            raise InputError(
                f"the heads of {self.name} ({self.path}) alternate in its {self.of}, so"
                " that none can be truncated by itself; truncate whole matrices"
            )
        if self.of == "rows":
            return BlockShape(self.heads, rows // self.heads, columns)
        return BlockShape(self.heads, rows, columns // self.heads)

    @property
    def is_attention(self) -> bool:
        """True if the matrix belongs to an attention, False for an MLP."""
        # a name ends in the letters of an attention's projections, or in a word for an
        # MLP's (in, gate, out), each of which has a letter outside this set
        return set(self.name.rpartition(".")[2]) <= set("qkvgo")


def matrices(lens: Lens, *, mlps: bool = False) -> dict[str, WeightMatrix]:
    """List the attention matrices that can be truncated, in order of the forward pass.

    Args:
        lens: the model.
        mlps: list the matrices of MLPs, too.

    Returns:
        The matrices by name.

    Raises:
        WiringError: a matrix is not a layer of its own, two layers share one, or a
            layer is not a plain matrix product.
        InputError: the model has no such matrix, or one is not finite.

    Example:
        >>> next(iter(compress.matrices(lens)))
        'encoder_blocks.0.self_attn.q'
    """
    by_name = {
        matrix.name: matrix
        for stack in lens.wiring.stacks
        for layer in range(stack.n_layers)
        for row in stack.rows(layer)
        if mlps or isinstance(row, Attention)
        for matrix in _list_matrices(lens, stack, layer, row)
    }
    if not by_name:
        raise InputError(
            f"{lens.model_id} has no matrix of the kind asked for; ask for attentions,"
            " MLPs, or both"
        )
    owners: dict[int, str] = {}
    for matrix in by_name.values():
        layer_module = lens.adapter.model.get_submodule(matrix.path)
        # a compressed layer passed the checks before it was compressed, and tied layers
        # cannot be found by its weight, which is a new tensor at each access
        if isinstance(layer_module, Compressed):
            continue
        _check_layer(layer_module, matrix)
        # tied weights are one parameter, whichever layer holds it
        first_name = owners.setdefault(id(layer_module.weight), matrix.name)
        if first_name != matrix.name:
            raise WiringError(
                f"{first_name} and {matrix.name} are the same matrix; it cannot be"
                " truncated twice"
            )
    return by_name


def matrices_by_name(
    lens: Lens, names: Iterable[str] | None = None
) -> dict[str, WeightMatrix]:
    """Return matrices of attentions and MLPs by name.

    Those of all attentions if ``names`` is None.

    Raises:
        UnknownNameError: the model has no such matrix.
    """
    # MLPs are listed only if they are asked for, since a model whose MLPs are no plain
    # layers can still have its attentions truncated
    attentions = matrices(lens)
    if names is None:
        return attentions
    keys = list(names)
    if set(keys) <= set(attentions):
        by_name = attentions
    else:
        by_name = matrices(lens, mlps=True)
    for key in keys:
        if key not in by_name:
            raise unknown_name("matrix", key, by_name)
    return {key: by_name[key] for key in keys}


def parameter_share(
    lens: Lens, ranks: Mapping[str, int], *, by_head: bool = False
) -> Ratio:
    """Compute the share of the matrices named in ``ranks`` that these ranks keep.

    Args:
        lens: the model.
        ranks: rank by name of the matrix.
        by_head: whether they are ranks of each head.

    Returns:
        The share of ranks, of entries in factors, and of stored entries, from 0 to 1.

    Example:
        >>> compress.parameter_share(lens, compress.chosen_ranks(lens, keep=0.5)).ranks
        0.5
    """
    by_name = matrices_by_name(lens, ranks)
    forms = {name: by_name[name].form(by_head=by_head) for name in ranks}
    return compute_ratio(forms, ranks)


def _list_matrices(
    lens: Lens, stack: Stack, layer: int, row: Writer
) -> Iterator[WeightMatrix]:
    """List the matrices of one attention or one MLP.

    Projections that share a layer are listed as one matrix. Other kinds of branches
    have none.

    Yields:
        The matrices.
    """
    # by path of the layer in the block: end of the name, first projection, number of
    # blocks, and the side that they divide
    by_module: dict[str, tuple[str, Projection, int, str]] = {}
    if isinstance(row, Mlp):
        out = Projection(row.o, gain=row.o_gain)
        for word, part in (("in", row.i), ("gate", row.gate), ("out", out)):
            # "in" and "gate" may share a layer, which is listed as "in"
            if part is not None:
                by_module.setdefault(part.module, (word, part, 1, "rows"))
    elif isinstance(row, Attention):
        # parts of a fused projection name the same module, and collect their letters in
        # its entry
        for projection, part in [*row.inputs.items(), ("o", row.o)]:
            letters, first = "", part
            if part.module in by_module:
                letters, first = by_module[part.module][:2]
            letters += projection[0]
            # the gate, "g", multiplies what each query head has read, and "o" reads all
            # of these heads; keys and values may have fewer
            if letters[0] in "go":
                heads = stack.n_heads
            else:
                heads = row.count_heads(letters[0], stack.n_heads)
            # the rows of a head are consecutive only where d_head is the innermost axis
            blocks = 1
            innermost_axis = re.findall(r"\w+", first.layout)[-1]
            if innermost_axis == "d_head":
                blocks = heads * first.parts
            side = "columns" if letters[0] == "o" else "rows"
            by_module[part.module] = (letters, first, blocks, side)
    for module, (word, part, blocks, side) in by_module.items():
        path = f"{stack.block(layer)}.{module}"
        name = f"{stack.prefix}.{layer}.{row.kind}.{word}"
        if part.weight != "weight":
            holder = type(lens.adapter.model.get_submodule(path)).__name__
            raise WiringError(
                f"{name} is {part.weight!r} of {path} ({holder}), which is not a layer"
                " of its own; factors cannot replace it"
            )
        rows, columns = parameters(lens.adapter.model, path, part)[0].shape
        yield WeightMatrix(
            name,
            path,
            stack.name,
            layer,
            row.kind,
            (rows, columns),
            blocks,
            side,
            part.gain,
        )


def _check_layer(layer: Any, matrix: WeightMatrix) -> None:
    """Refuse a layer that does not compute gain · (x Wᵀ + bias)."""
    other_names = {name for name, _ in layer.named_parameters()} - {"weight", "bias"}
    weight = layer.weight.detach()
    bias = getattr(layer, "bias", None)
    if not bool(torch.isfinite(weight).all()):
        count = int((~torch.isfinite(weight)).sum())
        raise InputError(
            f"{matrix.name} ({matrix.path}) has {count} entries that are not finite; it"
            " cannot be truncated"
        )
    # two rows of distinct numbers of both signs, which a nonlinearity or a norm in the
    # layer would not pass unchanged
    x = (
        torch.linspace(-1.0, 1.0, 2 * matrix.shape[1], device=weight.device)
        .reshape(2, -1)
        .to(weight.dtype)
    )
    with torch.no_grad():
        target = matrix.gain * linear(x, weight, bias)
        try:
            # forward() and no call: hooks of a user must not see the test
            output = layer.forward(x)
        except Exception as error:
            raise WiringError(
                f"{matrix.path} ({type(layer).__name__}) takes no rows of"
                f" {matrix.shape[1]}: {error}"
            ) from error
    if output.shape == target.shape:
        difference = float((output - target).abs().max())
    else:
        difference = float("inf")
    tolerance = _TOLERANCE * max(1.0, float(target.abs().max()))
    if weight.dtype != torch.float32:
        # half precision has some three digits, single some seven
        tolerance *= 100
    # written so that NaN is refused, too
    if other_names or not difference <= tolerance:
        raise WiringError(
            f"{matrix.path} ({type(layer).__name__}) does not give {matrix.gain:g}"
            " times what enters times its weight, with its bias, and nothing else;"
            " factors in its place would compute something else"
        )


def factorised(
    lens: Lens,
    ranks: Mapping[str, int],
    *,
    moments: Mapping[str, Tensor] | None = None,
    sensitivity: Mapping[str, Tensor] | None = None,
    by_head: bool = False,
    name: str | None = None,
) -> Lens:
    """Copy a model and truncate its matrices.

    A truncated matrix is stored in full unless its factors have fewer entries.

    Args:
        lens: the model.
        ranks: rank by name of the matrix, as :func:`matrices` names it; other matrices
            are kept whole.
        moments: second moments of the inputs by name, (in, in); the identity if None.
        sensitivity: second moments of the gradient by the output by name, (out, out);
            the identity if None.
        by_head: truncate every head of an attention by itself, to the given rank.
        name: model id of the copy; that of the model with a remark if None.

    Returns:
        The copy, whose truncated layers are low-rank ones.

    Raises:
        UnknownNameError: no such matrix.
        InputError: a rank is out of range, a matrix is compressed already, a moment is
            missing or not finite.

    Example:
        >>> smaller = compress.factorised(lens, {"decoder_blocks.0.cross_attn.q": 2})
        >>> smaller.forecast(run.batch, 4, num_samples=2).median.shape
        (1, 4)
    """
    by_name = matrices_by_name(lens, ranks)
    factors: dict[str, Factors | None] = {}
    for key, matrix in by_name.items():
        for second_moments in (moments, sensitivity):
            if second_moments is not None and key not in second_moments:
                raise InputError(
                    f"there is no second moment for {key}; take those of all matrices"
                    " of the ranks"
                )
        of_inputs = None if moments is None else moments[key]
        of_gradients = None if sensitivity is None else sensitivity[key]
        factors[key] = compute_factors(
            lens, matrix, ranks[key], of_inputs, of_gradients, by_head
        )
    smaller = copy.deepcopy(lens)
    for key, pair in factors.items():
        if pair is None:
            continue
        path = by_name[key].path
        rows, columns = pair.shape
        layer: Any = smaller.adapter.model.get_submodule(path)
        if pair.numbers < rows * columns:
            low_rank = LowRankLinear(pair, layer.bias, by_name[key].gain)
            replace_layer(smaller.adapter.model, path, low_rank)
        else:
            # the layer stays full, with the weights of the truncated matrix
            with torch.no_grad():
                layer.weight.copy_(product(Factors(*(part.double() for part in pair))))
    return Lens(smaller.adapter, name or f"{lens.model_id} (cut off)", lens.revision)


def compute_factors(
    lens: Lens,
    matrix: WeightMatrix,
    rank: int,
    moment: Tensor | None,
    sensitivity: Tensor | None,
    by_head: bool,
) -> Factors | None:
    """Compute the factors of a matrix; None if it keeps its full rank."""
    layer = lens.adapter.model.get_submodule(matrix.path)
    if isinstance(layer, Compressed):
        raise InputError(
            f"{matrix.name} is truncated already ({layer}); begin with the whole model"
        )
    form = matrix.form(by_head=by_head)
    if not (isinstance(rank, int) and 1 <= rank <= form.full):
        raise InputError(
            f"rank {rank!r} of {matrix.name}; expected a whole number from 1 to"
            f" {form.full}"
        )
    if rank == form.full:
        return None
    # as the layer holds it, without the gain, which the new layer applies itself
    weight, _ = parameters(lens.adapter.model, matrix.path)
    return truncate(
        weight,
        rank,
        moment=moment,
        sensitivity=sensitivity,
        heads=form.blocks,
        of=matrix.of,
    )
