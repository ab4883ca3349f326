"""Methods that are scored on planted models, whose mechanism is known.

:mod:`~tsfm_lens.studies.method_scores.methods` holds probes,
:mod:`~tsfm_lens.studies.method_scores.explanations` explanations of single forecasts;
:mod:`~tsfm_lens.studies.method_scores.scores` compares both with the card of a model.
"""
