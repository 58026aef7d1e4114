"""The command line: arguments in, text and exit code out."""
