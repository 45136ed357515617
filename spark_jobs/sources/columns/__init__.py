"""Columns of events in Arrow, and the blocks of Avro files. Knows no folder and no hub."""
