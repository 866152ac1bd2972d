"""`python -m practicum`."""

from practicum.cli.main import main

main()
