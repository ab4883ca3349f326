"""The command line: data to stdout, messages and progress to stderr; exit code 0 ok, 1 a LensError, 2 usage."""

from tsfm_lens.cli import analyses, compress, explain, figure, listings, reproduce, serve, sweep, train
from tsfm_lens.cli.common import app
from tsfm_lens.console import standard_streams

__all__ = [
    "analyses",
    "app",
    "compress",
    "explain",
    "figure",
    "listings",
    "main",
    "reproduce",
    "serve",
    "sweep",
    "train",
]


def main() -> None:
    """Entry point of ``tsfm-lens``."""
    with standard_streams():
        app(prog_name="tsfm-lens")
