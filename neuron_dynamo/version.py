"""The version, written once: the build, `neuron_dynamo.__version__` and the cache key all read it here."""

__version__ = "0.1.0"
