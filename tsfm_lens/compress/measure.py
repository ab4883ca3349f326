"""Effect of compression on size, cost, forecasts and next-token distributions.

:func:`quality` compares two models on one run, :func:`pareto` measures size against
error for several methods and shares, :func:`cost` measures time and memory. The probes
:func:`compression` and :func:`compression_quality` apply them to a run, and calibrate
on earlier steps of its series.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch.utils.flop_counter import FlopCounterMode

from tsfm_lens.ablation.metrics import mae, seasonal_scale
from tsfm_lens.compress.layers import Compressed
from tsfm_lens.compress.matrices import matrices, parameter_share
from tsfm_lens.compress.methods import METHODS, calibration_run, compressed
from tsfm_lens.compress.moments import ITEM
from tsfm_lens.compress.timing import in_turn, make_clock, measured
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import CONFIDENCE, FEWEST, holm, mean_interval
from tsfm_lens.data import SeriesBatch, as_series, bundled, bundled_info, bundled_names
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

__all__ = [
    "compression",
    "compression_quality",
    "cost",
    "pareto",
    "quality",
    "sizes",
]

TOLERANCE = 0.01
"""Relative rise of the error below which a compressed model counts as harmless."""
_SOURCE = "Flow of ranks, section 5 and table 2"


def sizes(lens: Lens) -> dict[str, int]:
    """Count the parameters of a model, of its attentions and of its MLPs.

    Args:
        lens: the model.

    Returns:
        Numbers of parameters: "all" of the model, "attention" and "mlp" in the matrices
        of each.

    Example:
        >>> compress.sizes(lens)["attention"] < compress.sizes(lens)["all"]
        True
    """
    # by identity, so that tied weights count once
    counts = {id(weight): weight.numel() for weight in lens.adapter.model.parameters()}
    out = {"all": sum(counts.values()), "attention": 0, "mlp": 0}
    for matrix in matrices(lens, mlps=True).values():
        layer = lens.adapter.model.get_submodule(matrix.path)
        if isinstance(layer, Compressed):
            entries = layer.entries
        else:
            entries = matrix.shape[0] * matrix.shape[1]
        out["attention" if matrix.is_attention else "mlp"] += entries
    return out


def split_sources(
    batch: SeriesBatch, horizon: int = 1
) -> tuple[SeriesBatch, SeriesBatch]:
    """Split series into those that calibrate and those that measure.

    No source is in both parts. The source of a bundled series is its publisher; all
    series that are not bundled count as one source.

    The whole batch calibrates, and all bundled series of other sources measure that are
    long enough. If there are fewer than three such series, the batch itself is split by
    source.

    Returns:
        The series that calibrate, and those that measure.
    """
    infos = {name: bundled_info(name) for name in bundled_names()}
    # the text of a source begins with the publisher
    publishers = {
        name: re.split(" through| daily|[,;(/]", info.source)[0]
        for name, info in infos.items()
    }
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(batch.groups):
        rows.setdefault(publishers.get(name, ""), []).append(row)
    other_names = [
        name
        for name in infos
        if publishers[name] not in rows and infos[name].length > 3 * horizon
    ]
    if len(other_names) >= FEWEST:
        return batch, bundled(*other_names)
    halves: tuple[list[int], list[int]] = ([], [])
    # each source goes to the smaller half, which splits sources about evenly without
    # cutting any
    for rows_of_source in rows.values():
        min(halves, key=len).extend(rows_of_source)
    if not halves[1]:
        raise InputError(
            "no series of other sources measure a compressed model at horizon"
            f" {horizon}; give some"
        )
    measuring, calibrating = (
        batch.select(sorted(half)) for half in sorted(halves, key=len)
    )
    return calibrating, measuring


def describe_sources(calibration: Run, run: Run) -> str:
    """Say which series calibrate and which measure."""
    pairs = zip(calibration.batch.static, calibration.batch.groups, strict=True)
    # windows of a series have names of their own; their property ITEM names the series
    calibrating = dict.fromkeys(static.get(ITEM, name) for static, name in pairs)
    measuring = dict.fromkeys(run.batch.groups)
    if calibrating.keys() & measuring:
        description = "later steps of them"
    else:
        description = f"other series, {', '.join(measuring)}"
    return f"Calibrated on {', '.join(calibrating)}; measured on {description}."


def quality(run: Run, other: Lens) -> xr.Dataset:
    """Compare the errors of two models on the same series, paired.

    Both forecast by the library's own method.

    Args:
        run: run of the first model, with a known truth.
        other: the other model, usually the compressed one.

    Returns:
        Dataset of kind "compression_quality": ``quantile_forecast`` (model, series,
        quantile, step); ``mase`` and ``wql`` (model, series); ``mase_rise`` and
        ``wql_rise`` (series), the other model's error over the first one's, less 1;
        their geometric mean over series with its 95 % t interval, ``…_estimate``,
        ``…_low`` and ``…_high``. For token models also ``overlap``, the Jaccard index
        of the ten likeliest tokens, and ``log_perplexity`` (model). NaN where an error
        or its scale is 0.

    Raises:
        InputError: no truth is known, or the models forecast other levels.

    Source:
        Flow of ranks, table 2 (S0-METR). MASE of the median, WQL over the levels of the
        forecast.

    Example:
        >>> same = compress.quality(run, lens)
        >>> float(same["mase_rise_estimate"]), float(same["overlap"])
        (0.0, 1.0)
    """
    if run.truth is None or not np.isfinite(run.truth).any():
        raise InputError(
            "these series have no truth; make the run with holdout=True or with truth=…"
        )
    other_run = other.run(
        run.batch,
        run.horizon,
        truth=run.truth,
        num_samples=run.num_samples,
        seed=run.seed,
    )
    if run.forecast.levels != other_run.forecast.levels:
        raise InputError(
            f"{other.model_id} forecasts the quantiles {other_run.forecast.levels},"
            f" and {run.lens.model_id} {run.forecast.levels}; expected the same"
        )
    runs = (run, other_run)
    scores = [_scores(one) for one in runs]
    data = run.dataset().assign_coords(
        model=["whole", "other"], quantile=list(run.forecast.levels)
    )
    quantiles = np.stack([one.forecast.quantiles for one in runs])
    data["quantile_forecast"] = (("model", "series", "quantile", "step"), quantiles)
    for name in ("mase", "wql"):
        data[name] = (("model", "series"), np.stack([score[name] for score in scores]))
    data.attrs = run.describe(
        "compression_quality",
        "Forecasts of two models",
        _SOURCE,
        other=other.model_id,
        statistic="median",
    )
    for name in ("mase", "wql"):
        with np.errstate(divide="ignore", invalid="ignore"):
            # in the mean of logs, unlike that of ratios, a halved and a doubled error
            # cancel
            log_ratio = np.log(data[name].values[1]) - np.log(data[name].values[0])
        log_ratio = np.where(np.isfinite(log_ratio), log_ratio, np.nan)
        data[f"{name}_rise"] = ("series", np.expm1(log_ratio))
        statistics = ("estimate", "low", "high")
        for statistic, value in zip(statistics, mean_interval(log_ratio), strict=True):
            data[f"{name}_rise_{statistic}"] = float(np.expm1(value))
    if (
        # the likelihood of the truth is read from one teacher-forced pass: the truth
        # must have no gaps, and must fit into the pass
        run.tokens_read
        and np.isfinite(run.truth).all()
        and run.horizon <= run.lens.adapter.longest_pass
    ):
        data = data.assign(_tokens(run, other))
    return data


def _scores(run: Run) -> dict[str, np.ndarray]:
    """Compute MASE and WQL of a run's forecast, (series,) each."""
    truth = np.asarray(run.truth, dtype=float)
    forecast = run.forecast
    seasons = run.batch.seasonalities
    pairs = zip(run.batch.values, seasons, strict=True)
    scale = np.array(
        [seasonal_scale(series, max(1, season)) for series, season in pairs]
    )
    error = truth[:, None] - forecast.quantiles
    levels = np.asarray(forecast.levels)[None, :, None]
    pinball = np.maximum(levels * error, (levels - 1) * error)
    # sums over the steps whose truth is known, in numerator and denominator alike
    loss = np.nansum(pinball, axis=2).mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        # with the factor 2 the loss of the median is the absolute error
        wql = 2 * loss / np.nansum(np.abs(truth), axis=1)
        return {"mase": mae(forecast.median, truth) / scale, "wql": wql}


def _tokens(run: Run, other: Lens) -> dict[str, Any]:
    """Compare the next-token distributions of two models along the truth."""
    encoded = run.lens.encode(run.batch, future=run.truth)
    truth: Any = run.lens.adapter.tokenize(torch.as_tensor(run.truth), encoded)  # type: ignore[attr-defined]
    tops = []
    perplexities = []
    with torch.no_grad():
        for lens in (run.lens, other):
            # in half precision, small probabilities would lose their digits or become 0
            logits = lens.adapter.run(encoded.inputs).double()
            tops.append(
                logits.topk(min(10, logits.shape[-1]), dim=-1).indices.cpu().numpy()
            )
            log_p = logits.log_softmax(-1).gather(
                -1, truth.to(logits.device)[..., None]
            )
            perplexities.append(float(-log_p.mean()))
    common = (tops[0][..., :, None] == tops[1][..., None, :]).any(-1).sum(-1)
    # of two sets of equal size k, the union has 2 k less the common ones
    overlap = common / (2 * tops[0].shape[-1] - common)
    return {"overlap": float(overlap.mean()), "log_perplexity": ("model", perplexities)}


def pareto(
    run: Run,
    calibration: Run,
    keeps: Sequence[float] = (0.1, 0.25, 0.5, 0.75),
    *,
    methods: Sequence[str] = METHODS,
    of: Any = "rank",
    mlps: bool = False,
    progress: Callable[[str], None] | None = None,
) -> xr.Dataset:
    """Measure size against error, for several shares and methods.

    Args:
        run: the full model on the series that measure, with their truth.
        calibration: run of the same model on calibration series, over a horizon of one
            pass.
        keeps: shares, above 0 and at most 1, of the rank (or what ``of`` names) that
            are kept.
        methods: names among :data:`METHODS`.
        of: "rank", or "parameters" for the largest rank whose factors have at most that
            share of the entries.
        mlps: compress the matrices of MLPs, too.
        progress: called with a text that names the method and share to come.

    Returns:
        Dataset of kind "compression" over (method, keep): ``parameters``, share of all
        parameters that is kept; ``rank_ratio`` and ``factor_ratio`` (S0-TSVD);
        ``mase_rise`` and ``wql_rise`` with ``…_low`` and ``…_high``; and ``harm_p``,
        the p-value of a one-sided t test over series whose null hypothesis is that MASE
        rises by 1 % or more, corrected by Holm's method for all points. The attribute
        ``choice`` names the smallest of the models whose ``harm_p`` is at most 0.025
        ("" for none), and ``why`` says so in a sentence.

    Example:
        >>> curve = compress.pareto(run, run, [0.25, 0.5], methods=["svd"])
        >>> curve["mase_rise"].dims
        ('method', 'keep')
    """
    # scipy.stats takes half a second to import
    from scipy.stats import ttest_1samp

    full = sizes(run.lens)["all"]
    # one row for each method and share, in the order of the product, which np.reshape
    # below relies on
    rows = list[dict[str, float]]()
    harm = []
    for method, keep in product(methods, keeps):
        if progress is not None:
            progress(f"{method}, {keep:g} kept")
        smaller, ranks = compressed(calibration, keep, method=method, of=of, mlps=mlps)
        ratio = parameter_share(run.lens, ranks)
        result = quality(run, smaller)
        row = {
            "parameters": sizes(smaller)["all"] / full,
            "rank_ratio": ratio.ranks,
            "factor_ratio": ratio.factors,
        }
        for error, (suffix, statistic) in product(
            ("mase", "wql"), (("", "estimate"), ("_low", "low"), ("_high", "high"))
        ):
            row[f"{error}_rise{suffix}"] = float(result[f"{error}_rise_{statistic}"])
        rows.append(row)
        # a test of non-inferiority, that the rise is below the tolerance: with few
        # series hardly any rise is significant, which is no evidence of harmlessness
        log_ratio = np.log1p(result["mase_rise"].values)
        harm.append(
            ttest_1samp(
                log_ratio, math.log1p(TOLERANCE), alternative="less", nan_policy="omit"
            ).pvalue
        )
    rows = [
        row | {"harm_p": float(p)}
        for row, p in zip(rows, holm(np.array(harm)), strict=True)
    ]
    shape = len(methods), len(keeps)
    data = xr.Dataset(
        {
            name: (("method", "keep"), np.reshape([row[name] for row in rows], shape))
            for name in rows[0]
        },
        coords={"method": list(methods), "keep": list(keeps)},
        attrs=run.describe(
            "compression",
            "Size and error",
            _SOURCE,
            n_series=len(run.batch),
            of=str(of),
        ),
    )
    return data.assign_attrs(
        smallest_harmless(data), sources=describe_sources(calibration, run)
    )


def smallest_harmless(curve: xr.Dataset) -> Mapping[str, Any]:
    """Choose the smallest harmless model of a :func:`pareto` curve.

    It is harmless if its error rises significantly less than the tolerance.

    Returns:
        Attributes ``choice``, the name of the model or "", and ``why``, a sentence.
    """
    # a point without a test is not known to be harmless
    points = curve.to_dataframe().reset_index().fillna({"harm_p": 1.0})
    statement = (
        f"known to rise by less than {100 * TOLERANCE:g} % (t test over series, Holm's"
        f" correction for {len(points)} models)"
    )
    # a one-sided test at 2.5 %, which agrees with one end of the 95 % interval
    harmless = points[points["harm_p"] <= (1 - CONFIDENCE) / 2]
    if len(harmless):
        # of harmless models the smallest is best, and the p-value decides between equal
        # sizes; if none is harmless, the p-value decides first
        best = harmless.sort_values(["parameters", "harm_p"], kind="stable").iloc[0]
    else:
        best = points.sort_values(["harm_p", "parameters"], kind="stable").iloc[0]
    name = f"{best['method']}, {best['keep']:g} kept"
    if len(harmless):
        share = f"{100 * best['parameters']:.3g} % of the numbers"
        return {
            "choice": name,
            "why": f"{name}, with {share}: the smallest whose MASE is {statement}.",
        }
    nearest = f"nearest is {name}, p = {best['harm_p']:.2g}. Judge by more series."
    reason = f"None: the MASE of no model is {statement}; {nearest}"
    return {"choice": "", "why": reason}


@probe(
    title="Size and error of compressed models",
    theme="Causes",
    summary=(
        "parameters kept against error of low-rank models, by method and share kept"
    ),
    description=(
        "Attention matrices are truncated to lower ranks, and stored as two factors "
        "where that is smaller. Forecasts of the whole and the compressed model are "
        "compared series by series."
    ),
    source="after Flow of ranks, section 5 and table 2",
    paper=(
        "S0-TSVD",
        "S0-METR",
        "S0-SCHED",
        "S0-GUIDE",
        "S0-T2",
    ),
    cost="search",
    example={"keeps": [0.5], "methods": ["svd"]},
    whole_batch=True,
)
def compression(
    run: Run,
    *,
    keeps: Sequence[float] = (0.1, 0.25, 0.5),
    methods: Sequence[str] = ("svd", "weighted"),
) -> xr.Dataset:
    """Measure the :func:`pareto` curve of a run.

    It is calibrated on earlier steps of the same series, by :func:`calibration_run`.

    Args:
        run: run of the full model on the series that measure, with their truth.
        keeps: shares, above 0 and at most 1, of the rank that are kept.
        methods: names among :data:`METHODS`.

    Returns:
        Dataset of kind "compression", as :func:`pareto` gives.

    Example:
        >>> compress.compression(run, keeps=[0.5], methods=["svd"]).sizes["keep"]
        1
    """
    return pareto(run, calibration_run(run), keeps, methods=methods)


@probe(
    title="Forecasts of a compressed model",
    theme="Causes",
    summary="forecasts before and after compression, with errors paired by series",
    description=(
        "Attention keeps a quarter of its rank, allocated to matrices by their "
        "effect on the forecast."
    ),
    source="after Flow of ranks, section 5 and table 2",
    cost="search",
    example={"method": "svd"},
    whole_batch=True,
)
def compression_quality(run: Run, *, keep: float = 0.25, **options: Any) -> xr.Dataset:
    """Compress a model, and measure its :func:`quality` on a run.

    It is calibrated on earlier steps of the same series, by :func:`calibration_run`.

    Args:
        run: run of the full model on the series that measure, with their truth.
        keep: share, above 0 and at most 1, of the rank that is kept.
        options: further arguments of :func:`compressed`, such as ``method`` and
            ``mlps``.

    Returns:
        Dataset of kind "compression_quality", as :func:`quality` gives.

    Example:
        >>> compress.compression_quality(run, method="svd").attrs["kind"]
        'compression_quality'
    """
    calibration = calibration_run(run)
    smaller, _ = compressed(calibration, keep=keep, **options)
    return quality(run, smaller).assign_attrs(
        sources=describe_sources(calibration, run)
    )


ROUNDS = 9
SHAPES = ((1, 512), (16, 512))  # (series, steps of context)


def cost(
    whole: Lens,
    other: Lens,
    *,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> xr.Dataset:
    """Measure time, operations and memory of a forward of two models.

    Both have the same inputs.

    Args:
        whole: the model.
        other: the model to compare with it, usually the compressed one.
        shapes: (series, steps of context); contexts longer than the model's are cut to
            it.
        rounds: how often each model is timed; the two take turns.
        seed: seed of the random walks that serve as series.

    Returns:
        Dataset of kind "compression_cost" over ``shape`` ("16 x 512"): ``time_ratio``,
        the median over rounds, with the lowest and highest, ``…_low`` and ``…_high``;
        ``operation_ratio``; and by ``model`` ("whole", "other") ``seconds``,
        ``operations``, ``weight_bytes`` and ``peak_bytes``, the most memory that a
        forward pass held, weights included.

    Raises:
        InputError: there is no shape, or a number is below 1.

    Example:
        >>> found = compress.cost(lens, lens, shapes=[(2, 64)], rounds=1)
        >>> found["operation_ratio"].values.tolist()
        [1.0]
    """
    if not shapes or min(min(shape) for shape in shapes) < 1 or rounds < 1:
        raise InputError(
            f"shapes {list(shapes)} and {rounds} rounds; expected positive numbers, at"
            " least one of each"
        )
    longest = whole.adapter.context_length
    unique_shapes = dict.fromkeys(
        (batch, min(steps, longest)) for batch, steps in shapes
    )
    rows = [_row(whole, other, *shape, rounds, seed) for shape in unique_shapes]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    data = xr.Dataset(
        {
            name: (("shape", "model")[: value.ndim], value)
            for name, value in columns.items()
        },
        coords={
            "shape": [f"{batch} x {steps}" for batch, steps in unique_shapes],
            "model": ["whole", "other"],
        },
    )
    return data.assign_attrs(
        kind="compression_cost",
        model=whole.model_id,
        other=other.model_id,
        rounds=rounds,
        device=str(whole.device),
    )


def _row(
    whole: Lens, other: Lens, batch: int, steps: int, rounds: int, seed: int
) -> dict[str, Any]:
    """Measure both models on inputs of one shape, (batch, steps) of context."""
    walks = np.random.default_rng(seed).standard_normal((batch, steps)).cumsum(axis=1)
    # a token model's decoder needs values to read, of which both models get the same
    future = None
    if whole.adapter.readout == "token":
        future = np.zeros((batch, 16))
    # encoded once, so that both models read the same tensors
    inputs = whole.encode(as_series(list(walks)), future=future).inputs
    forwards = [partial(_forward, lens, inputs) for lens in (whole, other)]
    times = np.array(in_turn(forwards, rounds=rounds, clock=make_clock(whole.device)))
    # a ratio for each round, in which both ran one right after the other; the ratio of
    # the medians would compare different moments
    ratio = times[1] / times[0]
    operations = []
    peaks = []
    for lens, forward in zip((whole, other), forwards, strict=True):
        # counted apart from the timing above, since the counter slows every operation
        with FlopCounterMode(display=False) as counter:
            forward()
        operations.append(int(counter.get_total_flops()))
        peaks.append(measured(forward, lens.device)[1] + _weight_bytes(lens))
    return {
        "time_ratio": float(np.median(ratio)),
        "time_ratio_low": float(ratio.min()),
        "time_ratio_high": float(ratio.max()),
        "operation_ratio": operations[1] / operations[0],
        "seconds": np.median(times, axis=1).tolist(),
        "operations": operations,
        "weight_bytes": [_weight_bytes(lens) for lens in (whole, other)],
        "peak_bytes": peaks,
    }


def _forward(lens: Lens, inputs: Any) -> None:
    with torch.no_grad():
        lens.adapter.run(inputs)


def _weight_bytes(lens: Lens) -> int:
    module = lens.adapter.model
    sizes = {
        id(part): part.numel() * part.element_size()
        for part in (*module.parameters(), *module.buffers())
    }
    return sum(sizes.values())
