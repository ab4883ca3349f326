"""Register the commands of the studies; an entry point names this module."""

from tsfm_lens.studies.experiments import command as train
from tsfm_lens.studies.papers import command as reproduce

__all__ = ["reproduce", "train"]
