"""The tables of a job's results: Delta Lake by Spark or by the package deltalake, and other formats beside them."""
