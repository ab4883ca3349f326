"""Watching training: sharpness, attention, gradient noise and loss landscapes, and a callback that records them."""

from tsfm_lens.training.watch.attention import ATTENTION_MEASURES, attention_measures, attention_norms, patterns_of
from tsfm_lens.training.watch.callback import Watch
from tsfm_lens.training.watch.gradients import GradientNoise, gradient_noise
from tsfm_lens.training.watch.joined import together
from tsfm_lens.training.watch.landscape import filter_normalised, loss_landscape
from tsfm_lens.training.watch.record import read_watch
from tsfm_lens.training.watch.sharpness import Sharpness, sharpness

__all__ = [
    "ATTENTION_MEASURES",
    "GradientNoise",
    "Sharpness",
    "Watch",
    "attention_measures",
    "attention_norms",
    "filter_normalised",
    "gradient_noise",
    "loss_landscape",
    "patterns_of",
    "read_watch",
    "sharpness",
    "together",
]
