"""Computation of a sweep's cells, in this process, several processes or a cluster."""
