"""`python -m caw.cli`."""

from caw.cli import main

main()
