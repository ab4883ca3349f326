"""Run of a sweep: cells, engines, workers, and the way from a configuration to a full
store.
"""
