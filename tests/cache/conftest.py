import pytest

from neuron_dynamo.cache import counters, store


@pytest.fixture(autouse=True)
def fresh_process():
    """Each test sees the state of the cache module that a new process has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_memory", {})
        patch.setattr(store, "_warned", set())
        patch.setattr(counters, "_stats", counters.CacheStats())
        yield
