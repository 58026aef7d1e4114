"""What is installed, against what a lock expects. Standard library alone, Python 3.9: it also runs inside of images."""
