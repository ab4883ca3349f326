"""Commands of the studies, registered with the command line by an entry point."""

from tsfm_lens.studies.commands import bench, reproduce, train

__all__ = ["bench", "reproduce", "train"]
