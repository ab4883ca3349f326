"""Conformance suite: the oracles that every wiring must pass, and random models of
every architecture.
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
