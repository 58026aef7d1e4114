"""Files that a lock names by hash, fetched into envspec's cache."""
