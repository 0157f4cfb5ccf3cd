"""What README and GUIDE print is what the code has: a reader who copies it gets what the tests ran."""

from mergus.pipeline.catalog_settings import catalog_settings
from tests.support import documents

URI, WAREHOUSE = "http://lake.example:8181", "lake"


def test_spark_settings_of_readme_and_guide_are_those_of_mergus_spark() -> None:
    ours = catalog_settings(URI, WAREHOUSE)
    assert ours["spark.sql.catalog.lake.cache-enabled"] == "false"
    assert documents.readme_spark_settings(URI, WAREHOUSE) == ours
    assert documents.guide_spark_settings(URI, WAREHOUSE) == ours


def test_no_other_document_prints_the_settings_of_a_spark_catalog() -> None:
    """One that did would have to be compared as well."""
    printing = {path.name for path in documents.ROOT.glob("*.md") if "spark.sql.catalog.lake.type" in path.read_text()}
    assert printing == {"README.md", "GUIDE.md"}
