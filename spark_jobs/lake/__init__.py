"""Where Spark lacks something: object stores it has no file system for, by fsspec; Delta and Iceberg on this machine, by packages."""
