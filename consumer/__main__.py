"""`python -m consumer`."""

from tidemark.foundation.log.stop_at_start import leave_on_signals


def run() -> None:
    leave_on_signals("consume")
    from consumer.cli.consume import main  # noqa: PLC0415 - takes a second, in which a signal must end the process

    main()


if __name__ == "__main__":
    run()
