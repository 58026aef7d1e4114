"""A spec's [conda] -> packages of conda channels, for each platform."""
