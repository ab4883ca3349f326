"""Studies on the core: papers, training recipes, rank theory, scores of methods.

The core never imports them. Each folder is one study with its own ``__init__``; what
several of them draw is in :mod:`tsfm_lens.studies.curves`.
"""
