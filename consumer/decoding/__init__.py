"""From the body of an event to its documents, by content type, property or setting: JSON, Avro, Protobuf, CloudEvents, CSV and others."""
