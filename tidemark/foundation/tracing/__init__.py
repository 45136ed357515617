"""Spans of OpenTelemetry around sending, receiving and writing; off unless TIDEMARK_TRACING says otherwise."""
