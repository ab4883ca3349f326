"""Scores of methods on planted models, whose mechanism is known.

:mod:`~tsfm_lens.studies.method_scores.scores` scores probes against the card of a
model; :mod:`~tsfm_lens.studies.method_scores.leaderboard` scores explanations.
"""
