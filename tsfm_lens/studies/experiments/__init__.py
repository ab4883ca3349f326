"""Small trainable models and controlled experiments of the literature, a package each; runs, and grids of runs."""

from tsfm_lens.studies import samformer, structured
from tsfm_lens.studies.experiments.config import TrainConfig, read_train_config
from tsfm_lens.studies.experiments.encoders import ENCODER_ARMS, encoder_arms
from tsfm_lens.studies.experiments.ends import end_norms, ends
from tsfm_lens.studies.experiments.experiments import benchmark_arms, rho_arms, toy_arms
from tsfm_lens.studies.experiments.grid import Arm, gathered, of_seeds, run_arms
from tsfm_lens.studies.experiments.in_context import IN_CONTEXT_ARMS, WIDTH_ARMS, in_context_arms, in_context_results
from tsfm_lens.studies.experiments.records import record, record_names
from tsfm_lens.studies.experiments.running import prepare, train
from tsfm_lens.studies.experiments.transfer import TRANSFER_ARMS, transfer_arms, transfer_results

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
