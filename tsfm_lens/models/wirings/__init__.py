"""Wirings, one file per architecture; each defines ``ARCHITECTURE``. Files that start
with "_" are shared parts.
"""
