"""Command line of tsfm-lens.

Data go to stdout, messages and progress to stderr. The exit code is 0 for success, 1
for a LensError, and 2 for wrong usage.
"""

from tsfm_lens.cli import analyses, compress, embed, figure, listings, sweep
from tsfm_lens.cli.common import app
from tsfm_lens.core.console import standard_streams, termination
from tsfm_lens.core.extensions import COMMANDS, load_all

__all__ = [
    "analyses",
    "app",
    "compress",
    "embed",
    "figure",
    "listings",
    "main",
    "sweep",
]

# the commands of packages above
load_all(COMMANDS)


def main() -> None:
    """Run ``tsfm-lens``."""
    with standard_streams(), termination():
        app(prog_name="tsfm-lens")
