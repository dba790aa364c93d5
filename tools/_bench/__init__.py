"""The benchmark behind ./tools/bench. See __main__.py for what is measured, precisely."""
