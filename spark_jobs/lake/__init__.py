"""Where Spark lacks something: object stores it has no file system for, by fsspec; Delta on this machine, by a package; Iceberg by its runtime."""
