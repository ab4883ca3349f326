"""Training: one loop for reference checkpoints, healing, and the models of the lab."""

from tsfm_lens.training.log import read_log
from tsfm_lens.training.loop import Training
from tsfm_lens.training.task import Plan, Task

__all__ = ["Plan", "Task", "Training", "read_log"]
