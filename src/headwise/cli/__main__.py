"""``python -m headwise.cli``: the command line without an installed script."""

from headwise.cli import main

main()
