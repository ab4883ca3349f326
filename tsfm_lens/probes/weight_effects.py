"""Effects of fine-tuning: which weights differ, and what setting them back does.

:func:`weight_effects` compares a tuned model with its base, component by component.
``_owners`` divides all parameters among components first; ``_set_back`` then gives one
component the base's weights while a forecast is made. Nothing is trained here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from einops import rearrange
from torch import Tensor, nn

from tsfm_lens.ablation.metrics import mae
from tsfm_lens.ablation.rollouts import Progress
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import Result, add_estimates
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.wiring import Attention, Mlp, Stack
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.merging import merged
from tsfm_lens.models.noise import (
    Measure,
    forecast_rounding,
    marked_dataset,
    noise_floor,
    ranges,
)
from tsfm_lens.models.opening import load
from tsfm_lens.models.run import Run
from tsfm_lens.probes.sites import component_coords, head_or_kind

__all__ = ["weight_effects"]

Owner = Component | str
Slices = dict[str, "Slice"]
"""Parameters by name, and the part of each that belongs to one component."""
_SOURCE = (
    "fine-tuned weights set back one component at a time; LoRA: Hu et al. 2021,"
    " arXiv:2106.09685"
)


def weight_effects(
    base: Any, tuned: Any, run: Run, *, progress: Progress | None = None
) -> Result:
    """Compare a fine-tuned model with its base: what differs, and what it does.

    Components are heads, MLPs and other branches; norms, the embedding, the output head
    and what is left ("rest") have entries too. Each is set back to the base's weights
    alone, and then all of them one after the other, that of the largest share first;
    what then remains is the base model. Every forecast is :attr:`Run.point` of that
    model by itself: a token model follows its own path, unless the run gives one.

    Args:
        base: lens, name or folder of the model, or the model of its own library.
        tuned: the same; also with adapters of peft that are not merged, which are read
            as what they add to their matrices.
        run: series, horizon, truth and seed; of any lens.
        progress: called with (done, of).

    Returns:
        Dataset of kind "weight_effects" over ``component``, the largest ``share_size``
        first:

        - ``norm`` (component): of the change of the weights.
        - ``relative_norm`` (component): this over the norm of the base's weights.
        - ``rank`` (component): of the change of its matrices, the largest.
        - ``full_rank`` (component): what it could be.
        - ``forecast`` (component, series, step): with the component set back, in data
          units.
        - ``effect`` (component, series, step): that minus the tuned forecast, in data
          units.
        - ``share`` (component, series): mean size of the effect over the range of
          context and forecast, NaN where that is 0.
        - ``tuned_forecast``, ``base_forecast`` (series, step): in data units.
        - ``cumulative_forecast`` (back, series, step): with so many components set
          back, in the order of ``component``, in data units.

        With a truth also, of which changes are natural logarithms of errors over those
        of the tuned model:

        - ``cumulative_error`` (back, series), ``base_error`` (series): mean absolute
          errors in data units.
        - ``error_change`` (component, series).
        - ``cumulative_error_change`` (back, series), and its median over series
          ``cumulative_error_change_size`` (back).
        - ``base_error_change`` (series): of the base model.

        ``share``, ``error_change`` and ``base_error_change`` come with what
        :func:`.estimates.add_estimates` adds. Attributes: ``statistic`` of all
        forecasts; ``identical``, 1 where no weight differs and there is no component;
        ``adapters``, the number of unmerged ones; ``base_files`` and ``tuned_files``,
        what was read.

    Raises:
        InputError: the two models are not of one architecture and size.

    Example:
        >>> probes.weight_effects(lens, lens, run).attrs["identical"]
        1
    """
    base_lens, _ = open_lens(base)
    tuned_lens, adapters = open_lens(tuned)
    differences = _differences(base_lens, tuned_lens)
    # rerun, since a part of a larger run draws its paths together with the rest
    tuned_run = rerun(tuned_lens, run)
    plain = tuned_run.point
    base_forecast = rerun(base_lens, run).point
    component_forecasts = []
    for done, difference in enumerate(differences):
        with _set_back(tuned_lens, difference):
            component_forecasts.append(rerun(tuned_lens, run).point)
        if progress is not None:
            progress(done + 1, 2 * len(differences))
    # reshaped, since no differences leave an array without the other axes
    forecasts = np.array(component_forecasts).reshape(len(differences), *plain.shape)
    if differences:
        effects = _with_effects(tuned_run, differences, forecasts, plain)
        # a component has no share where no series has a range, and is then among the
        # smallest
        order = np.argsort(-np.nan_to_num(effects["share_size"].values), kind="stable")
        differences = [differences[index] for index in order]
        forecasts = forecasts[order]
    cumulative = [plain]
    with ExitStack() as contexts:
        for difference in differences:
            contexts.enter_context(_set_back(tuned_lens, difference))
            cumulative.append(rerun(tuned_lens, run).point)
            if progress is not None:
                progress(len(differences) + len(cumulative) - 1, 2 * len(differences))
    data = _with_effects(tuned_run, differences, forecasts, plain).assign_coords(
        back=np.arange(len(cumulative))
    )
    axes = ("series", "step")
    # the entry at 0 is the tuned model, so there is one more than components
    data["cumulative_forecast"] = (("back", *axes), np.array(cumulative))
    data["tuned_forecast"] = (axes, plain)
    data["base_forecast"] = (axes, base_forecast)
    data.attrs = tuned_run.describe(
        "weight_effects",
        "Effects of tuned weights",
        _SOURCE,
        base=base_lens.model_id,
        identical=int(not differences),
        adapters=len(adapters),
        statistic=tuned_run.statistic,
        base_files=", ".join(map(str, base_lens.files)),
        tuned_files=", ".join(map(str, tuned_lens.files)),
    )
    if differences and run.truth is not None and np.isfinite(run.truth).any():
        data = _with_errors(data, tuned_run, run.truth)
    return Result(data.data_vars, data.coords, data.attrs)


def rerun(lens: Lens, run: Run) -> Run:
    """Return a run of the same series by another model.

    It may be the same lens, whose weights have changed since.
    """
    return replace(run, lens=lens, _of=None, _conditions=None)


_SIZES = ("norm", "relative_norm", "rank", "full_rank")


@dataclass(frozen=True)
class Slice:
    """Part of a parameter: entries ``at`` along one axis, or all of it."""

    axis: int = 0
    at: Tensor | None = None

    def of(self, parameter: Tensor) -> Tensor:
        """Return these entries, a copy unless they are all."""
        values = parameter.detach()
        if self.at is None:
            return values
        return values.index_select(self.axis, self.at.to(values.device))

    def put(self, parameter: Tensor, values: Tensor) -> None:
        """Replace these entries, uncounted by torch.

        They are put back later, so stored runs of the model stay what they are.
        """
        data = parameter.data
        if self.at is None:
            data.copy_(values)
        else:
            data.index_copy_(self.axis, self.at.to(data.device), values.to(data))


@dataclass
class _Difference:
    """Weights of one component that differ.

    It holds their slices, the base's parameters, and the size and rank of the change.
    """

    owner: Owner
    slices: Slices = field(default_factory=dict)
    values: dict[str, Tensor] = field(default_factory=dict)
    norm: float = 0.0
    relative_norm: float = 0.0
    rank: int = 0
    full_rank: int = 0


def _with_effects(
    run: Run,
    differences: Sequence[_Difference],
    forecasts: np.ndarray,
    plain: np.ndarray,
) -> xr.Dataset:
    """Return a result with sizes of the change, forecasts and their shares.

    Each forecast is with one component set back.
    """
    data = marked_dataset(
        run, **component_coords([difference.owner for difference in differences])
    )
    axes = ("component", "series", "step")
    for name in _SIZES:
        data[name] = (
            "component",
            np.array([getattr(difference, name) for difference in differences]),
        )
    data["forecast"] = (axes, forecasts)
    data["effect"] = (axes, forecasts - plain)
    if not differences:
        return data
    spans = ranges(run, plain)
    # a series without a range has no share
    scale = np.where(spans > 0, spans, np.nan)

    def share(other: np.ndarray, plain: np.ndarray) -> np.ndarray:
        result: np.ndarray = np.abs(other - plain).mean(-1) / scale
        return result

    data["share"] = (axes[:2], share(forecasts, plain))
    return add_estimates(
        data, "share", floor=noise_floor(run, share), groups=head_or_kind(data)
    )


def _with_errors(data: xr.Dataset, run: Run, truth: np.ndarray) -> xr.Dataset:
    """Add errors, and their change from those of the tuned model, with tests."""
    change = log_error_change(run, truth)
    cumulative = data["cumulative_forecast"].values
    tuned = data["tuned_forecast"].values
    data["cumulative_error"] = (("back", "series"), mae(cumulative, truth))
    data["base_error"] = (("series",), mae(data["base_forecast"].values, truth))
    data["cumulative_error_change"] = (("back", "series"), change(cumulative, tuned))
    data["error_change"] = (
        ("component", "series"),
        change(data["forecast"].values, tuned),
    )
    data["base_error_change"] = (
        ("series",),
        change(data["base_forecast"].values, tuned),
    )
    floor = noise_floor(run, lambda other, plain: np.abs(change(other, plain)))
    # the median alone: tests after every component set back would cost the other tests
    # their power
    sizes = add_estimates(data, "cumulative_error_change", floor=floor, signed=True)[
        "cumulative_error_change_size"
    ]
    data["cumulative_error_change_size"] = sizes
    data = add_estimates(
        data, "error_change", floor=floor, signed=True, groups=head_or_kind(data)
    )
    return add_estimates(data, "base_error_change", floor=floor, signed=True)


def log_error_change(run: Run, truth: np.ndarray) -> Measure:
    """Return the function that measures the change of the logarithm of the error.

    It takes a forecast (…, series, step) and the one that it is compared with.
    """
    # errors of less than rounding are the same error
    smallest = np.maximum(forecast_rounding(run), np.finfo(float).tiny)

    def log_error(forecast: np.ndarray) -> np.ndarray:
        result: np.ndarray = np.log(np.maximum(mae(forecast, truth), smallest))
        return result

    def change(other: np.ndarray, plain: np.ndarray) -> np.ndarray:
        result: np.ndarray = log_error(other) - log_error(plain)
        return result

    return change


def open_lens(source: Any) -> tuple[Lens, list[str]]:
    """Return a lens of a model or its files, and the names of unmerged adapters."""
    if isinstance(source, Lens):
        return source, []
    if isinstance(source, str) or hasattr(source, "__fspath__"):
        return load(source), []
    native, adapters = merged(source)
    return load(native), adapters


def named_pair(base: Lens, tuned: Lens) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the parameters of both models by name; of other sizes they are refused."""
    old: dict[str, Tensor] = dict(base.model.named_parameters())
    new: dict[str, Tensor] = dict(tuned.model.named_parameters())
    same_architecture = base.wiring.architecture == tuned.wiring.architecture
    same_names = same_architecture and set(old) == set(new)
    wrong = [name for name in new if same_names and new[name].shape != old[name].shape]
    if not same_names or wrong:
        if wrong:
            detail = (
                f"{wrong[0]} has {tuple(old[wrong[0]].shape)} and"
                f" {tuple(new[wrong[0]].shape)}"
            )
        else:
            detail = (
                f"{base.wiring.architecture} has {len(old)} tensors,"
                f" {tuned.wiring.architecture} {len(new)}"
            )
        raise InputError(
            f"{base.model_id} and {tuned.model_id} are not a model and its fine-tuned"
            f" version: {detail}; expected the same architecture and sizes"
        )
    return old, new


def _differences(base: Lens, tuned: Lens) -> list[_Difference]:
    """List the components whose weights differ."""
    old, new = named_pair(base, tuned)
    differences = []
    for owner, slices in _owners(tuned).items():
        difference = _Difference(owner)
        base_square = 0.0
        for name, part in slices.items():
            tuned_part = part.of(new[name])
            base_part = part.of(old[name]).to(tuned_part.device)
            base_square += float(base_part.double().square().sum())
            change = tuned_part.double() - base_part.double()
            if not bool(change.any()):
                continue
            difference.slices[name] = part
            difference.values[name] = old[name]
            # squares until all slices are in; the root is taken below
            difference.norm += float(change.square().sum())
            rank, full = _rank(change, new[name])
            if rank > difference.rank:
                difference.rank = rank
                difference.full_rank = full
        if difference.slices:
            difference.norm = difference.norm**0.5
            difference.relative_norm = np.inf
            if base_square > 0:
                difference.relative_norm = difference.norm / base_square**0.5
            differences.append(difference)
    return differences


def _rank(change: Tensor, weight: Tensor) -> tuple[int, int]:
    """Return the rank of a change, and the largest that there is.

    Singular values count above the rounding of the weights that the change was added
    to.
    """
    if change.ndim < 2:
        return 0, 0
    # a convolution's kernel (out, in, width) is a matrix of its outputs
    matrix = change.flatten(1)
    step = torch.finfo(weight.dtype).eps * float(weight.detach().abs().max())
    values = torch.linalg.svdvals(matrix)
    # the norm of a matrix of independent rounding errors grows with the root of its
    # size
    return int((values > 4 * step * max(matrix.shape) ** 0.5).sum()), min(matrix.shape)


@contextmanager
def _set_back(lens: Lens, difference: _Difference) -> Iterator[None]:
    """Give a component the base's weights while the block runs."""
    parameters = dict(lens.model.named_parameters())
    slices = difference.slices
    # cloned, since a slice of a full parameter is the parameter itself
    backup = {name: part.of(parameters[name]).clone() for name, part in slices.items()}
    try:
        for name, part in slices.items():
            part.put(parameters[name], part.of(difference.values[name]))
        yield
    finally:
        for name, part in slices.items():
            part.put(parameters[name], backup[name])


class _Ownership:
    """Owners of the parameters of a model.

    An entry belongs to the first owner that claims it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.names = {
            id(parameter): name for name, parameter in model.named_parameters()
        }
        self.free: dict[str, tuple[int, Tensor]] = {}
        self.owners: dict[Owner, Slices] = {}

    def claim(
        self, owner: Owner, parameter: Any, axis: int = 0, at: Tensor | None = None
    ) -> None:
        """Give an owner the free entries of a parameter, or of a part along an axis.

        All entries of a parameter are claimed along one axis.
        """
        # a parameter that two modules share has one name, and buffers have none
        name = self.names.get(id(parameter))
        if name is None:
            return
        full = at is None and name not in self.free
        length = 1
        if parameter.ndim:
            length = parameter.shape[axis]
        along, free = self.free.setdefault(
            name, (axis, torch.ones(length, dtype=torch.bool))
        )
        if at is None:
            at = torch.arange(len(free))
        elif along != axis:
            # what is free is known along one axis alone; the rest of such a parameter
            # is left for later claims of all of it
            at = at[:0]
        claimed = at[free[at]]
        if not len(claimed):
            return
        free[claimed] = False
        slices = self.owners.setdefault(owner, {})
        # queries, keys and values may be one matrix, which one head claims three times
        earlier = None
        if name in slices:
            earlier = slices[name].at
        if full:
            slices[name] = Slice()
        elif earlier is None:
            slices[name] = Slice(along, claimed)
        else:
            slices[name] = Slice(along, torch.cat([earlier, claimed]))

    def claim_module(self, owner: Owner, path: str) -> None:
        """Give an owner all that is free in a module."""
        for parameter in self.model.get_submodule(path).parameters():
            self.claim(owner, parameter)


def _owners(lens: Lens) -> dict[Owner, Slices]:
    """Return every entry of every parameter by its owner.

    Owners are components, norms, the embedding, the output head, and the rest.
    """
    model = lens.model
    wiring = lens.wiring
    ownership = _Ownership(model)
    layers = [
        (stack, layer) for stack in wiring.stacks for layer in range(stack.n_layers)
    ]
    for stack, layer in layers:
        block = stack.block(layer)
        # the first claim of an entry counts: branches claim before norms, the whole
        # model last
        for writer in stack.rows(layer):
            branch = Component(stack.name, layer, writer.kind)
            if isinstance(writer, Attention):
                for part in _head_parts(model, stack, layer, writer):
                    ownership.claim(part.owner, part.parameter, part.axis, part.at)
            elif isinstance(writer, Mlp):
                paths = [writer.i.module, writer.o]
                if writer.gate:
                    paths.insert(1, writer.gate.module)
                # input matrix and gate may be one module
                for path in dict.fromkeys(paths):
                    ownership.claim_module(branch, f"{block}.{path}")
            else:
                ownership.claim_module(
                    branch, f"{block}.{writer.reads.module or writer.write.module}"
                )
    for stack, layer in layers:
        norms = f"{stack.name}.{layer} norms".lstrip(".")
        for writer in stack.rows(layer):
            for path in filter(None, (writer.norm, writer.post_norm)):
                ownership.claim_module(norms, f"{stack.block(layer)}.{path}")
    ownership.claim_module("embed", wiring.embed)
    ownership.claim_module("unembed", wiring.unembed.module)
    # the empty path is the model itself, so that no parameter is left over
    ownership.claim_module("rest", "")
    return ownership.owners


@dataclass(frozen=True, eq=False)
class _HeadPart:
    """Entries of one parameter that belong to a head, or to what the heads share."""

    owner: Component
    parameter: Any
    axis: int
    at: Tensor | None


def _head_parts(
    model: nn.Module, stack: Stack, layer: int, attention: Attention
) -> Iterator[_HeadPart]:
    """Yield owner, parameter, axis and entries of each head.

    What the heads share is yielded with their branch.
    """
    branch = Component(stack.name, layer, attention.kind)
    for letter, part in [*attention.inputs.items(), ("o", attention.o)]:
        module = model.get_submodule(f"{stack.block(layer)}.{part.module}".rstrip("."))
        weight = getattr(module, part.weight)
        bias = getattr(module, part.bias, None)
        if letter == "o":
            heads = stack.n_heads
        else:
            heads = attention.count_heads(letter, stack.n_heads)
        axis = int(letter == "o")
        sizes = {"head": heads}
        target = "head d_head"
        if part.parts > 1:
            sizes["part"] = part.parts
            target = "part head d_head"
        # the index of each entry along the axis, (head, d_head), by the layout of the
        # projection
        indices = rearrange(
            torch.arange(weight.shape[axis]), f"{part.layout} -> {target}", **sizes
        )
        if part.parts > 1:
            indices = indices[part.part]
        for head in range(heads):
            # keys and values that several heads share belong to the branch
            owner = branch
            if heads == stack.n_heads:
                owner = replace(branch, head=head)
            yield _HeadPart(owner, weight, axis, indices[head])
            # the bias of an input projection is along its outputs, as the heads are;
            # that of W_O is in the stream, and belongs to no head
            if bias is not None and not axis:
                yield _HeadPart(owner, bias, 0, indices[head])
        if bias is not None and axis:
            yield _HeadPart(branch, bias, 0, None)
