"""Training: one loop, sharpness-aware minimisation, and a watch on any training."""

from tsfm_lens.training.loop import Plan, Task, Training
from tsfm_lens.training.sam import SAM
from tsfm_lens.training.state import read_log
from tsfm_lens.training.watch.attention import ATTENTION_MEASURES, attention_measures, attention_norms, patterns_of
from tsfm_lens.training.watch.callback import Watch, read_watch, together
from tsfm_lens.training.watch.sharpness import GradientNoise, Sharpness, gradient_noise, sharpness

__all__ = [
    "ATTENTION_MEASURES",
    "GradientNoise",
    "Plan",
    "SAM",
    "Sharpness",
    "Task",
    "Training",
    "Watch",
    "attention_measures",
    "attention_norms",
    "gradient_noise",
    "patterns_of",
    "read_log",
    "read_watch",
    "sharpness",
    "together",
]
