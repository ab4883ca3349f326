"""Local page: drop a file, choose a model, and see forecast, heads, ablations and
explanations.
"""

from tsfm_lens.report.serve.server import serve

__all__ = ["serve"]
