"""Small trainable models and controlled experiments of the literature, one room each; runs, and grids of runs."""

from tsfm_lens.lab import samformer, structured
from tsfm_lens.lab.config import TrainConfig, read_train_config
from tsfm_lens.lab.experiments import benchmark_arms, toy_arms
from tsfm_lens.lab.grid import Arm, gathered, of_seeds, run_arms
from tsfm_lens.lab.in_context import IN_CONTEXT_ARMS, WIDTH_ARMS, in_context_arms, in_context_results
from tsfm_lens.lab.records import record, record_names
from tsfm_lens.lab.running import prepare, train

__all__ = [
    "IN_CONTEXT_ARMS",
    "Arm",
    "WIDTH_ARMS",
    "TrainConfig",
    "benchmark_arms",
    "gathered",
    "in_context_arms",
    "in_context_results",
    "of_seeds",
    "prepare",
    "read_train_config",
    "record",
    "record_names",
    "run_arms",
    "samformer",
    "structured",
    "toy_arms",
    "train",
]
