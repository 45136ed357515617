"""Files of records: telemetry, and exports of Application Insights."""
