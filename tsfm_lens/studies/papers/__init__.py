"""The figures and the reported numbers of the tsfm-lens paper, computed on any model."""
