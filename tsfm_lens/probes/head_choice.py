"""Choice of heads to ablate together: by stable rank, at random, by entropy; and how many a layer can lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.metrics import mae
from tsfm_lens.ablation.points import point_forecasts
from tsfm_lens.ablation.search import TOLERANCE, better, run_search, scan
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.hooks.component import Component
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import told_apart
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import attention_over_time
from tsfm_lens.probes.given import called, refuse_word
from tsfm_lens.probes.spectra import head_spectra

__all__ = ["diffuse_heads", "heads_at_1pp", "heads_by_stable_rank", "random_heads", "sharp_heads"]

ORDERS = ("low", "high")


def heads_by_stable_rank(
    lens: Lens, keep: Mapping[int, int], *, order: str = "low", kind: str | None = None, paired: bool = True
) -> list[Component]:
    """Return the heads to ablate, in model order, by the stable rank of W_Q W_Kᵀ, so that each layer keeps so many.

    Args:
        lens: the model; layers are those of the stack that is read out.
        keep: layer -> number of heads kept.
        order: heads of a layer to ablate first, those of "low" or of "high" stable rank.
        kind: kind of attention that is ranked; the last one over time if None.
        paired: also ablate the heads of the same index in the layer's other attentions over time, as the paper does.

    Source:
        tsfm-lens paper, definition 5.2 and appendix B (S3-ORD, S3-H1PP, S3-ZA-H).

    Raises:
        InputError: ``keep`` exceeds the number of heads, or ``order`` is neither.
        UnknownNameError: no such layer or kind of attention.

    Example:
        >>> len(probes.heads_by_stable_rank(lens, {0: 1, 1: 2}, paired=False))
        5
    """
    refuse_word("order", order, ORDERS)
    attention, n_heads = _check_layers(lens, keep, kind)
    ranks = _stable_ranks(lens, attention)
    first = {layer: _ablation_order(ranks, layer, order)[: n_heads - count] for layer, count in keep.items()}
    return _heads(lens, first, attention, paired)


def random_heads(
    lens: Lens, keep: Mapping[int, int], *, seed: int = 0, kind: str | None = None, paired: bool = True
) -> list[Component]:
    """Draw heads at random without replacement, as many in each layer as :func:`heads_by_stable_rank` takes.

    Args:
        lens, keep, kind, paired: see :func:`heads_by_stable_rank`.
        seed: of the draw.

    Raises:
        InputError: ``keep`` exceeds the number of heads.
        UnknownNameError: no such layer or kind of attention.

    Example:
        >>> [str(head) for head in probes.random_heads(lens, {0: 3}, paired=False)]
        ['decoder.0.cross_attn.2']
    """
    attention, n_heads = _check_layers(lens, keep, kind)
    rng = np.random.default_rng(seed)
    first = {layer: rng.permutation(n_heads)[: n_heads - count].tolist() for layer, count in keep.items()}
    return _heads(lens, first, attention, paired)


def sharp_heads(entropy: xr.Dataset, count: int = 1) -> list[Component]:
    """Return the heads of lowest attention entropy, the sharpest first.

    Args:
        entropy: from :func:`tsfm_lens.probes.head_entropy` or :func:`tsfm_lens.probes.autoregressive_attention`.
        count: heads.

    Raises:
        InputError: the result has no entropy of heads, or fewer heads than ``count``.

    Example:
        >>> len(probes.sharp_heads(probes.head_entropy(run), 2))
        2
    """
    return _by_entropy(entropy, count, 1.0)


def diffuse_heads(entropy: xr.Dataset, count: int = 1) -> list[Component]:
    """Return the heads of highest attention entropy, the most diffuse first; arguments as in :func:`sharp_heads`.

    Example:
        >>> len(probes.diffuse_heads(probes.head_entropy(run), 2))
        2
    """
    return _by_entropy(entropy, count, -1.0)


def heads_at_1pp(run: Run, *, tolerance: float = TOLERANCE, kind: str | None = None, paired: bool = True) -> xr.Dataset:
    """Find how many heads a layer must keep so that the error on these series rises by less than one percent.

    That is the smallest number that passes, in the order of stable rank that keeps fewer heads, or rises less.

    Args:
        run: the forecast to explain, with the truth.
        tolerance: relative rise of the geometric mean MASE that is allowed, exclusive.
        kind, paired: see :func:`heads_by_stable_rank`.

    Returns:
        Dataset of kind "heads_at_1pp" over ``layer``: ``kept`` heads, ``order`` and the relative ``rise`` of the error.

    Source:
        tsfm-lens paper, definition 5.2 (S3-H1PP): a relative percent, strictly below.

    Raises:
        InputError: the run has no truth, a plain forecast has no error, or the tolerance is not above 0.
        UnknownNameError: no such kind of attention.

    Example:
        >>> bolt = tsfm_lens.load("bolt-nano").run(run.batch, 12, truth=run.truth)
        >>> probes.heads_at_1pp(bolt)["kept"].dims
        ('layer',)
    """
    stack = run.lens.wiring.output_stack
    attention, layers = stack.layers_with(attention_over_time(stack) if kind is None else kind)
    rises = _rises(run, layers, attention, paired)
    orders, winners = [], []
    for layer in layers:
        looks = {order: (lambda count, _look, at=(layer, order): rises[*at, count]) for order in ORDERS}
        searches = {order: run_search(scan(stack.n_heads, tolerance), look) for order, look in looks.items()}
        order, winner = better(searches)
        orders.append(order)
        winners.append(winner)
    data = xr.Dataset(
        {
            "kept": ("layer", [winner.kept for winner in winners]),
            "order": ("layer", orders),
            "rise": ("layer", [winner.change for winner in winners]),
        },
        coords={"layer": list(map(str, layers))},
    )
    facts = {"attention": attention, "heads": stack.n_heads, "paired": paired, "tolerance": tolerance}
    facts |= {"rollout": int(run.rollout), "statistic": run.statistic}
    source = "tsfm-lens paper, definition 5.2 (S3-H1PP)"
    data.attrs = run.describe("heads_at_1pp", "Heads at one percent", source, **facts)
    return data


def _rises(run: Run, layers: list[int], kind: str, paired: bool) -> dict[tuple[int, str, int], float]:
    """Compute by layer, order and number of heads kept how far the error rises; all are forecast together."""
    base = -np.inf if run.truth is None else _log_error(run, run.point)
    if not np.isfinite(base):
        raise InputError("heads@1pp needs the truth of every series, and forecasts that miss it")
    ranks = _stable_ranks(run.lens, kind)
    ablations: dict[tuple[int, str, int], tuple[Component, ...]] = {}
    for layer in layers:
        for order in ORDERS:
            first = _ablation_order(ranks, layer, order)
            for count in range(len(first)):
                heads = _heads(run.lens, {layer: first[: len(first) - count]}, kind, paired)
                ablations[layer, order, count] = tuple(heads)
    # without any head both orders are alike
    each = list(dict.fromkeys(ablations.values()))
    forecasts = point_forecasts(run, [Variant.zero(*heads) for heads in each])
    # heads that write nothing change no error, however small that is
    errors = _log_error(run, told_apart(run, forecasts, run.point))
    rises = dict(zip(each, np.expm1(errors - base).tolist(), strict=True))
    return {place: rises[heads] for place, heads in ablations.items()}


def _log_error(run: Run, forecasts: np.ndarray) -> np.ndarray:
    """Compute the logarithm of the geometric mean error of forecasts (…, series, step), (…)."""
    assert run.truth is not None
    # the scale of MASE is the same before and after, so that it cancels in the ratio
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(mae(forecasts, run.truth)).mean(-1))


def _stable_ranks(lens: Lens, kind: str) -> xr.DataArray:
    """Return places by stable rank, (layer, head)."""
    return head_spectra(lens, kind=kind, products=["QK"])["order"].sel(product="QK")


def _ablation_order(ranks: xr.DataArray, layer: int, order: str) -> list[int]:
    """Return the heads of a layer in the order in which they are ablated."""
    ascending = np.argsort(ranks.sel(layer=str(layer)).values)
    return [int(head) for head in (ascending if order == "low" else ascending[::-1])]


def _check_layers(lens: Lens, keep: Mapping[int, int], kind: str | None) -> tuple[str, int]:
    """Refuse layers and counts that do not exist; return the kind of attention and its heads a layer."""
    stack = lens.wiring.output_stack
    attention, layers = stack.layers_with(attention_over_time(stack) if kind is None else kind)
    for layer, count in keep.items():
        if layer not in layers:
            raise unknown_name(f"layer with {attention}", layer, map(str, layers))
        if not 0 <= count <= stack.n_heads:
            raise InputError(f"layer {layer} is to keep {count} heads, and it has {stack.n_heads}")
    return attention, stack.n_heads


def _heads(lens: Lens, indices: Mapping[int, Sequence[int]], kind: str, paired: bool) -> list[Component]:
    """Return heads by layer and index, also those of other attentions over time if paired, in model order."""
    stack, heads = lens.wiring.output_stack, []
    for layer, own in indices.items():
        for row in stack.attentions(layer):
            if row.kind == kind or (paired and row.over == "time"):
                heads += [Component(stack.name, layer, row.kind, head) for head in own]
    return sorted(heads, key=lambda each: (each.layer, each.kind or "", each.head or 0))


def _by_entropy(entropy: xr.Dataset, count: int, sign: float) -> list[Component]:
    is_dataset = isinstance(entropy, xr.Dataset)
    if not is_dataset or "entropy" not in entropy or set(entropy["entropy"].dims) != {"layer", "head"}:
        words = f"of kind {entropy.attrs.get('kind')!r}" if is_dataset else called(entropy)
        raise InputError(
            "heads are sorted by a result with entropy (layer, head), such as probes.head_entropy(...) gives; "
            f"this one is {words}"
        )
    values = entropy["entropy"].transpose("layer", "head")
    if not 1 <= count <= values.size:
        raise InputError(f"{count} heads are asked for, expected 1 to {values.size}")
    order = np.argsort(sign * values.values.ravel(), kind="stable")[:count]
    stack, kind = str(entropy.attrs.get("stack", "")), str(entropy.attrs["attention"])
    layers, heads = values["layer"].values, values["head"].values
    places = [divmod(int(flat), len(heads)) for flat in order]
    return [Component(stack, int(layers[row]), kind, int(heads[column])) for row, column in places]
