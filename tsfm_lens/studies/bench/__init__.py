"""Benchmark of methods that anybody can submit to: planted models, one file an answer.

:mod:`~tsfm_lens.studies.bench.models` holds the models and writes them without their
truth, :mod:`~tsfm_lens.studies.bench.submission` reads answers,
:mod:`~tsfm_lens.studies.bench.scoring` scores them.
"""
