"""`python -m app` is `dart-chat`."""

from app.cli import main

main()
