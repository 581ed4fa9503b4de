"""One file a command, the stages called in order; explore.py is the one to read first."""
