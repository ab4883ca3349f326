"""Where results are kept: a folder of content-keyed files that survive whatever stops a sweep."""
