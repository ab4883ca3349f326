"""Figures and reported numbers of the tsfm-lens paper, computed on any model."""
