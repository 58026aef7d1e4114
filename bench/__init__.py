"""Side-by-side measurements of envspec and its peers; `python -m bench.lock --help`."""
