"""Inputs of the jobs: what Tidemark and Azure wrote, as frames of the schemas in `schemas`."""
