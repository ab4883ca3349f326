"""Small trainable models and controlled experiments of the literature, a package each; runs, and grids of runs."""

from tsfm_lens.studies import samformer, structured
from tsfm_lens.studies.experiments.config import TrainConfig, read_train_config
from tsfm_lens.studies.experiments.grid import Arm, end_norms, ends, gathered, of_seeds, record, record_names, run_arms
from tsfm_lens.studies.experiments.grids import (
    ENCODER_ARMS,
    IN_CONTEXT_ARMS,
    TRANSFER_ARMS,
    WIDTH_ARMS,
    benchmark_arms,
    encoder_arms,
    in_context_arms,
    in_context_results,
    rho_arms,
    toy_arms,
    transfer_arms,
    transfer_results,
)
from tsfm_lens.studies.experiments.running import prepare, train

__all__ = [
    "ENCODER_ARMS",
    "IN_CONTEXT_ARMS",
    "TRANSFER_ARMS",
    "Arm",
    "WIDTH_ARMS",
    "TrainConfig",
    "benchmark_arms",
    "encoder_arms",
    "end_norms",
    "ends",
    "gathered",
    "in_context_arms",
    "in_context_results",
    "of_seeds",
    "prepare",
    "read_train_config",
    "record",
    "record_names",
    "rho_arms",
    "run_arms",
    "samformer",
    "structured",
    "toy_arms",
    "train",
    "transfer_arms",
    "transfer_results",
]
