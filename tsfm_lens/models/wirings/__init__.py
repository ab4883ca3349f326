"""Wirings, one file per architecture; each registers its ``Architecture``.

Files that start with "_" are shared parts.
"""
