"""An environment compared with a lock. Standard library of Python 3.9 only: it also runs in images."""
