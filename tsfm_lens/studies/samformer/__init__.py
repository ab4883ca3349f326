"""SAMformer: a transformer over channels that trains to sharp minima, and what sharpness-aware minimisation does.

Ilbert et al. (2024), "SAMformer: Unlocking the Potential of Transformers in Time Series Forecasting with
Sharpness-Aware Minimization and Channel-Wise Attention". The optimiser is :class:`tsfm_lens.training.SAM`.
"""

from tsfm_lens.studies.samformer.models import (
    ATTENTIONS,
    MODELS,
    ChannelTransformer,
    LinearForecaster,
    RevIN,
    SigmaReparam,
    TSMixer,
    least_squares,
    make_model,
    oracle_loss,
    sigma_reparametrised,
    spectral_norm,
)
from tsfm_lens.studies.samformer.tasks import (
    SPLITS,
    Benchmark,
    BenchmarkTask,
    ForecastTask,
    LinearToy,
    ToyTask,
    Windows,
    benchmark,
    cosine_by_epoch,
    errors_of,
)
from tsfm_lens.studies.samformer.wiring import ChannelAdapter

__all__ = [
    "ATTENTIONS",
    "MODELS",
    "SPLITS",
    "Benchmark",
    "BenchmarkTask",
    "ChannelAdapter",
    "ChannelTransformer",
    "ForecastTask",
    "LinearForecaster",
    "LinearToy",
    "RevIN",
    "SigmaReparam",
    "TSMixer",
    "ToyTask",
    "Windows",
    "benchmark",
    "cosine_by_epoch",
    "errors_of",
    "least_squares",
    "make_model",
    "oracle_loss",
    "sigma_reparametrised",
    "spectral_norm",
]
