"""Compiled extensions of torch: an operator of each against plain torch, one process for an extension on a device."""
