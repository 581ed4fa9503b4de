"""Where to look for good choices, and what they are expected to cost."""
