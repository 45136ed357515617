"""Keeps the lines of the Azure SDKs out of the log, where they would be twenty for each of ours.

The Functions worker lets the root logger pass INFO, and at INFO the SDKs write two lines per request, which the host
sends on unsampled, to be paid for. So these loggers get a level of their own, which no later level or handler of the
root logger changes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from foundation.settings_reader import SDK_LOG_LEVEL, read_log_level

LIBRARIES = ("aiohttp", "azure", "msal", "uamqp", "urllib3")
"""Loggers of the SDKs and of what they send requests with. What somebody sets below them (`azure.cosmos`) stays."""


def quiet_sdks(settings: Mapping[str, str]) -> None:
    """Sets the level that TIDEMARK_SDK_LOG_LEVEL names. Safe to call often: should a library have set its own level in
    the meantime, the next invocation has ours again.

    Never raises, as the app is being loaded: `assemble` and the consumer's `read_config` tell a wrong level.
    """
    try:
        level = read_log_level(settings)
    except ValueError:
        level = SDK_LOG_LEVEL
    for name in LIBRARIES:
        logger = logging.getLogger(name)
        if logging.getLevelName(logger.level) != level:  # setting it empties a cache of the whole process
            logger.setLevel(level)
