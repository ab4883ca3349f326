"""Commands of the studies, registered with the command line by an entry point."""

from tsfm_lens.studies.commands import reproduce, train

__all__ = ["reproduce", "train"]
