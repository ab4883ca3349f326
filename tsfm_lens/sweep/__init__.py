"""The ablation lab: sweeps over models, variants and benchmarks, kept in a store and reported with intervals."""
