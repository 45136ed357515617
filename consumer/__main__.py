"""`python -m consumer`."""

from consumer.command import main

if __name__ == "__main__":
    main()
