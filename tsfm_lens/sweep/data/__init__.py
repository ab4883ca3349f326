"""Evaluation sets: forecast tasks with their truth, on which sweeps are scored.

They come from benchmarks, files, bundled series and simulated chaotic systems.
"""
