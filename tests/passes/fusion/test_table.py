"""docs/fusions.md tells what the code does now."""

from tests.models import zoo
from tools._fusions import PATH, line, rows


def test_the_page_has_every_model() -> None:
    models = {text.split("|")[1].strip() for text in PATH.read_text().splitlines() if text.startswith("| ")}
    assert set(zoo.names()) <= models


def test_the_rows_of_a_model_are_as_measured_now() -> None:
    page = PATH.read_text().splitlines()
    measured = [line(row) for row in rows("llama")]
    assert len(measured) == 3
    assert [text for text in measured if text not in page] == []
