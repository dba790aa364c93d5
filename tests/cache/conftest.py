import pytest

from neuron_dynamo.cache import counters, layers, remote_level, store, trouble


@pytest.fixture(autouse=True)
def fresh_process():
    """Each test sees the state of the cache module that a new process has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_memory", {})
        patch.setattr(trouble, "_warned", set())
        patch.setattr(remote_level, "_levels", {})
        patch.setattr(layers, "_shunned", set())
        for name in ("_refreshed", "_borrowed"):
            patch.setattr(store, name, set())
        for name in ("_rejected", "_headroom"):
            patch.setattr(store, name, {})
        patch.setattr(counters, "_stats", counters.CacheStats())
        yield
