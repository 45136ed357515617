"""Columns of events in Arrow, and the bytes of Avro that they are cut from. Knows no folder and no hub."""
