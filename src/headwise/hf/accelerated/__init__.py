"""Faster classes for modules of other libraries, one file for each family."""
