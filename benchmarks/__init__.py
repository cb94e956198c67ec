"""The measuring grid, run by hand: see README.md."""
