"""Exactness oracles: independent ways to the same answer, run on any wired model.

Each oracle takes a :class:`Case` and returns an :class:`OracleResult`. ``quick_check`` runs the cheap one
whenever a model is loaded; the conformance suite runs all of them on every architecture.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.errors import WiringError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.names import RESIDUAL_NAMES
from tsfm_lens.hooks.residual import branch_sums, carry_factors
from tsfm_lens.hooks.wiring import Attention, Stack
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.lens import Lens
from tsfm_lens.testing.tolerance import rounding

# what the roundings of one block, or of two, make of a value of 1 in single precision
ONE_BLOCK, TWO_BLOCKS = (rounding(torch.float32, 1.0, depth=100 * blocks) for blocks in (1, 2))

STREAMS = RESIDUAL_NAMES
ATTENTION_POINTS = ("hook_q", "hook_k", "hook_v", "hook_attn_scores", "hook_pattern")


@dataclass(frozen=True)
class OracleResult:
    """Result of one oracle.

    Attributes:
        oracle: its number and name.
        error: the largest deviation found.
        bound: the largest deviation allowed.
        detail: place of the largest deviation, or the comparison.
    """

    oracle: str
    error: float
    bound: float
    detail: str = ""

    @property
    def passed(self) -> bool:
        """True if the deviation is within the bound; a NaN is not."""
        return bool(self.error <= self.bound)


@dataclass(frozen=True)
class Case:
    """Model and the series on which it is checked.

    Attributes:
        lens: the model.
        batch: series of unequal length, one with missing values.
        horizon: forecast steps of rollouts.
        decoder_steps: length of the teacher-forced decoder input of a token model.
    """

    lens: Lens
    batch: SeriesBatch
    horizon: int
    decoder_steps: int = 5

    @cached_property
    def encoded(self) -> Encoded:
        """Batch for a single forward, with a teacher-forced future where the decoder takes one."""
        if self.lens.adapter.readout != "token":
            return self.lens.encode(self.batch, horizon=self.horizon)
        last = np.stack([series[-self.decoder_steps :] for series in self.batch.values])
        return self.lens.encode(self.batch, future=np.nan_to_num(last, nan=float(np.nanmean(last))))

    def other(self, series: np.ndarray) -> np.ndarray:
        """Return another series of the same length, with its missing values in the same places."""
        other = series[::-1] if getattr(self.lens.adapter, "integers", False) else series[::-1] * 0.5 + 1.0
        values = np.where(np.isnan(other), np.nanmean(series), other)
        return np.where(np.isnan(series), np.nan, values)

    @cached_property
    def captured(self) -> tuple[Tensor, Activations]:
        """Output and all activations of a single forward."""
        with torch.no_grad():
            return self.lens.run_with_cache(self.encoded, names_filter=lambda _name: True)


def example_case(lens: Lens, *, n_series: int = 3, longest: int = 60) -> Case:
    """Build a case with series of unequal length and missing values, the same for every model.

    Example:
        >>> len(testing.example_case(lens).batch)
        4
    """
    rng = np.random.default_rng(0)
    longest = min(longest, lens.adapter.context_length)
    example = getattr(lens.adapter, "example", None)
    if example is not None:
        return Case(lens, example(n_series, longest), horizon=min(6, lens.adapter.prediction_length))
    values = []
    for index in range(n_series):
        steps = np.arange(longest - 7 * index)
        season = np.sin(2 * np.pi * steps / (6 + index)) * (1 + index)
        values.append(10 * index + season + 0.02 * steps + 0.3 * rng.standard_normal(len(steps)))
    values[0][5:9] = np.nan
    # one series without NaN reaches back as far as any, so that no token is padding in every row
    values.append(3.0 + np.cos(np.arange(longest) / 3.0) + 0.1 * rng.standard_normal(longest))
    if lens.adapter.multivariate:
        batch = as_series([np.stack([v, np.roll(v, 3) * 0.5 + 1.0]) for v in values])
    else:
        batch = as_series(values)
    return Case(lens, batch, horizon=min(6, lens.adapter.prediction_length))


def by_themselves(case: Case) -> SeriesBatch:
    """Separate the series, each one an item.

    They stay in their items for a model that takes a fixed number of variates and no other.
    """
    if getattr(case.lens.adapter, "n_variates", None) is None:
        return as_series(list(case.batch.values))
    return case.batch


def relative(a: Tensor, b: Tensor) -> float:
    """Compute the largest deviation of a from b, relative to the largest value of b."""
    if a.shape != b.shape:
        return float("inf")
    a, b = a.detach(), b.detach()
    scale = float(b.abs().max()) or 1.0
    return float((a - b).abs().max()) / scale


def _worst(oracle: str, bound: float, deviations: dict[str, float]) -> OracleResult:
    where = max(deviations, key=lambda key: deviations[key] if deviations[key] == deviations[key] else float("inf"))
    return OracleResult(oracle, deviations[where], bound, where)


def same_forecast(case: Case) -> OracleResult:
    """Check oracle 1: without hooks, the lens's forecast is the library's, to the last bit."""
    lens = case.lens
    ours = lens.forecast(case.batch, case.horizon, seed=3)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        theirs = lens.adapter.predict(case.batch, case.horizon, ours.levels, None)[0]
    equal = np.array_equal(ours.quantiles, theirs.permute(0, 2, 1).numpy().astype(float), equal_nan=True)
    return OracleResult("1 no hook: native forecast", 0.0 if equal else 1.0, 0.0, "torch.equal")


def reading_changes_nothing(case: Case) -> OracleResult:
    """Check oracle 2: hooks that only read leave every bit where the fused kernel still runs.

    Elsewhere they leave it up to a block's roundings.

    torch's own fast path of ``nn.TransformerEncoderLayer`` ends as soon as any hook is set, so bits are compared
    without it.
    """
    lens = case.lens
    with torch.no_grad():
        fast = lens.forward(case.encoded)
        with _no_fast_path():
            plain = lens.forward(case.encoded)
        fused_output, _ = lens.run_with_cache(
            case.encoded, names_filter=lambda name: not name.endswith(ATTENTION_POINTS)
        )
        projections, _ = lens.run_with_cache(
            case.encoded, names_filter=lambda name: name.endswith(ATTENTION_POINTS[:3])
        )
    if not (torch.equal(fused_output, plain) and torch.equal(projections, plain)):
        return OracleResult("2 reading hooks", float("inf"), ONE_BLOCK, "fused kernel: not bit for bit")
    deviations = {"attention recomputed": relative(case.captured[0], plain), "torch's fast path": relative(fast, plain)}
    return _worst("2 reading hooks", ONE_BLOCK, deviations)


@contextmanager
def _no_fast_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def accounting(case: Case) -> OracleResult:
    """Check oracle 3: embedding + all writes = last residual stream, and the native head on it = the output."""
    output, acts = case.captured
    model, wiring = case.lens.adapter.model, case.lens.wiring
    deviations: dict[str, float] = {}
    for stack in wiring.stacks:
        dot = f"{stack.name}." if stack.name else ""
        factors = carry_factors(model, stack)
        for place, actual, expected in branch_sums(model, wiring, stack, acts):
            deviations[place] = relative(expected, actual)
        total = acts[f"{dot}hook_embed"] * factors["embed"]
        for layer in range(stack.n_layers):
            for writer in stack.rows(layer):
                total += acts[f"{stack.prefix}.{layer}.{writer.kind}.hook_out"] * factors[layer, writer.kind]
        last = acts[f"{stack.prefix}.{stack.n_layers - 1}.hook_resid_post"]
        deviations[f"{stack.name} stream"] = relative(total, last)
    with torch.no_grad():
        out = case.lens.readout(acts[f"{stack.prefix}.{stack.n_layers - 1}.hook_resid_post"], case.encoded)
    deviations["head"] = relative(out, output)
    return _worst("3 accounting", ONE_BLOCK, deviations)


def layers_to_check(stack: Stack) -> list[int]:
    """Return the first layer of every kind of row, the second, and the last: all that can be wrong differently."""
    first = {id(stack.rows(layer)): layer for layer in reversed(range(stack.n_layers))}
    return sorted({*first.values(), min(1, stack.n_layers - 1), stack.n_layers - 1})


def zero_ablation(case: Case, *, most: int | None = None) -> OracleResult:
    """Check oracle 4: zeroing a head or MLP = zeroing its output weights natively; every one moves the output.

    Args:
        most: check this many components, evenly spread; all if None.
    """
    lens = case.lens
    deviations = {}
    with torch.no_grad():
        plain = lens.forward(case.encoded)
        for stack in lens.wiring.stacks:
            components = writers(lens.wiring, stack.name)
            step = 1 if most is None else max(1, len(components) // most)
            for component in components[::step]:
                assert component.kind is not None
                with lens.ablate(component):
                    ours = lens.forward(case.encoded)
                with _zeroed_weights(lens, stack, component):
                    theirs = lens.adapter.run(case.encoded.inputs)
                effect = relative(theirs, plain)
                # a component that does nothing would let any check pass
                deviations[str(component)] = relative(ours, theirs) if effect > 1e-7 else float("inf")
    return _worst("4 zero-ablation", TWO_BLOCKS, deviations)


@contextmanager
def _zeroed_weights(lens: Lens, stack: Stack, component: Component) -> Iterator[None]:
    """Zero a head's columns of W_O, or an MLP's output matrix, in the native model while the block runs."""
    assert component.kind is not None
    row = stack.writer(component.kind, component.layer)
    block = stack.block(component.layer)
    path = row.o.module if isinstance(row, Attention) else row.o
    layer = lens.adapter.model.get_submodule(f"{block}.{path}")
    weight, bias = layer.weight.detach(), getattr(layer, "bias", None)
    if isinstance(row, Attention):
        heads = rearrange(weight, f"d_model {row.o.layout} -> head d_head d_model", head=stack.n_heads).clone()
        heads[component.head] = 0.0
        with with_tensor(layer, "weight", rearrange(heads, f"head d_head d_model -> d_model {row.o.layout}")):
            yield
        return
    with with_tensor(layer, "weight", torch.zeros_like(weight)):
        if bias is None:
            yield
        else:
            with with_tensor(layer, "bias", torch.zeros_like(bias)):
                yield


class _FixedValues(nn.Module):
    """Module that returns these values, in place of the one that computes a parametrised weight."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = values

    def forward(self) -> Tensor:
        return self.values


@contextmanager
def with_tensor(layer: Any, name: str, values: Tensor) -> Iterator[None]:
    """Replace the values of a layer's weight or bias while the block runs.

    A layer of factors computes with the matrix; a parametrised one takes the values in place of its own weight.
    """
    if name == "weight" and hasattr(layer, "as_matrix"):
        with layer.as_matrix(values):
            yield
        return
    if parametrize.is_parametrized(layer, name):
        original = layer.parametrizations[name]
        layer.parametrizations[name] = _FixedValues(values)
        try:
            yield
        finally:
            layer.parametrizations[name] = original
        return
    tensor = getattr(layer, name)
    backup = tensor.detach().clone()
    try:
        tensor.copy_(values)
        yield
    finally:
        tensor.copy_(backup)


def patching(case: Case) -> OracleResult:
    """Check oracle 6: a run patched into itself changes nothing; A's stream in B gives A's later streams and output."""
    lens = case.lens
    deviations = {}
    raw = "unembed.hook_out"
    other_batch = replace(case.batch, values=tuple(case.other(series) for series in case.batch.values))
    with torch.no_grad():
        _, acts = case.captured
        inside = STREAMS[len(lens.wiring.output_stack.rows(0)[:2]) - 1]
        for name in (inside, "hook_resid_post"):
            at = f"{lens.wiring.output_stack.prefix}.0.{name}"
            with lens.patch(acts, at):
                output = lens.forward(case.encoded)
            deviations[f"self: {at}"] = relative(output, lens.forward(case.encoded))
        other = Case(lens, other_batch, case.horizon, case.decoder_steps).encoded
        other.inputs.update(_masks(case.encoded, other))
        _, of_other = lens.run_with_cache(other, names_filter=raw)
        if relative(of_other[raw], acts[raw]) < 1e-3:
            deviations["A and B differ"] = float("inf")
        before: list[str] = []
        for stack in lens.wiring.stacks:
            # a decoder may start from a constant: no stream of B may be A's before it is put there
            embed = f"{stack.name}.hook_embed" if stack.name else "hook_embed"
            apart = [(embed, lambda value, hook: value.roll(1, dims=-1))]
            for layer in layers_to_check(stack):
                # what follows from the stream: the next layer's, and in the end the model's output
                after = raw if stack is lens.wiring.output_stack else f"{stack.prefix}.{layer}.hook_resid_post"
                for stream in STREAMS[: len(stack.rows(layer))]:
                    with lens.hooks(apart), lens.patch(acts, *before, f"{stack.prefix}.{layer}.{stream}"):
                        _, later_acts = lens.run_with_cache(other, names_filter=after)
                    deviations[f"A into B at {stack.prefix}.{layer}.{stream}"] = relative(
                        later_acts[after], acts[after]
                    )
            before.append(f"{stack.prefix}.0.hook_resid_pre")
    return _worst("6 patching", ONE_BLOCK, deviations)


def _masks(source: Encoded, target: Encoded) -> dict[str, Tensor]:
    """Return the source's attention mask, where masks are an input of their own."""
    return {key: value for key, value in source.inputs.items() if "mask" in key and key in target.inputs}


def quick_check(lens: Lens) -> list[OracleResult]:
    """Run the cheap oracle on one short series, as :func:`tsfm_lens.load` does.

    Raises:
        WiringError: the model does not compute what its wiring says.

    Example:
        >>> all(result.passed for result in testing.quick_check(lens))
        True
    """
    result = accounting(example_case(lens, n_series=1, longest=24))
    # half precision rounds more coarsely, and a wrong wiring is still off by far more
    coarser = torch.finfo(next(lens.parameters()).dtype).eps / torch.finfo(torch.float32).eps
    allowed = min(result.bound * max(1.0, coarser), 0.1)
    if not result.error <= allowed:
        raise WiringError(
            f"{lens.model_id}: oracle '{result.oracle}' fails by {result.error:.2g} (allowed {allowed:.0e}) "
            f"at {result.detail}. The model does not compute what the wiring "
            f"{lens.wiring.architecture!r} says; its activations would be wrong."
        )
    return [result]
