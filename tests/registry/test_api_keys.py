"""API keys: who is let in, who is not, and that neither tells the other's secret."""

import hmac
from datetime import timedelta

import pytest
from registry.conftest import START, Clock

from caw.registry import Registry, api_keys


def let_in(registry: Registry, token: str | None) -> str | None:
    tenant = registry.directory.tenant_for(token)
    return tenant.id if tenant is not None else None


def test_a_token_opens_its_tenant_and_no_other_text_does(registry: Registry) -> None:
    for tenant in ("acme", "globex"):
        registry.marking.create(tenant)
    (first, token), (second, other) = registry.api.create("acme"), registry.api.create("globex")
    assert let_in(registry, token) == "acme" and let_in(registry, other) == "globex"
    mixed = f"caw_{first.id}_{other.split('_', 2)[2]}"
    odd = ("", "caw", token.upper(), f" {token}", "x" * 10_000, "\ud800", first.id, "' OR 1=1 --")
    for stranger in (None, *odd, mixed, token[:-1], token + "x", "caw_" + "0" * 12 + token[16:]):
        assert let_in(registry, stranger) is None
    assert first.id in token and second.id in other and api_keys.TOKEN.fullmatch(token)


def test_digests_are_compared_in_constant_time_for_strangers_too(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.marking.create("acme")
    _, token = registry.api.create("acme")
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def watched(a: str, b: str) -> bool:
        compared.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr(api_keys.hmac, "compare_digest", watched)
    for text in (token, token[:-1] + ("A" if token[-1] != "A" else "B"), "stranger"):
        let_in(registry, text)
    assert compared == [(64, 64)] * 3


def test_revoked_and_ended_keys_let_nobody_in(registry: Registry, clock: Clock) -> None:
    registry.marking.create("acme")
    brief, token = registry.api.create("acme", not_after=START + timedelta(hours=1))
    lasting, other = registry.api.create("acme")
    clock.later(minutes=59)
    assert let_in(registry, token) == let_in(registry, other) == "acme"
    clock.later(minutes=1)
    assert let_in(registry, token) is None and let_in(registry, other) == "acme"
    registry.api.revoke(lasting.id)
    assert let_in(registry, other) is None
    states = {key.id: key.state(clock.now) for key in registry.api.every("acme")}
    assert states == {brief.id: "over", lasting.id: "revoked"}
    with pytest.raises(ValueError, match="no API key with id 'nothing'"):
        registry.api.revoke("nothing")
    with pytest.raises(ValueError, match="an API key must expire in the future"):
        registry.api.create("acme", not_after=START)


def test_rotation_keeps_the_rights_and_may_let_both_in_for_a_while(registry: Registry, clock: Clock) -> None:
    registry.marking.create("acme")
    first, token = registry.api.create("acme", may_opt_out=True)
    old, new, fresh = registry.api.rotate(first.id, until=START + timedelta(hours=1))
    assert old.id == first.id and new.may_opt_out and old.not_after == START + timedelta(hours=1)
    assert let_in(registry, token) == let_in(registry, fresh) == "acme"
    clock.later(hours=2)
    assert let_in(registry, token) is None and let_in(registry, fresh) == "acme"
    with pytest.raises(ValueError, match=f"API key {first.id} must be valid to be rotated, it is over"):
        registry.api.rotate(first.id)
    registry.api.rotate(new.id)
    assert let_in(registry, fresh) is None  # at once
