"""The conformance suite: tests in an image, or in any Python, whether the locked stack runs on this machine.

The package is copied beside the stack and runs with its Python: it needs the standard library of Python 3.9 and what it
tests, and imports nothing else of envspec but `envspec.verifier`.

    run.py (the suite) -> one process for each check -> lines of events -> results.json
"""
