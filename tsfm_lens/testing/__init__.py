"""Conformance suite: the oracles that every wiring must pass.

Read :func:`check_wiring`, which runs them on a wiring of your own; :func:`tiny` builds
a random model of any architecture. :mod:`tsfm_lens.testing.probe_checks` does the same
for probes.
"""

# ruff: noqa: F403
from tsfm_lens.core.extensions import public_names as _public_names
from tsfm_lens.testing.models import *
from tsfm_lens.testing.oracles import *
from tsfm_lens.testing.oracles_runs import *
from tsfm_lens.testing.probe_checks import *
from tsfm_lens.testing.suite import *
from tsfm_lens.testing.tolerance import *

__all__ = _public_names(globals())


def __dir__() -> list[str]:
    return __all__
