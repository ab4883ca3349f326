"""Training: one loop for reference checkpoints, healing, and the models of the lab, and a watch on any training."""

from tsfm_lens.training.log import read_log
from tsfm_lens.training.loop import Training
from tsfm_lens.training.sam import SAM
from tsfm_lens.training.task import Plan, Task
from tsfm_lens.training.watch import (
    ATTENTION_MEASURES,
    GradientNoise,
    Sharpness,
    Watch,
    attention_measures,
    attention_norms,
    filter_normalised,
    gradient_noise,
    loss_landscape,
    patterns_of,
    read_watch,
    sharpness,
    together,
)

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
    "filter_normalised",
    "gradient_noise",
    "loss_landscape",
    "patterns_of",
    "read_log",
    "read_watch",
    "sharpness",
    "together",
]
