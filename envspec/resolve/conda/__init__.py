"""The conda half: a spec's [conda] and its bounds -> rows of channels, one set a platform."""
