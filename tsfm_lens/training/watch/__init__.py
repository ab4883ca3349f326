"""Measures of a model while it is trained, and a callback that records them."""
