"""Records: telemetry and the scaling log, from files and tables, and exports of Application Insights."""
