"""Collectors: adapters that read how much work waits in one queue or subscription.

Add one with docs/adding-a-collector.md; `scaling.service.registry` lists those that come with the product.
"""
