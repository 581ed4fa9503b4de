"""The command line: one file a command, imported when it is called; the only place that prints and exits."""
