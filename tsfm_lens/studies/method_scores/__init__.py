"""Scores of methods on planted models, whose mechanism is known."""
