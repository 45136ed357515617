"""`python -m consumer`."""

from consumer.running.stop_at_start import leave_when_told


def run() -> None:
    leave_when_told()
    from consumer.cli.consume import main  # noqa: PLC0415 - takes a second, in which a stop is heard

    main()


if __name__ == "__main__":
    run()
