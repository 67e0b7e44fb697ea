"""``python -m advreg.cli``: the command without an installation."""

from advreg.cli import main

main()
