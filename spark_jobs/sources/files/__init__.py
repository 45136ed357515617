"""The files of an input folder."""
