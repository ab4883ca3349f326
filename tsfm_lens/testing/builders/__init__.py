"""Random models of our wirings, in files of their names.

A file of settings is enough where the library's configuration says all of a model; else
functions ``tiny()`` and ``published(size)`` build it.
"""
