"""Spark itself: sessions, Java, tables and what appears together."""
