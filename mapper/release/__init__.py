"""Decides what the measurements mean: ranks and bottleneck classes."""
