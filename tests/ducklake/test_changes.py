from mergus.ducklake.changes import changes_made, created_schema, dropped_schema


def test_words_are_written_in_the_extensions_order() -> None:
    words = [created_schema("b1"), dropped_schema(9), created_schema("b2")]
    assert changes_made(words) == 'dropped_schema:9,created_schema:"b1",created_schema:"b2"'


def test_quotes_and_commas_in_a_name_stay_inside_the_word() -> None:
    assert str(created_schema('in,f"o')) == 'created_schema:"in,f""o"'
