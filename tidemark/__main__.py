"""`tidemark`, also as `python -m tidemark`: the commands of all parts. What a command needs is loaded when it runs."""

from __future__ import annotations

from consumer.cli.commands import mount as mount_consumer
from publisher.cli.commands import mount as mount_publisher
from scaling.cli import app
from spark_jobs.cli import mount as mount_spark

mount_consumer(app)
mount_spark(app)
mount_publisher(app)


def main() -> None:
    """The entry point of the installed command."""
    app()


if __name__ == "__main__":
    main()
