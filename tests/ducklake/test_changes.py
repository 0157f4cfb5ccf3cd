from mergus.ducklake.changes import changes_made, created_schema, dropped_schema


def test_changes_made_lists_changes_in_the_order_of_the_ducklake_extension() -> None:
    words = [created_schema("b1"), dropped_schema(9), created_schema("b2")]
    assert changes_made(words) == 'dropped_schema:9,created_schema:"b1",created_schema:"b2"'


def test_changes_made_quotes_names_with_quotes_and_commas() -> None:
    assert str(created_schema('in,f"o')) == 'created_schema:"in,f""o"'
