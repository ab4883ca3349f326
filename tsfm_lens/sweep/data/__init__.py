"""Windows with their truth, on which sweeps are scored: benchmarks, files, bundled
series, chaotic systems.
"""
