"""Store of results: a folder of content-keyed files that survive any end of a sweep."""
