"""Command line of tsfm-lens.

Data go to stdout, messages and progress to stderr. The exit code is 0 for success, 1
for a LensError, and 2 for wrong usage.
"""

import os

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
    # OpenMP's threads wait for one another by spinning, unless told otherwise before
    # torch loads; on a core that another process uses, most of the time is lost so
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with standard_streams(), termination():
        app(prog_name="tsfm-lens")
