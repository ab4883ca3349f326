"""Figures by name, each computed from a run and written with its caption."""
