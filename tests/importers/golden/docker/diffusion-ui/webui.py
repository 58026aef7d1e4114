"""The program that the image starts."""
