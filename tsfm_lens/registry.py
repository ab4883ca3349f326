"""Extensions: measurements, figures and commands that packages above the core register with it."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec

DISTRIBUTION = "tsfm-lens-toolbox"
SHOWN, COMMANDS = "tsfm_lens.shown", "tsfm_lens.commands"


@cache
def load_extensions(group: str) -> None:
    """Import every module that an entry point of this distribution names in a group; importing one registers it.

    Args:
        group: :data:`SHOWN` for measurements and figures, :data:`COMMANDS` for commands of ``tsfm-lens``.
    """
    try:
        points = distribution(DISTRIBUTION).entry_points
    except PackageNotFoundError:
        return
    for point in points.select(group=group):
        # an installation outlives a package that was taken out of it
        if find_spec(point.module.rpartition(".")[0]) is not None:
            point.load()
