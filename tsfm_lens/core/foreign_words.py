"""Words of other forecasting libraries, and what replaces them here.

Errors quote these tables: :func:`answer` for an argument, :data:`MEMBERS` for an
attribute, :data:`CLASSES` for a class. Members of TransformerLens's classes are in
:mod:`tsfm_lens.hooks.tl_names`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from tsfm_lens.core.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")

_HORIZON = "the number of forecast steps is horizon=…, of lens.forecast and lens.run"
_PAST = (
    "covariates are columns of the series: tsfm_lens.as_series(frame, past=[…]), or"
    " the key 'past_covariates' of an item"
)
_KNOWN = (
    "covariates are columns of the series: tsfm_lens.as_series(frame, known=[…]), with"
    " future=… for what comes, or the key 'future_covariates' of an item"
)
_TIME = "the column of time is time_column=… of tsfm_lens.as_series"
_ITEM = "the column that tells series apart is id_column=… of tsfm_lens.as_series"
_SAMPLES = "the number of sample paths is num_samples=…, of lens.forecast and lens.run"
_LEVELS = "levels are quantiles=…, of lens.forecast"
_WINDOWS = (
    "forecasts from earlier origins: lens.run(series, horizon, windows=…, holdout=True)"
)
_STATIC = "no model here reads static covariates; leave them out"

# darts, gluonts, AutoGluon-TimeSeries, the Chronos pipelines, statsforecast, sktime
ARGUMENTS = {
    **dict.fromkeys(
        ("prediction_length", "n", "h", "fh", "steps", "n_steps", "horizon_length"),
        _HORIZON,
    ),
    **dict.fromkeys(("output_chunk_length", "forecast_horizon"), _HORIZON),
    **dict.fromkeys(("past_covariates", "past_feat_dynamic_real", "hist_exog"), _PAST),
    **dict.fromkeys(
        (
            "future_covariates",
            "known_covariates",
            "known_covariates_names",
            "feat_dynamic_real",
            "X_df",
            "future_df",
            "futr_exog",
        ),
        _KNOWN,
    ),
    **dict.fromkeys(
        ("static_covariates", "static_features", "feat_static_cat"), _STATIC
    ),
    **dict.fromkeys(
        ("target", "target_col", "target_column", "value_cols", "y"),
        "columns to forecast are targets=[…] of tsfm_lens.as_series",
    ),
    **dict.fromkeys(
        ("timestamp", "timestamp_column", "time_col", "ds", "datetime_column"), _TIME
    ),
    **dict.fromkeys(("item_id", "item_id_column", "group_cols", "unique_id"), _ITEM),
    **dict.fromkeys(("num_parallel_samples", "n_samples"), _SAMPLES),
    **dict.fromkeys(("quantile_levels", "level", "probs"), _LEVELS),
    **dict.fromkeys(
        ("num_val_windows", "n_windows", "forecast_horizons", "retrain"), _WINDOWS
    ),
    **dict.fromkeys(
        ("context_length", "input_chunk_length", "limit_context"),
        "a model reads lens.context_length steps at most; series.tail(steps) is a"
        " shorter context",
    ),
    **dict.fromkeys(
        ("device_map", "accelerator"), "device=… of tsfm_lens.load, such as 'cuda'"
    ),
    "torch_dtype": "dtype='bfloat16' of tsfm_lens.load",
    "random_state": "seed=…, of lens.forecast and lens.run",
    "season_length": "steps of a season are seasonality=… of tsfm_lens.as_series",
}
"""Arguments of other libraries -> the replacement."""

_FRAME = "to_frame() is a table, a row per series and step"
_MEDIAN = "median, mean, quantiles and samples are its numbers, quantile(0.9) one level"
MEMBERS = {
    **dict.fromkeys(
        ("pd_dataframe", "to_dataframe", "pd_series", "to_series", "predictions"),
        _FRAME,
    ),
    **dict.fromkeys(
        ("mean_ts", "quantile_timeseries", "values", "all_values"), _MEDIAN
    ),
    **dict.fromkeys(("historical_forecasts", "backtest", "cross_validation"), _WINDOWS),
    **dict.fromkeys(
        ("prediction_length", "n"), "the number of forecast steps is its horizon"
    ),
    "direct_logit_attribution": (
        "probes.attribution(run) splits a forecast among its components, in logits and"
        " in data units"
    ),
    "target": "values are those of the series, ids their names",
    **dict.fromkeys(
        ("past_covariates", "future_covariates", "known_covariates"),
        "covariates are series of the same item: batch.roles says which",
    ),
    "leaderboard": "sweeps compare models on benchmarks: `tsfm-lens sweep`",
    "feature_importance": (
        "explain.input_attribution(run), or explain.covariate_use(run)"
    ),
}
"""Attributes of other libraries' models and forecasts -> the replacement."""


CLASSES = {
    **dict.fromkeys(
        ("HookedTransformer", "HookedEncoder", "HookedEncoderDecoder"),
        "tsfm_lens.load(name) opens a model as a Lens, with run_with_cache and hooks",
    ),
    "read_series": (
        "it is tsfm_lens.data.read_series; tsfm_lens.as_series reads files, too"
    ),
    "TransformerBridge": "tsfm_lens.load(name) opens a model as a Lens",
    "ActivationCache": "lens.run_with_cache(series) gives Activations",
    **dict.fromkeys(
        ("HookedRootModule", "HookPoint", "FactoredMatrix"),
        "it is TransformerLens's own, of transformer_lens",
    ),
    **dict.fromkeys(
        ("BaseChronosPipeline", "ChronosPipeline", "Chronos2Pipeline"),
        "tsfm_lens.load(name) opens a model as a Lens; lens.native is its pipeline",
    ),
    **dict.fromkeys(
        ("TimeSeries", "TimeSeriesDataFrame", "ListDataset", "PandasDataset"),
        "tsfm_lens.as_series(data) makes a SeriesBatch of frames, arrays and files",
    ),
    **dict.fromkeys(
        ("TimeSeriesPredictor", "StatsForecast", "NeuralForecast"),
        "tsfm_lens.load(name).forecast(series, horizon) is a forecast",
    ),
}
"""Classes of other libraries -> the replacement."""


def answer(name: str, allowed: Iterable[str]) -> str:
    """Say what replaces an argument: our word for it, a near one, or all there are."""
    options = list(allowed)
    if name in ARGUMENTS:
        return ARGUMENTS[name]
    near = get_close_matches(name, options, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    return f"it takes {', '.join(options)}"


def answers_arguments(
    label: str, hints: dict[str, str] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function refuse an argument that it does not have in words.

    A function that takes any argument is left as it is.

    Args:
        label: of the function, as a message names it.
        hints: replacements of its own, by argument.

    Returns:
        A decorator.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = signature(function).parameters
        if any(item.kind is item.VAR_KEYWORD for item in parameters.values()):
            return function

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in parameters:
                    allowed = [item for item in parameters if item != "self"]
                    hint = (hints or {}).get(name) or answer(name, allowed)
                    raise InputError(f"{label} takes no {name!r}; {hint}")
            return function(*args, **kwargs)

        return checked

    return decorate


def refuse_name(package: str, name: str) -> Any:
    """Raise AttributeError for a name that a package lacks, with our word for it."""
    hint = CLASSES.get(name) or MEMBERS.get(name, "")
    message = f"module {package!r} has no attribute {name!r}"
    if hint:
        message += f": {hint}"
    raise AttributeError(message)


def refuse_member(thing: Any, name: str, label: str) -> Any:
    """Raise AttributeError for a member that an object lacks, with our word for it."""
    if name in MEMBERS:
        raise AttributeError(f"{label} has no {name!r}: {MEMBERS[name]}")
    # object.__getattribute__ has failed before this is asked, and raises its error anew
    return object.__getattribute__(thing, name)
