"""Effects of fine-tuning: which components' weights differ from the base model's, and
what setting each back does.
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
from tsfm_lens.ablation.points import Progress
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import Result, judge
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.wiring import Attention, Mlp, Stack
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.merging import merged
from tsfm_lens.models.noise import marked_dataset, noise_floor, own_rounding, ranges
from tsfm_lens.models.opening import load
from tsfm_lens.models.run import Run
from tsfm_lens.probes.places import component_coords, head_or_kind

__all__ = ["weight_effects"]

Owner = Component | str
Places = dict[str, "Slice"]
"""Parameters by name, and the part of each that belongs to one component."""
_SOURCE = (
    "fine-tuned weights set back one component at a time; LoRA: Hu et al. 2021,"
    " arXiv:2106.09685"
)


def weight_effects(
    base: Any, tuned: Any, run: Run, *, progress: Progress | None = None
) -> Result:
    """Compare a fine-tuned model with its base: whose weights differ, and what setting
    them back does to the forecast.

    Components are heads, MLPs and other branches; norms, the embedding, the output head
    and what is left ("rest") stand beside them. Each is set back to the base's weights
    alone, and then all of them one after the other, that of the largest share first;
    what then remains is the base model. Every forecast is :attr:`Run.point` of that
    model by itself: a token model follows its own path, unless the run gives one.

    Args:
        base, tuned: lenses, or anything that :func:`tsfm_lens.load` takes; the tuned
            model also with adapters of peft that are not merged, which are read as what
            they add to their matrices.
        run: series, horizon, truth and seed; of any lens.
        progress: called with (done, of).

    Returns:
        Dataset of kind "weight_effects", over (component), the largest ``share_size``
        first: ``norm`` of the change and ``relative_norm``, over that of the base's
        weights; ``rank`` of the change of its matrices, the largest, and ``full_rank``,
        what it could be. Over (component, series, step), in data units: ``forecast``
        with the component set back, and ``effect``, that minus the tuned forecast.
        ``share`` (component, series): mean size of the effect over the range of context
        and forecast, NaN where that is 0. ``tuned_forecast`` and ``base_forecast``
        (series, step); ``cumulative_forecast`` (back, series, step) with so many
        components set back, in the order of ``component``. With a truth
        ``cumulative_error`` (back, series) and ``base_error`` (series), the mean
        absolute errors in data units. Free of units, as natural logarithms of errors
        over those of the tuned model, ``error_change`` (component, series),
        ``cumulative_error_change`` (back, series), median over series
        ``cumulative_error_change_size``, and of the base model ``base_error_change``
        (series). ``share``, ``error_change`` and ``base_error_change`` come with what
        :func:`.estimates.judge` adds. Attributes: ``statistic`` of all forecasts;
        ``identical`` is 1 where no weight differs: then there is no component;
        ``adapters`` counts unmerged ones; ``base_files`` and ``tuned_files`` are what
        was read.

    Raises:
        InputError: the two models are not of one architecture and size.

    Example:
        >>> probes.weight_effects(lens, lens, run).attrs["identical"]
        1
    """
    first, (second, adapters) = _lens(base)[0], _lens(tuned)
    differences = _differences(first, second)
    # also of a part of a larger run, whose paths would be drawn together with others
    subject = _by(second, run)
    plain = subject.point
    of_base = _by(first, run).point
    alone = []
    for done, difference in enumerate(differences):
        with _set_back(second, difference):
            alone.append(_by(second, run).point)
        if progress is not None:
            progress(done + 1, 2 * len(differences))
    forecasts = np.array(alone).reshape(len(differences), *plain.shape)
    if differences:
        sizes = _with_effects(subject, differences, forecasts, plain)[
            "share_size"
        ].values
        order = np.argsort(-np.nan_to_num(sizes), kind="stable")
        differences = [differences[at] for at in order]
        forecasts = forecasts[order]
    together = [plain]
    with ExitStack() as opened:
        for difference in differences:
            opened.enter_context(_set_back(second, difference))
            together.append(_by(second, run).point)
            if progress is not None:
                progress(len(differences) + len(together) - 1, 2 * len(differences))
    data = _with_effects(subject, differences, forecasts, plain).assign_coords(
        back=np.arange(len(together))
    )
    axes = ("series", "step")
    data["cumulative_forecast"] = (("back", *axes), np.array(together))
    data["tuned_forecast"] = (axes, plain)
    data["base_forecast"] = (axes, of_base)
    data.attrs = subject.describe(
        "weight_effects",
        "Effects of tuned weights",
        _SOURCE,
        base=first.model_id,
        identical=int(not differences),
        adapters=len(adapters),
        statistic=subject.statistic,
        base_files=", ".join(map(str, first.files)),
        tuned_files=", ".join(map(str, second.files)),
    )
    if differences and run.truth is not None and np.isfinite(run.truth).any():
        data = _with_errors(data, subject, run.truth)
    return Result(data.data_vars, data.coords, data.attrs)


def _by(lens: Lens, run: Run) -> Run:
    """Return a run of the same series by another model, or by one whose weights are
    others by now.
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
        """Replace these entries, uncounted by torch: they are put back, and runs of the
        model stay what they are.
        """
        data = parameter.data
        if self.at is None:
            data.copy_(values)
        else:
            data.index_copy_(self.axis, self.at.to(data.device), values.to(data))


@dataclass
class _Difference:
    """Weights of one component that differ: where, and the base's parameters."""

    owner: Owner
    places: Places = field(default_factory=dict)
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
    """Label what the weights of components moved by, the forecasts with each set back,
    and their shares.
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
    wide = ranges(run, plain)
    # a series without a range has no share
    per = np.where(wide > 0, wide, np.nan)

    def share(other: np.ndarray, plain: np.ndarray) -> np.ndarray:
        return np.abs(other - plain).mean(-1) / per

    data["share"] = (axes[:2], share(forecasts, plain))
    return judge(
        data, "share", floor=noise_floor(run, share), groups=head_or_kind(data)
    )


def _with_errors(data: xr.Dataset, run: Run, truth: np.ndarray) -> xr.Dataset:
    """Add errors, and how they compare with those of the tuned model, with tests."""
    # errors of less than rounding are the same error
    least = np.maximum(own_rounding(run), np.finfo(float).tiny)

    def log_error(forecast: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(mae(forecast, truth), least))

    def change(other: np.ndarray, plain: np.ndarray) -> np.ndarray:
        return log_error(other) - log_error(plain)

    together = data["cumulative_forecast"].values
    tuned = data["tuned_forecast"].values
    data["cumulative_error"] = (("back", "series"), mae(together, truth))
    data["base_error"] = (("series",), mae(data["base_forecast"].values, truth))
    data["cumulative_error_change"] = (("back", "series"), change(together, tuned))
    data["error_change"] = (
        ("component", "series"),
        change(data["forecast"].values, tuned),
    )
    data["base_error_change"] = (
        ("series",),
        change(data["base_forecast"].values, tuned),
    )
    floor = noise_floor(run, lambda other, plain: np.abs(change(other, plain)))
    # its median alone: tests of every step on the way would cost the others their power
    sizes = judge(data, "cumulative_error_change", floor=floor, signed=True)[
        "cumulative_error_change_size"
    ]
    data["cumulative_error_change_size"] = sizes
    data = judge(
        data, "error_change", floor=floor, signed=True, groups=head_or_kind(data)
    )
    return judge(data, "base_error_change", floor=floor, signed=True)


def _lens(source: Any) -> tuple[Lens, list[str]]:
    if isinstance(source, Lens):
        return source, []
    native, adapters = (
        (source, [])
        if isinstance(source, str) or hasattr(source, "__fspath__")
        else merged(source)
    )
    return load(native), adapters


def _differences(base: Lens, tuned: Lens) -> list[_Difference]:
    """List the components whose weights differ."""
    rest, own = (dict(lens.model.named_parameters()) for lens in (base, tuned))
    is_alike = base.wiring.architecture == tuned.wiring.architecture
    same = is_alike and set(rest) == set(own)
    wrong = [name for name in own if same and own[name].shape != rest[name].shape]
    if not same or wrong:
        if wrong:
            about = (
                f"{wrong[0]} has {tuple(rest[wrong[0]].shape)} and"
                f" {tuple(own[wrong[0]].shape)}"
            )
        else:
            about = (
                f"{base.wiring.architecture} has {len(rest)} tensors,"
                f" {tuned.wiring.architecture} {len(own)}"
            )
        raise InputError(
            f"{base.model_id} and {tuned.model_id} are not a model and its fine-tuned"
            f" version: {about}; expected the same architecture and sizes"
        )
    differences = []
    for owner, positions in _owners(tuned).items():
        each = _Difference(owner)
        before = 0.0
        for name, part in positions.items():
            new = part.of(own[name])
            old = part.of(rest[name]).to(new.device)
            before += float(old.double().square().sum())
            change = new.double() - old.double()
            if not bool(change.any()):
                continue
            each.places[name] = part
            each.values[name] = rest[name]
            each.norm += float(change.square().sum())
            rank, full = _rank(change, own[name])
            if rank > each.rank:
                each.rank = rank
                each.full_rank = full
        if each.places:
            each.norm = each.norm**0.5
            each.relative_norm = each.norm / before**0.5 if before > 0 else np.inf
            differences.append(each)
    return differences


def _rank(change: Tensor, weight: Tensor) -> tuple[int, int]:
    """Return the rank of a change above the rounding of the weights that it was added
    to, and the largest there is.
    """
    if change.ndim < 2:
        return 0, 0
    matrix = change.flatten(1)
    step = torch.finfo(weight.dtype).eps * float(weight.detach().abs().max())
    values = torch.linalg.svdvals(matrix)
    return int((values > 4 * step * max(matrix.shape) ** 0.5).sum()), min(matrix.shape)


@contextmanager
def _set_back(lens: Lens, difference: _Difference) -> Iterator[None]:
    """Give a component the base's weights while the block runs."""
    named = dict(lens.model.named_parameters())
    positions = difference.places
    backup = {name: part.of(named[name]).clone() for name, part in positions.items()}
    try:
        for name, part in positions.items():
            part.put(named[name], part.of(difference.values[name]))
        yield
    finally:
        for name, part in positions.items():
            part.put(named[name], backup[name])


class _Claims:
    """Owners of the parameters of a model; what one has claimed, no other gets."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.names = {
            id(parameter): name for name, parameter in model.named_parameters()
        }
        self.free: dict[str, tuple[int, Tensor]] = {}
        self.owners: dict[Owner, Places] = {}

    def claim(
        self, owner: Owner, parameter: Any, axis: int = 0, at: Tensor | None = None
    ) -> None:
        """Give an owner entries along an axis of a parameter, or all; those of a
        parameter are of one axis.
        """
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
        elif along == axis:
            at = at
        else:
            at = at[:0]
        mine = at[free[at]]
        if len(mine):
            free[mine] = False
            positions = self.owners.setdefault(owner, {})
            # queries, keys and values may be one matrix
            before = None
            if name in positions:
                before = positions[name].at
            positions[name] = (
                Slice()
                if full
                else Slice(along, mine if before is None else torch.cat([before, mine]))
            )

    def claim_module(self, owner: Owner, path: str) -> None:
        """Give an owner all that is free in a module."""
        for parameter in self.model.get_submodule(path).parameters():
            self.claim(owner, parameter)


def _owners(lens: Lens) -> dict[Owner, Places]:
    """Divide every entry of every parameter among components, norms, embedding, output
    head, and the rest.
    """
    model = lens.model
    wiring = lens.wiring
    statements = _Claims(model)
    layers = [
        (stack, layer) for stack in wiring.stacks for layer in range(stack.n_layers)
    ]
    for stack, layer in layers:
        block = stack.block(layer)
        for row in stack.rows(layer):
            branch = Component(stack.name, layer, row.kind)
            if isinstance(row, Attention):
                for owner, parameter, axis, at in _of_heads(model, stack, layer, row):
                    statements.claim(owner, parameter, axis, at)
            elif isinstance(row, Mlp):
                for path in dict.fromkeys(
                    (row.i.module, *((row.gate.module,) if row.gate else ()), row.o)
                ):
                    statements.claim_module(branch, f"{block}.{path}")
            else:
                statements.claim_module(
                    branch, f"{block}.{row.reads.module or row.write.module}"
                )
    for stack, layer in layers:
        norms = f"{stack.name}.{layer} norms".lstrip(".")
        for row in stack.rows(layer):
            for path in filter(None, (row.norm, row.post_norm)):
                statements.claim_module(norms, f"{stack.block(layer)}.{path}")
    statements.claim_module("embed", wiring.embed)
    statements.claim_module("unembed", wiring.unembed.module)
    statements.claim_module("rest", "")
    return statements.owners


def _of_heads(
    model: nn.Module, stack: Stack, layer: int, row: Attention
) -> Iterator[tuple[Component, Any, int, Tensor | None]]:
    """Yield owner, parameter, axis and entries of each head, and of what the heads
    share.
    """
    branch = Component(stack.name, layer, row.kind)
    for letter, part in [*row.inputs.items(), ("o", row.o)]:
        module = model.get_submodule(f"{stack.block(layer)}.{part.module}".rstrip("."))
        weight = getattr(module, part.weight)
        bias = getattr(module, part.bias, None)
        if letter == "o":
            heads = stack.n_heads
        else:
            heads = row.count_heads(letter, stack.n_heads)
        axis = int(letter == "o")
        sizes = {"head": heads, **({"part": part.parts} if part.parts > 1 else {})}
        side = "head d_head"
        if part.parts > 1:
            side = "part head d_head"
        positions = rearrange(
            torch.arange(weight.shape[axis]), f"{part.layout} -> {side}", **sizes
        )
        if part.parts > 1:
            positions = positions[part.part]
        for head in range(heads):
            owner = branch
            if heads == stack.n_heads:
                owner = replace(branch, head=head)
            yield owner, weight, axis, positions[head]
            if bias is not None and not axis:
                yield owner, bias, 0, positions[head]
        if bias is not None and axis:
            yield branch, bias, 0, None
