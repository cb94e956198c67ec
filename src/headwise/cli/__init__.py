"""The command line: ``headwise info | explain | generate | embed | bench``."""

from headwise.cli.app import app, main

__all__ = ["app", "main"]
