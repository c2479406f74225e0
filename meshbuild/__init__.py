"""meshbuild gets Go services from source onto bare Linux hosts without container images."""

__version__ = "0.1.0"
