import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.catalog.paging import PageTokens
from mergus.errors import BadRequest

text = st.text(st.characters(blacklist_categories=("Cs",)))
tokens = PageTokens(b"k" * 32)


@given(st.lists(text, max_size=4), text)
def test_a_page_token_encodes_where_its_page_begins(listing: list[str], after: str) -> None:
    assert tokens.read(listing, tokens.issue(listing, after)) == after


@given(st.lists(text, max_size=3), st.lists(text, max_size=3), text)
def test_a_page_token_is_valid_for_its_own_listing_only(one: list[str], other: list[str], after: str) -> None:
    if one != other:
        with pytest.raises(BadRequest):
            tokens.read(other, tokens.issue(one, after))


@given(text, st.integers(0, 200))
def test_a_changed_page_token_is_refused(after: str, position: int) -> None:
    token = tokens.issue(["x"], after)
    i = position % (len(token) - 1)  # the last character may have bits that say nothing
    changed = token[:i] + ("A" if token[i] != "A" else "B") + token[i + 1 :]
    with pytest.raises(BadRequest):
        tokens.read(["x"], changed)


@given(text)
def test_any_text_that_is_no_page_token_is_refused(token: str) -> None:
    with pytest.raises(BadRequest):
        tokens.read(["x"], token)


def test_a_page_token_of_another_lake_is_refused() -> None:
    with pytest.raises(BadRequest):
        PageTokens(b"o" * 32).read(["x"], tokens.issue(["x"], "a"))
