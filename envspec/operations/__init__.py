"""One module a command: its stages, in order. Nothing else joins stages."""
