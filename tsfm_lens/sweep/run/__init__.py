"""How a sweep runs: cells, engines, workers, and the road from a configuration to a full store."""
