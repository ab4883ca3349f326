"""SAMformer: a transformer over channels that trains to sharp minima, and what sharpness-aware minimisation does.

Ilbert et al. (2024), "SAMformer: Unlocking the Potential of Transformers in Time Series Forecasting with
Sharpness-Aware Minimization and Channel-Wise Attention". The optimiser is :class:`tsfm_lens.training.SAM`.
"""

from tsfm_lens.studies.samformer.baselines import LinearForecaster, TSMixer, least_squares, oracle_loss
from tsfm_lens.studies.samformer.making import MODELS, make_model
from tsfm_lens.studies.samformer.reparam import SigmaReparam, sigma_reparametrised, spectral_norm
from tsfm_lens.studies.samformer.revin import RevIN
from tsfm_lens.studies.samformer.tasks import BenchmarkTask, ForecastTask, ToyTask, cosine_by_epoch, errors_of
from tsfm_lens.studies.samformer.toy import LinearToy
from tsfm_lens.studies.samformer.transformer import ATTENTIONS, ChannelTransformer
from tsfm_lens.studies.samformer.windows import SPLITS, Benchmark, Windows, benchmark
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
