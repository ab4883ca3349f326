"""Printed settings, errors over seeds and parameter counts of the paper on SAMformer; nothing of it is ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SOURCE = "SAMformer: Unlocking the Potential of Transformers in Time Series Forecasting"
SEEDS = 5
HORIZONS = (96, 192, 336, 720)
DATASETS = ("ETTh1", "ETTh2", "ETTm1", "ETTm2", "Electricity", "Exchange", "Traffic", "Weather")
COLUMNS = (
    "SAMformer",
    "TSMixer+SAM",
    "Transformer",
    "TSMixer",
    "iTransformer",
    "PatchTST",
    "Informer",
    "Autoformer",
    "FEDformer",
)
"""Models of tables 1 and 6; the first four were trained by the authors, the others are from earlier papers."""

Cell = tuple[str, int]
"""Dataset and horizon."""


@dataclass(frozen=True)
class Printed:
    """Mean over seeds and its standard deviation, NaN where the paper prints none."""

    mean: float
    std: float = math.nan


@dataclass(frozen=True)
class Dataset:
    """Row of table 5.

    Attributes:
        features, steps: D and the number of rows.
        granularity: of the rows.
        rate: learning rate of table 3.
    """

    features: int
    steps: int
    granularity: str
    rate: float


def _parse(text: str) -> Printed:
    mean, _, std = text.partition("±")
    return Printed(float(mean), float(std)) if std else Printed(float(mean))


def _cells(columns: Sequence[str], text: str) -> Mapping[str, Mapping[Cell, Printed]]:
    """Parse a table by model and cell; a dash stands for no number."""
    table: dict[str, dict[Cell, Printed]] = {name: {} for name in columns}
    for line in text.strip().splitlines():
        dataset, horizon, *numbers = line.split()
        for name, number in zip(columns, numbers, strict=True):
            if number != "-":
                table[name][dataset, int(horizon)] = _parse(number)
    return table


def _by_horizon(text: str) -> Mapping[Cell, Printed]:
    """Parse a table by cell, of lines of a horizon each with a number for every dataset."""
    table: dict[Cell, Printed] = {}
    for line in text.strip().splitlines():
        horizon, *numbers = line.split()
        for dataset, number in zip(DATASETS, numbers, strict=True):
            if number != "-":
                table[dataset, int(horizon)] = _parse(number)
    return table


TABLE_5 = {
    "ETTh1": Dataset(7, 17420, "1 hour", 1e-3),
    "ETTh2": Dataset(7, 17420, "1 hour", 1e-3),
    "ETTm1": Dataset(7, 69680, "15 minutes", 1e-3),
    "ETTm2": Dataset(7, 69680, "15 minutes", 1e-3),
    "Electricity": Dataset(321, 26304, "1 hour", 1e-4),
    "Exchange": Dataset(8, 7588, "1 day", 1e-3),
    "Traffic": Dataset(862, 17544, "1 hour", 1e-4),
    "Weather": Dataset(21, 52696, "10 minutes", 1e-4),
}
"""Datasets of table 5 (S1-T5) with the learning rates of table 3 (S1-T3)."""

RHO = {
    "SAMformer": _by_horizon(
        """
    96 0.5 0.5 0.6 0.2 0.5 0.7 0.8 0.4
    192 0.6 0.8 0.9 0.9 0.6 0.8 0.1 0.4
    336 0.9 0.6 0.9 0.8 0.5 0.5 0.5 0.6
    720 0.9 0.8 0.9 0.9 1.0 0.9 0.7 0.5
    """
    ),
    "TSMixer+SAM": _by_horizon(
        """
    96 1.0 0.9 1.0 1.0 0.9 1.0 0.0 0.5
    192 0.7 0.1 0.6 1.0 1.0 0.0 0.9 0.4
    336 0.7 0.0 0.7 1.0 0.4 1.0 0.6 0.6
    720 0.3 0.4 0.5 1.0 0.9 0.1 0.9 0.3
    """
    ),
}
"""ρ of table 4 (S1-T4). Where it is 0, TSMixer+SAM is TSMixer, and tables 1 and 6 print the same numbers for both."""

MSE = _cells(
    COLUMNS,
    """
    ETTh1 96 0.381±.003 0.388±.001 0.509±.031 0.398±.001 0.386 0.414 0.941 0.435 0.376
    ETTh1 192 0.409±.002 0.421±.002 0.535±.043 0.426±.003 0.441 0.460 1.007 0.456 0.423
    ETTh1 336 0.423±.001 0.430±.002 0.570±.016 0.435±.003 0.487 0.501 1.038 0.486 0.444
    ETTh1 720 0.427±.002 0.440±.005 0.601±.036 0.498±.076 0.503 0.500 1.144 0.515 0.469
    ETTh2 96 0.295±.002 0.305±.007 0.396±.017 0.308±.003 0.297 0.302 1.549 0.332 0.332
    ETTh2 192 0.340±.002 0.350±.002 0.413±.010 0.352±.004 0.380 0.388 3.792 0.426 0.407
    ETTh2 336 0.350±.000 0.360±.002 0.414±.002 0.360±.002 0.428 0.426 4.215 0.477 0.400
    ETTh2 720 0.391±.001 0.402±.002 0.424±.009 0.409±.006 0.427 0.431 3.656 0.453 0.412
    ETTm1 96 0.329±.001 0.327±.002 0.384±.022 0.336±.004 0.334 0.329 0.626 0.510 0.326
    ETTm1 192 0.353±.006 0.356±.004 0.400±.026 0.362±.006 0.377 0.367 0.725 0.514 0.365
    ETTm1 336 0.382±.001 0.387±.004 0.461±.017 0.391±.003 0.426 0.399 1.005 0.510 0.392
    ETTm1 720 0.429±.000 0.441±.002 0.463±.046 0.450±.006 0.491 0.454 1.133 0.527 0.446
    ETTm2 96 0.181±.005 0.190±.003 0.200±.036 0.211±.014 0.180 0.175 0.355 0.205 0.180
    ETTm2 192 0.233±.002 0.250±.002 0.273±.013 0.252±.005 0.250 0.241 0.595 0.278 0.252
    ETTm2 336 0.285±.001 0.301±.003 0.310±.022 0.303±.004 0.311 0.305 1.270 0.343 0.324
    ETTm2 720 0.375±.001 0.389±.002 0.426±.025 0.390±.003 0.412 0.402 3.001 0.414 0.410
    Electricity 96 0.155±.002 0.171±.001 0.182±.006 0.173±.004 - - 0.304 0.196 0.186
    Electricity 192 0.168±.001 0.191±.010 0.202±.041 0.204±.027 - - 0.327 0.211 0.197
    Electricity 336 0.183±.000 0.198±.006 0.212±.017 0.217±.018 - - 0.333 0.214 0.213
    Electricity 720 0.219±.000 0.230±.005 0.238±.016 0.242±.015 - - 0.351 0.236 0.233
    Exchange 96 0.161±.007 0.233±.016 0.292±.045 0.343±.082 0.086 0.088 0.847 0.197 0.139
    Exchange 192 0.246±.009 0.342±.031 0.372±.035 0.342±.031 0.177 0.176 1.204 0.300 0.256
    Exchange 336 0.368±.006 0.474±.014 0.494±.033 0.484±.062 0.331 0.301 1.672 0.509 0.426
    Exchange 720 1.003±.018 1.078±.179 1.323±.192 1.204±.028 0.847 0.901 2.478 1.447 1.090
    Traffic 96 0.407±.001 0.409±.016 0.420±.041 0.409±.016 0.395 0.462 0.733 0.597 0.576
    Traffic 192 0.415±.005 0.433±.009 0.441±.039 0.637±.444 0.417 0.466 0.777 0.607 0.610
    Traffic 336 0.421±.001 0.424±.000 0.501±.154 0.747±.277 0.433 0.482 0.776 0.623 0.608
    Traffic 720 0.456±.003 0.488±.028 0.468±.021 0.688±.287 0.467 0.514 0.827 0.639 0.621
    Weather 96 0.197±.001 0.189±.003 0.227±.012 0.214±.004 0.174 0.177 0.354 0.249 0.238
    Weather 192 0.235±.000 0.228±.004 0.256±.018 0.231±.003 0.221 0.225 0.419 0.325 0.275
    Weather 336 0.276±.001 0.271±.001 0.278±.001 0.279±.007 0.278 0.278 0.583 0.351 0.339
    Weather 720 0.334±.000 0.331±.001 0.353±.002 0.343±.024 0.358 0.354 0.916 0.415 0.389
    """,
)
"""Test errors of table 1 (S1-T1), mean and deviation over five seeds, as printed; a deviation is NaN where none is."""
MAE = _cells(
    COLUMNS,
    """
    ETTh1 96 0.402±.001 0.408±.001 0.619±.203 0.414±.004 0.405 0.419 0.769 0.446 0.415
    ETTh1 192 0.418±.001 0.426±.002 0.513±.024 0.428±.001 0.436 0.445 0.786 0.457 0.446
    ETTh1 336 0.425±.000 0.434±.001 0.529±.008 0.434±.001 0.458 0.466 0.784 0.487 0.462
    ETTh1 720 0.449±.002 0.459±.004 0.553±.021 0.506±.064 0.491 0.488 0.857 0.517 0.492
    ETTh2 96 0.358±.002 0.367±.002 0.416±.025 0.367±.003 0.349 0.348 0.952 0.368 0.374
    ETTh2 192 0.386±.003 0.393±.001 0.435±.019 0.395±.003 0.400 0.400 1.542 0.434 0.446
    ETTh2 336 0.395±.002 0.404±.004 0.434±.014 0.404±.002 0.432 0.433 1.642 0.479 0.447
    ETTh2 720 0.428±.001 0.435±.002 0.448±.006 0.441±.005 0.445 0.446 1.619 0.490 0.469
    ETTm1 96 0.363±.001 0.363±.001 0.395±.024 0.371±.002 0.368 0.367 0.560 0.492 0.390
    ETTm1 192 0.378±.003 0.381±.002 0.414±.027 0.384±.003 0.391 0.385 0.619 0.495 0.415
    ETTm1 336 0.394±.001 0.397±.002 0.445±.009 0.399±.003 0.420 0.410 0.741 0.492 0.425
    ETTm1 720 0.418±.000 0.425±.001 0.456±.035 0.429±.002 0.459 0.439 0.845 0.493 0.458
    ETTm2 96 0.274±.010 0.284±.004 0.290±.026 0.302±.013 0.264 0.259 0.462 0.293 0.271
    ETTm2 192 0.306±.001 0.320±.001 0.347±.025 0.323±.005 0.309 0.302 0.586 0.336 0.318
    ETTm2 336 0.338±.001 0.350±.001 0.360±.017 0.352±.003 0.348 0.343 0.871 0.379 0.364
    ETTm2 720 0.390±.001 0.402±.002 0.424±.014 0.402±.003 0.407 0.400 1.267 0.419 0.420
    Electricity 96 0.252±.002 0.273±.001 0.288±.013 0.277±.003 - - 0.393 0.313 0.302
    Electricity 192 0.263±.001 0.292±.011 0.304±.033 0.304±.027 - - 0.417 0.324 0.311
    Electricity 336 0.277±.000 0.297±.007 0.315±.018 0.317±.018 - - 0.422 0.327 0.328
    Electricity 720 0.306±.000 0.321±.006 0.330±.014 0.333±.015 - - 0.427 0.342 0.344
    Exchange 96 0.306±.006 0.363±.013 0.369±.049 0.436±.054 0.206 0.205 0.752 0.323 0.276
    Exchange 192 0.371±.008 0.437±.021 0.416±.041 0.437±.021 0.299 0.299 0.895 0.369 0.369
    Exchange 336 0.453±.004 0.515±.006 0.491±.036 0.523±.029 0.417 0.397 1.036 0.524 0.464
    Exchange 720 0.750±.006 0.777±.064 0.823±.040 0.818±.007 0.691 0.714 1.310 0.941 0.800
    Traffic 96 0.292±.001 0.300±.020 0.306±.033 0.300±.020 0.268 0.295 0.410 0.371 0.359
    Traffic 192 0.294±.005 0.317±.012 0.321±.034 0.419±.218 0.276 0.296 0.435 0.382 0.380
    Traffic 336 0.292±.000 0.299±.000 0.348±.093 0.501±.163 0.283 0.304 0.434 0.387 0.375
    Traffic 720 0.311±.003 0.344±.026 0.325±.023 0.458±.159 0.302 0.322 0.466 0.395 0.375
    Weather 96 0.249±.001 0.242±.002 0.281±.018 0.271±.009 0.214 0.218 0.405 0.329 0.314
    Weather 192 0.277±.000 0.272±.003 0.302±.020 0.275±.003 0.254 0.259 0.434 0.370 0.329
    Weather 336 0.304±.001 0.299±.001 0.310±.012 0.307±.009 0.296 0.297 0.543 0.391 0.377
    Weather 720 0.342±.000 0.341±.002 0.363±.002 0.351±.021 0.347 0.348 0.705 0.426 0.409
    """,
)
"""Test errors of table 6 (S1-T6), as printed."""
TEMPORAL_MSE = _by_horizon(
    """
    96 0.496±.009 0.401±.011 0.542±.063 0.330±.034 0.291±.025 0.684±.218 0.933±.188 0.225±.005
    192 0.510±.014 0.414±.020 0.615±.056 0.394±.033 0.294±.024 0.434±.063 0.647±.131 0.254±.001
    336 0.549±.017 0.396±.014 0.620±.046 0.436±.081 0.290±.016 0.473±.014 0.656±.113 0.292±.000
    720 0.604±.017 0.396±.010 0.694±.055 0.469±.005 0.307±.014 1.097±.084 - 0.346±.000
    """,
)
TEMPORAL_MAE = _by_horizon(
    """
    96 0.488±.007 0.434±.006 0.525±.040 0.393±.020 0.386±.014 0.589±.096 0.598±.072 0.277±.004
    192 0.492±.010 0.443±.015 0.566±.032 0.421±.019 0.385±.014 0.498±.033 0.467±.072 0.294±.001
    336 0.517±.012 0.440±.012 0.550±.024 0.443±.039 0.383±.009 0.517±.008 0.469±.070 0.320±.000
    720 0.556±.009 0.442±.006 0.584±.027 0.459±.004 0.396±.012 0.782±.041 - 0.356±.000
    """,
)
"""Test errors of table 9 (S1-T9): attention over time, compared with the transformer, as printed."""
IDENTITY_MSE = _by_horizon(
    """
    96 0.477±.059 0.346±.055 0.345±.027 0.201±.035 0.175±.015 0.179±.031 0.416±.037 0.206±.019
    192 0.467±.074 0.374±.031 0.384±.042 0.248±.016 0.189±.022 0.320±.070 0.437±.041 0.236±.002
    336 0.512±.070 0.372±.024 0.408±.032 0.303±.022 0.211±.019 0.443±.071 0.500±.155 0.277±.003
    720 0.505±.107 0.405±.012 0.466±.043 0.397±.029 0.233±.019 1.123±.076 0.468±.021 0.338±.009
    """,
)
IDENTITY_MAE = _by_horizon(
    """
    96 0.473±.041 0.395±.033 0.376±.019 0.294±.027 0.283±.023 0.320±.023 0.301±.039 0.259±.021
    192 0.463±.055 0.413±.022 0.399±.030 0.321±.012 0.291±.029 0.418±.043 0.314±.042 0.278±.002
    336 0.490±.049 0.413±.015 0.411±.019 0.354±.018 0.309±.021 0.498±.041 0.350±.106 0.305±.003
    720 0.496±.066 0.438±.008 0.444±.030 0.406±.017 0.322±.021 0.788±.021 0.325±.023 0.347±.009
    """,
)
"""Test errors of table 10 (S1-T10): the identity for attention, compared with SAMformer, as printed."""
PARAMETERS = {
    "SAMformer": {96: 50272, 192: 99520, 336: 173392, 720: 369904},
    "TSMixer ETT": {96: 124142, 192: 173390, 336: 247262, 720: 444254},
    "TSMixer Exchange": {96: 349344, 192: 398592, 336: 472464, 720: 669456},
    "TSMixer Weather": {96: 121908, 192: 171156, 336: 245028, 720: 442020},
    "TSMixer Electricity": {96: 280676, 192: 329924, 336: 403796, 720: 600788},
    "TSMixer Traffic": {96: 793424, 192: 842672, 336: 916544, 720: 1113536},
}
"""Parameters of table 8 (S1-T8), as printed. Those of SAMformer are L·H + H and some 1024, not the 4·L·d_m that the
stated sizes give, and lack the 2·D of RevIN (E1-12); see :func:`parameter_count`."""

IMPROVEMENT = {
    "TSMixer+SAM": (5.25, 3.99),
    "Transformer": (16.96, 11.63),
    "TSMixer": (14.33, 9.60),
    "iTransformer": (3.94, 2.05),
    "PatchTST": (11.13, 2.75),
    "Informer": (72.20, 53.00),
    "Autoformer": (22.65, 15.67),
    "FEDformer": (12.36, 9.93),
}
"""Overall improvement of SAMformer in MSE and MAE, per cent, as printed; those over iTransformer and PatchTST do not
follow from the tables."""

NOT_SIGNIFICANT = {("ETTm1", 96), ("Traffic", 96), ("ETTm1", 192), ("Exchange", 720)}
"""Cells of table 7 (S1-T7) in which neither SAMformer nor TSMixer+SAM is bold."""


def parameter_count(length: int, horizon: int, channels: int, *, width: int = 16, bias: bool = False) -> int:
    """Count trained numbers of SAMformer by the stated shapes: 4·L·d_m + L·H + 2·D, and the biases.

    Args:
        length, horizon, channels: L, H and D.
        width: d_m.
        bias: whether the five maps have one, 3·d_m + L + H in all.
    """
    return 4 * length * width + length * horizon + 2 * channels + bias * (3 * width + length + horizon)
