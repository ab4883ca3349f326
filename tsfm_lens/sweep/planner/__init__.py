"""Plan of a sweep: what is ablated, on which windows, and in which order.

Read ``config.py`` first (the configuration), then ``table.py`` (the tables of cells).
"""
