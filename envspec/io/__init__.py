"""The doors outside: HTTP, processes, files. Nothing else in envspec touches the world."""
