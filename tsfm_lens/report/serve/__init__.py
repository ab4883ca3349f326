"""Local page: drop a file, choose a model, and see it forecast and be explained.

:func:`serve` opens it. Nothing leaves the machine.
"""

from tsfm_lens.report.serve.server import serve

__all__ = ["serve"]
