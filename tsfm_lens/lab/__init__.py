"""Small trainable models and controlled experiments of the literature, one room each."""

from tsfm_lens.lab import samformer, structured

__all__ = ["samformer", "structured"]
