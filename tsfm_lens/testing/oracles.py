"""Exactness oracles: independent ways to the same answer, run on any wired model.

Read :class:`Case`, then :func:`accounting`, the oracle that ``load`` runs. An oracle is
a function that yields (what was compared, deviation), registered by :func:`oracle` with
its bound. More of them are in the modules ``oracles_…``; :mod:`tsfm_lens.testing.suite`
runs all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from einops import rearrange
from torch import Tensor
from torch.nn.utils import parametrize

from tsfm_lens.core.errors import WiringError
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.names import RESIDUAL_NAMES
from tsfm_lens.hooks.replay import shadowed
from tsfm_lens.hooks.residual import branch_sums, carry_factors
from tsfm_lens.hooks.wiring import Attention, Branch, Stack, Writer
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.lens import Lens
from tsfm_lens.testing.tolerance import rounding

# what `testing` exports by star; the rest is for the modules `oracles_…`
__all__ = ["Case", "OracleResult", "example_case", "quick_check"]

# what the roundings of one block, or of two, make of a value of 1 in single precision;
# a block has about 100 of them, see `rounding`
ONE_BLOCK, TWO_BLOCKS = (
    rounding(torch.float32, 1.0, depth=100 * blocks) for blocks in (1, 2)
)

ATTENTION_POINTS = ("hook_q", "hook_k", "hook_v", "hook_attn_scores", "hook_pattern")
RAW = "unembed.hook_out"  # the raw output of the head
Deviations = Iterator[tuple[str, float]]
"""Pairs of what was compared and its deviation."""
BY_NUMBER: dict[int, Oracle] = {}  # all registered oracles


@dataclass(frozen=True)
class OracleResult:
    """Result of one oracle.

    Attributes:
        oracle: its number and name.
        error: the largest deviation found.
        bound: the largest deviation allowed.
        detail: comparison (or hook point) with the largest deviation; for a skipped
            oracle, the reason.
        skipped: whether the model has nothing that the oracle could check.
    """

    oracle: str
    error: float
    bound: float
    detail: str = ""
    skipped: bool = False

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

    # cached_property writes into __dict__, which a frozen dataclass does not prevent
    @cached_property
    def encoded(self) -> Encoded:
        """Batch for a single forward.

        The decoder of a token model is teacher-forced with the last values of each
        series.
        """
        if self.lens.adapter.readout != "token":
            return self.lens.encode(self.batch, horizon=self.horizon)
        last = np.stack([series[-self.decoder_steps :] for series in self.batch.values])
        return self.lens.encode(
            self.batch, future=np.nan_to_num(last, nan=float(np.nanmean(last)))
        )

    def other(self, series: np.ndarray) -> np.ndarray:
        """Return another series of the same length.

        Its missing values are in the same places.

        Args:
            series: values (time,).

        Returns:
            Other values, (time,).
        """
        # a scale and shift alone would be undone by a model that normalises each
        # series, so the series is reversed as well; token ids can only be reversed
        if self.lens.takes_ids:
            changed = series[::-1]
        else:
            changed = series[::-1] * 0.5 + 1.0
        values = np.where(np.isnan(changed), np.nanmean(series), changed)
        return np.where(np.isnan(series), np.nan, values)

    @cached_property
    def other_encoded(self) -> Encoded:
        """Batch of the :meth:`other` series, under the same masks."""
        batch = replace(
            self.batch, values=tuple(self.other(series) for series in self.batch.values)
        )
        encoded = Case(self.lens, batch, self.horizon, self.decoder_steps).encoded
        # activations of one batch are patched into a run of the other, which makes
        # sense only if both mask the same positions
        encoded.inputs.update(
            {
                name: value
                for name, value in self.encoded.inputs.items()
                if "mask" in name and name in encoded.inputs
            }
        )
        return encoded

    @cached_property
    def captured(self) -> tuple[Tensor, Activations]:
        """Output and all activations of a single forward."""
        with torch.no_grad():
            return self.lens.run_with_cache(
                self.encoded, names_filter=lambda _name: True
            )

    @property
    def acts(self) -> Activations:
        """Activations of a single forward."""
        return self.captured[1]


@dataclass(frozen=True)
class Oracle:
    """Check of a case, by the deviations that a function of it yields.

    ``look_at`` names the wiring's fields that are likely wrong if the check fails,
    ``absent`` what a model lacks for which it is skipped.
    """

    measure: Callable[..., Deviations]
    title: str
    bound: float | None
    look_at: str
    absent: str

    # oracles name themselves like functions, as tests list them
    @property
    def __name__(self) -> str:
        return self.measure.__name__

    def __call__(self, case: Case, **options: Any) -> OracleResult:
        with torch.no_grad():
            found = list(self.measure(case, **options))
        wiring = case.lens.wiring
        bound = wiring.rollout_tolerance if self.bound is None else self.bound
        if wiring.precision != torch.float32 and bound:
            # a difference of one rounding in single precision can become a whole last
            # digit once values are cast to a coarser format
            bound = max(bound, torch.finfo(wiring.precision).eps)
        if not found:
            return OracleResult(self.title, 0.0, bound, self.absent, skipped=True)
        # a NaN is neither larger nor smaller than a number, so that max() may miss it
        where, deviation = max(
            found, key=lambda pair: np.nan_to_num(pair[1], nan=np.inf)
        )
        return OracleResult(self.title, deviation, bound, where)


def oracle(
    number: int, name: str, bound: float | None, look_at: str, absent: str = ""
) -> Callable[[Callable[..., Deviations]], Oracle]:
    """Register an oracle.

    If ``bound`` is None, the bound is the wiring's ``rollout_tolerance``.

    Returns:
        A decorator.
    """

    def register(measure: Callable[..., Deviations]) -> Oracle:
        BY_NUMBER[number] = Oracle(measure, f"{number} {name}", bound, look_at, absent)
        return BY_NUMBER[number]

    return register


class Row(NamedTuple):
    """Branch of one layer: where it is, and its row in the wiring.

    ``at`` is what the names of its hook points begin with, ``stream`` the hook point of
    the stream that it reads.
    """

    stack: Stack
    layer: int
    row: Writer
    at: str
    stream: str


def branches(stack: Stack) -> list[Row]:
    """List the branches of a stack in order."""
    # not strict: there are names for more branches than most blocks have
    return [
        Row(
            stack,
            layer,
            writer,
            f"{stack.prefix}.{layer}.{writer.kind}",
            f"{stack.prefix}.{layer}.{stream}",
        )
        for layer in range(stack.n_layers)
        for writer, stream in zip(stack.rows(layer), RESIDUAL_NAMES, strict=False)
    ]


def first_stream(stack: Stack) -> str:
    """Return the hook point of a stack's first stream."""
    return f"{stack.name}.hook_embed".lstrip(".")


def last_stream(stack: Stack, *, normalized: bool = False) -> str:
    """Return the hook point of a stack's last stream.

    With ``normalized``, it is that of the last norm's output, if there is such a norm.
    """
    if normalized and stack.ln_final:
        return f"{stack.name}.ln_final.hook_normalized".lstrip(".")
    return f"{stack.prefix}.{stack.n_layers - 1}.hook_resid_post"


def example_case(lens: Lens, *, n_series: int = 3, longest: int = 60) -> Case:
    """Build a case with series of unequal length and missing values.

    It is the same for every model.

    Args:
        lens: the model.
        n_series: number of series.
        longest: steps of the longest one.

    Returns:
        The case, with a horizon of one pass.

    Example:
        >>> len(testing.example_case(lens).batch)
        4
    """
    rng = np.random.default_rng(0)
    longest = min(longest, lens.adapter.context_length)
    example = getattr(lens.adapter, "example", None)
    horizon = min(6, lens.adapter.prediction_length)
    if example is not None:
        return Case(lens, example(n_series, longest), horizon)
    values = []
    # each series has its own length, season, level and noise: rows that are mixed up
    # show
    for index in range(n_series):
        steps = np.arange(longest - 7 * index)
        season = np.sin(2 * np.pi * steps / (6 + index)) * (1 + index)
        values.append(
            10 * index + season + 0.02 * steps + 0.3 * rng.standard_normal(len(steps))
        )
    values[0][5:9] = np.nan
    # the longest series above has a gap; another one as long has none, so that every
    # token is real in some row
    values.append(
        3.0 + np.cos(np.arange(longest) / 3.0) + 0.1 * rng.standard_normal(longest)
    )
    if lens.adapter.multivariate:
        values = [
            np.stack([series, np.roll(series, 3) * 0.5 + 1.0]) for series in values
        ]
    return Case(lens, as_series(values), horizon)


def by_themselves(case: Case) -> SeriesBatch:
    """Return the batch with each series as an item by itself.

    If the model needs a certain number of variates, the batch stays as it is.
    """
    if case.lens.adapter.n_variates is None:
        return as_series(list(case.batch.values))
    return case.batch


def relative(a: Tensor, b: Tensor) -> float:
    """Compute the largest deviation of a from b, relative to the largest value of b."""
    # else broadcasting would compare one row with all
    if a.shape != b.shape:
        return float("inf")
    a = a.detach()
    b = b.detach()
    # where b is zero, the deviation is absolute
    scale = float(b.abs().max()) or 1.0
    return float((a - b).abs().max()) / scale


@oracle(
    1,
    "no hook: native forecast",
    0.0,
    "`predict`, `forward` hooks that something left on the model",
)
def same_forecast(case: Case) -> Deviations:
    """Check that without hooks the lens's forecast is the library's, bit by bit."""
    lens = case.lens
    # a sampling model draws the same paths from the same seed
    ours = lens.forecast(case.batch, case.horizon, seed=3)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        theirs = lens.adapter.predict(case.batch, case.horizon, ours.levels, None)[0]
    # (series, step, quantile) becomes (series, quantile, step)
    expected = theirs.permute(0, 2, 1).numpy().astype(float)
    equal = np.array_equal(ours.quantiles, expected, equal_nan=True)
    yield "torch.equal", 0.0 if equal else 1.0


@oracle(
    2, "reading hooks", ONE_BLOCK, "what is called in `module`: exactly one attention"
)
def reading_changes_nothing(case: Case) -> Deviations:
    """Check that hooks that read change nothing but roundings.

    Under the fused kernel every bit must stay the same.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    fast = lens.forward(case.encoded)
    # torch's fast path of ``nn.TransformerEncoderLayer`` ends as soon as any hook is
    # set
    with ExitStack() as restore:
        restore.callback(
            torch.backends.mha.set_fastpath_enabled,
            torch.backends.mha.get_fastpath_enabled(),
        )
        torch.backends.mha.set_fastpath_enabled(False)
        plain = lens.forward(case.encoded)
    fused, _ = lens.run_with_cache(
        case.encoded, names_filter=lambda name: not name.endswith(ATTENTION_POINTS)
    )
    # q, k and v are read at the fused kernel; scores and patterns need another softmax
    names = [
        name for name in lens.registry.points if name.endswith(ATTENTION_POINTS[:3])
    ]
    projections = plain
    if names:
        projections = lens.run_with_cache(case.encoded, names_filter=names)[0]
    if not (torch.equal(fused, plain) and torch.equal(projections, plain)):
        yield "fused kernel: not bit for bit", float("inf")
        return
    yield "attention recomputed", relative(case.captured[0], plain)
    yield "torch's fast path", relative(fast, plain)


@oracle(
    3,
    "accounting",
    ONE_BLOCK,
    "`write` (the stream in it?), a branch forgotten or out of order, `reads`, columns"
    " of `o`, `post_norm`, `mix`",
)
def accounting(case: Case) -> Deviations:
    """Check that embedding + all writes = last residual stream.

    The native head on that stream must give the output.

    Yields:
        A label, and the relative deviation there.
    """
    output, activations = case.captured
    model = case.lens.adapter.model
    wiring = case.lens.wiring
    for stack in wiring.stacks:
        if not stack.sums:
            continue
        factors = carry_factors(model, stack)
        for name, actual, expected in branch_sums(model, wiring, stack, activations):
            yield name, relative(expected, actual)
        total = activations[first_stream(stack)] * factors["embed"]
        for branch in branches(stack):
            factor = factors[branch.layer, branch.row.kind]
            total += activations[f"{branch.at}.hook_out"] * factor
        yield f"{stack.name} stream", relative(total, activations[last_stream(stack)])
    # the head is checked even where a norm follows each sum and nothing adds up
    remark = " alone: no sum of writes, as a norm follows each sum"
    if wiring.output_stack.sums:
        remark = ""
    stream = activations[last_stream(wiring.output_stack)]
    yield f"head{remark}", relative(case.lens.readout(stream, case.encoded), output)


def layers_to_check(stack: Stack) -> list[int]:
    """Return the layers that can be wrong in different ways.

    They are the first of every kind of layer, the second, and the last.
    """
    # layers of one kind share one tuple of rows. The last layer that is put into the
    # dict stays, so layers are taken in reverse for the first of each kind
    first = {id(stack.rows(layer)): layer for layer in reversed(range(stack.n_layers))}
    last = stack.n_layers - 1
    return sorted({*first.values(), min(1, last), last})


@oracle(
    4,
    "zero-ablation",
    TWO_BLOCKS,
    "`z_layout`, columns of `o`, the MLP's `o`; or the weights do too little",
)
def zero_ablation(case: Case, *, most: int | None = None) -> Deviations:
    """Check that zeroing a component = zeroing its weights natively.

    Of each stack, about ``most`` components are checked, all if None. Of every kind
    that is checked one must move the output; single heads of a trained model may not.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    plain = lens.forward(case.encoded)
    for stack in lens.wiring.stacks:
        components = writers(lens.wiring, stack.name)
        step = 1 if most is None else max(1, len(components) // most)
        # by kind, how far its components move the output at most
        moved: dict[str, float] = defaultdict(float)
        for component in components[::step]:
            with lens.ablate(component):
                ours = lens.forward(case.encoded)
            with _zeroed_weights(lens, stack, component):
                theirs = lens.adapter.run(case.encoded.inputs)
            kind = str(component.kind)
            moved[kind] = max(moved[kind], relative(theirs, plain))
            yield str(component), relative(ours, theirs)
        for kind, distance in moved.items():
            # zeroing what does nothing would prove nothing, so that counts as a
            # failure; 1e-7 is about the rounding of single precision
            if distance <= 1e-7:
                yield f"{stack.name}: no {kind} moves the output", float("inf")


@contextmanager
def _zeroed_weights(lens: Lens, stack: Stack, component: Component) -> Iterator[None]:
    """Zero the weights of a component while the block runs.

    They are a head's columns of W_O or an MLP's output matrix. Of another branch, all
    that its module returns is zero.
    """
    assert component.kind is not None
    writer = stack.writer(component.kind, component.layer)
    if isinstance(writer, Branch):
        module = lens.adapter.model.get_submodule(
            f"{stack.block(component.layer)}.{writer.write.module}"
        )

        # the module's forward still runs, for the shape of its output
        def zeroed(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
            return lambda *args, **kwargs: torch.zeros_like(forward(*args, **kwargs))

        with shadowed([(module, zeroed)]):
            yield
        return
    if isinstance(writer, Attention):
        path = writer.o.module
    else:
        path = writer.o
    layer = lens.adapter.model.get_submodule(f"{stack.block(component.layer)}.{path}")
    # a head is ablated at z, in front of W_O, so that b_O stays; an MLP at its output,
    # so that its bias goes, too
    weight = layer.weight.detach()
    bias = getattr(layer, "bias", None)
    if isinstance(writer, Attention):
        heads = rearrange(
            weight,
            f"d_model {writer.o.layout} -> head d_head d_model",
            head=stack.n_heads,
        ).clone()
        heads[component.head] = 0.0
        zeros = {
            "weight": rearrange(
                heads, f"head d_head d_model -> d_model {writer.o.layout}"
            )
        }
    else:
        zeros = {"weight": torch.zeros_like(weight)}
        if bias is not None:
            zeros["bias"] = torch.zeros_like(bias)
    with ExitStack() as changes:
        for name, values in zeros.items():
            changes.enter_context(with_tensor(layer, name, values))
        yield


@contextmanager
def with_tensor(layer: Any, name: str, values: Tensor) -> Iterator[None]:
    """Replace a layer's weight or bias while the block runs.

    The layer may be parametrised, or store factors of its matrix.
    """
    if name == "weight" and hasattr(layer, "as_matrix"):
        with layer.as_matrix(values):
            yield
        return
    # torch computes a parametrised tensor at every access, by the forward of its entry
    # in layer.parametrizations
    if parametrize.is_parametrized(layer, name):
        with shadowed(
            [(layer.parametrizations[name], lambda _forward: lambda: values)]
        ):
            yield
        return
    # a new parameter takes the place of the old one, whose values stay: other layers
    # may share it
    tensor = layer._parameters[name]
    try:
        layer._parameters[name] = torch.nn.Parameter(values, requires_grad=False)
        yield
    finally:
        layer._parameters[name] = tensor


@oracle(
    6,
    "patching",
    ONE_BLOCK,
    "`reads`, `aside`; something reaches the head past the stream",
)
def patching(case: Case) -> Deviations:
    """Check that a run patched into itself changes nothing.

    The stream of A, put into B, must give A's later streams and output.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    activations = case.acts
    other = case.other_encoded
    output_stack = lens.wiring.output_stack
    # in front of the second branch, or of the first if there is no other
    has_second_branch = len(output_stack.rows(0)) > 1
    inner_stream = RESIDUAL_NAMES[1 if has_second_branch else 0]
    for name in (inner_stream, "hook_resid_post"):
        point = f"{output_stack.prefix}.0.{name}"
        with lens.patch(activations, point):
            output = lens.forward(case.encoded)
        yield f"self: {point}", relative(output, lens.forward(case.encoded))
    _, other_activations = lens.run_with_cache(other, names_filter=RAW)
    # a patch without effect passes if both runs give the same anyway
    if relative(other_activations[RAW], activations[RAW]) < 1e-3:
        yield "A and B differ", float("inf")
    earlier_streams: list[str] = []
    for stack in lens.wiring.stacks:
        # a decoder may start from a constant, so that the streams of A and B agree
        # without any patch; the roll changes B's first stream
        moved_stream = [
            (first_stream(stack), lambda value, hook: value.roll(1, dims=-1))
        ]
        checked_layers = layers_to_check(stack)
        for branch in branches(stack):
            if branch.layer not in checked_layers:
                continue
            # the patched stream fixes the block's output, and in the output stack all
            # that follows, unless the head also reads the input
            fixes_output = stack is output_stack and not lens.wiring.bypass
            if fixes_output:
                read_point = RAW
            else:
                read_point = f"{stack.prefix}.{branch.layer}.hook_resid_post"
            with (
                lens.hooks(moved_stream),
                lens.patch(activations, *earlier_streams, branch.stream),
            ):
                _, later_activations = lens.run_with_cache(
                    other, names_filter=read_point
                )
            yield (
                f"A into B at {branch.stream}",
                relative(later_activations[read_point], activations[read_point]),
            )
        # a later stack may also read an earlier one, as cross-attention does: that must
        # be A's as well
        earlier_streams.append(f"{stack.prefix}.0.hook_resid_pre")


def quick_check(lens: Lens) -> list[OracleResult]:
    """Run the cheap oracle on one short series, as :func:`tsfm_lens.load` does.

    Args:
        lens: the model.

    Returns:
        The result of the oracle, in a list.

    Raises:
        WiringError: the model does not compute what its wiring says.

    Example:
        >>> all(result.passed for result in testing.quick_check(lens))
        True
    """
    # the caller's autocast is off: the model is checked in the precision of its weights
    with torch.autocast(lens.device.type, enabled=False):
        result = accounting(example_case(lens, n_series=1, longest=24))
    # half precision rounds more coarsely, and a wrong wiring is still off by far more
    coarser = (
        torch.finfo(next(lens.parameters()).dtype).eps / torch.finfo(torch.float32).eps
    )
    # roundings of bfloat16 alone would allow a deviation of 0.8, as large as a wrong
    # wiring's
    allowed = min(result.bound * max(1.0, coarser), 0.1)
    # so written, a NaN is refused
    if not result.error <= allowed:
        raise WiringError(
            f"{lens.model_id}: oracle '{result.oracle}' fails by {result.error:.2g}"
            f" (allowed {allowed:.0e}) at {result.detail}. The model does not compute"
            f" what the wiring {lens.wiring.architecture!r} says; its activations would"
            " be wrong."
        )
    return [result]
