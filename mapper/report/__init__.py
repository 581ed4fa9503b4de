"""Writes what an exploration found: JSON files, terminal text, Markdown."""
