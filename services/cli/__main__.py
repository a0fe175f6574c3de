"""``python -m services.cli`` is ``ringline``."""

from services.cli.main import main

main()
