"""Contents of the layers: wheels, conda packages, Python, bytecode, system packages."""
