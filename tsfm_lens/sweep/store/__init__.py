"""Store of results: a folder of content-keyed files that survive whatever stops a sweep."""
