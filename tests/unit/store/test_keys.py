"""API keys: shown once, kept as an HMAC, useless after revocation."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from practicum.errors import NotFound, UsageError
from practicum.store import Holders, Store, create_key, list_keys, lookup, open_store, revoke


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "practicum.db") as opened:
        yield opened


def test_a_key_names_its_principal_and_scopes(store: Store) -> None:
    key = create_key(store, "team", ["sample", "feedback"])
    assert key.startswith("pk_")
    assert len(key) == 43
    principal = lookup(store, key)
    assert principal is not None
    assert principal.name == "team"
    assert principal.may("sample")
    assert principal.may("feedback")
    assert not principal.may("admin")


def test_an_administrator_may_everything(store: Store) -> None:
    principal = lookup(store, create_key(store, "root", ["admin"]))
    assert principal is not None
    assert principal.may("sample")


@pytest.mark.parametrize("wrong", ["", "pk_", "sk-123", "pk_" + "a" * 40, "pk_\ud800\0", "pk_' OR 1=1 --"])
def test_unknown_keys_are_nobody(store: Store, wrong: str) -> None:
    create_key(store, "team", ["sample"])
    assert lookup(store, wrong) is None


def test_a_revoked_key_is_nobody_and_stays_listed(store: Store) -> None:
    key, other = create_key(store, "team", ["sample"]), create_key(store, "team", ["sample"])
    principal = lookup(store, key)
    assert principal is not None
    revoke(store, principal.key_id)
    first = list_keys(store)[0].revoked_at
    revoke(store, principal.key_id)
    assert lookup(store, key) is None
    assert lookup(store, other) is not None
    assert first is not None
    assert [record.revoked_at for record in list_keys(store)] == [first, None]


def test_a_remembered_key_is_nobody_at_once_where_it_is_revoked_and_elsewhere_within_a_second(tmp_path: Path) -> None:
    now = [0.0]
    with open_store(tmp_path / "practicum.db") as here, open_store(tmp_path / "practicum.db") as elsewhere:
        holders, far = Holders(here, lambda: now[0]), Holders(elsewhere, lambda: now[0])
        key, bound = create_key(here, "team", ["sample"]), create_key(here, "team", ["sample"], session_id="s")
        first = holders(key)
        assert first is not None and first is holders(key) and far(key) == first
        assert holders(bound) is not None and holders("pk_none") is None
        revoke(here, first.key_id)
        here.revoke_session_keys("s", 1.0).result()
        assert holders(key) is None and holders(bound) is None
        now[0] = 0.99
        assert far(key) == first
        now[0] = 1.0
        assert far(key) is None


def test_revoking_an_unknown_key_says_so(store: Store) -> None:
    with pytest.raises(NotFound):
        revoke(store, "key_none")


@pytest.mark.parametrize(("principal", "scopes"), [("", ["sample"]), ("a/b", ["sample"]), ("a", []), ("a", ["root"])])
def test_what_cannot_be_a_key_is_refused(store: Store, principal: str, scopes: list[str]) -> None:
    with pytest.raises(UsageError):
        create_key(store, principal, scopes)  # type: ignore[arg-type]


def test_the_key_itself_is_not_in_the_file(store: Store, tmp_path: Path) -> None:
    key = create_key(store, "team", ["sample"])
    for file in tmp_path.iterdir():
        assert key.encode() not in file.read_bytes()


def test_another_store_does_not_know_the_key(store: Store, tmp_path: Path) -> None:
    key = create_key(store, "team", ["sample"])
    with open_store(tmp_path / "other" / "practicum.db") as other:
        assert other.key_secret != store.key_secret
        assert lookup(other, key) is None
