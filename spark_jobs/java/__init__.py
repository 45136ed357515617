"""The Java that Spark runs on in local mode, and the archive of classes that it starts with."""
