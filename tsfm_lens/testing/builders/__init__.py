"""Random models of every architecture: ``tiny()`` and ``published(size)`` in a file named as that of its wiring."""
