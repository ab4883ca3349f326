"""Scores of forecasts, their pooling into metrics, and tests of changes."""
