"""The rule `service_level`: state what no message should wait longer than; it learns what that takes."""
