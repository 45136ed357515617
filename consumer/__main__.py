"""`python -m consumer`."""

from consumer.cli.consume import main

if __name__ == "__main__":
    main()
