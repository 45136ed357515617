"""An interpreter for the queries of infra/queries: see README.md."""
