"""A build cache that machines share: Go's GOCACHEPROG served from a store of authenticated entries.

Why it is made so: docs/decisions/shared-build-cache.md.
"""
