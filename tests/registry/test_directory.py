"""The directory: what the endpoint is told of tenants and keys, at every moment and by every process."""

import pytest
from registry.conftest import START, Clock

from caw.registry import Registry, open_registry
from caw.registry.directory import set_rules
from caw.registry.master_key import MasterKeys
from caw.serve.contracts import MarkRules


def test_the_key_that_marks_follows_time_and_revocation(registry: Registry, clock: Clock) -> None:
    first = registry.marking.create("acme", key=1)
    _, token = registry.api.create("acme")
    other = registry.marking.create("globex", key=2)

    def marking() -> object:
        tenant = registry.directory.tenant_for(token)
        return tenant and (tenant.key.id, tenant.key.key)

    assert marking() == (first.id, 1)
    clock.later(hours=1)
    _, second = registry.marking.rotate("acme")
    assert marking() != (first.id, 1) and marking()[0] == second.id  # type: ignore[index]
    registry.marking.revoke(second.id)
    with pytest.raises(ValueError, match="tenant acme must have an active marking key, found none"):
        marking()  # the first one's window has ended: nothing leaves unmarked
    assert other.id not in {key.id for key in registry.directory.detection_keys(registry_tenant(registry, "acme"))}


def registry_tenant(registry: Registry, name: str) -> object:
    registry.marking.create(name)
    _, token = registry.api.create(name)
    return registry.directory.tenant_for(token)


def test_old_and_revoked_keys_are_still_read_the_current_first(registry: Registry, clock: Clock) -> None:
    keys = [registry.marking.create("acme", key=1, public=True)]
    for _ in range(3):
        clock.later(hours=1)
        keys.append(registry.marking.rotate("acme")[1])
    clock.later(hours=1)
    _, token = registry.api.create("acme")
    waiting = registry.marking.create("acme", not_before=clock.now.replace(year=2027))
    tenant = registry.directory.tenant_for(token)
    expected = [key.id for key in reversed(keys)]
    assert [key.id for key in registry.directory.detection_keys(tenant)] == expected
    assert [key.id for key in registry.directory.detection_keys(None)] == expected  # all of them are public
    assert registry.directory.detection_keys(tenant)[-1].key == 1
    registry.marking.revoke(keys[-1].id)
    # a revoked key was the current one: it is read still
    assert {key.id for key in registry.directory.detection_keys(tenant)} == {key.id for key in keys}
    assert waiting.id not in {key.id for key in registry.directory.detection_keys(tenant)}
    clock.now = START.replace(year=2028)
    assert registry.directory.detection_keys(tenant)[0].id == waiting.id


def test_a_tenant_knows_how_many_keys_a_detection_tries(registry: Registry, clock: Clock) -> None:
    registry.marking.create("acme", key=1)
    _, token = registry.api.create("acme")

    def tried() -> tuple[int, int]:
        tenant = registry.directory.tenant_for(token)
        assert tenant is not None
        own, public = (registry.directory.detection_keys(asker) for asker in (tenant, None))
        is_public = tenant.key.id in {key.id for key in public}
        return tenant.tried, max(len(own), len(public) * is_public)

    assert tried() == (1, 1)
    registry.marking.create("acme", not_before=clock.now.replace(year=2027))
    for name in ("globex", "initech", "hooli"):
        registry.marking.create(name, public=True)
    assert tried() == (1, 1)
    clock.later(hours=1)
    registry.marking.revoke(registry.marking.rotate("acme")[0].id)
    assert tried() == (2, 2)
    clock.later(hours=1)
    registry.marking.create("acme", public=True)
    assert tried() == (4, 4)
    clock.later(days=365)
    assert tried()[0] == tried()[1] == 4


def test_private_keys_are_not_the_publics(registry: Registry) -> None:
    registry.marking.create("acme")
    shown = registry.marking.create("acme", public=True)
    assert [key.id for key in registry.directory.detection_keys(None)] == [shown.id]


def test_a_profile_holds_for_keys_and_rules_that_come_later(
    registry: Registry, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """What was checked at the start may be changed while the server runs."""
    registry.marking.create("acme", public=True)
    _, token = registry.api.create("acme")
    registry.directory.profile, registry.directory.only_public = "eu", True
    assert registry.directory.tenant_for(token) is not None and not caplog.messages
    set_rules(registry.database, "acme", MarkRules(exempt_below=9))
    for _ in range(2):
        registry.directory.tenant_for(token)
    assert caplog.messages == ["the rules of tenant acme replace those of profile eu"]
    clock.later(hours=1)
    registry.marking.create("acme")
    clock.later(hours=1)
    with pytest.raises(ValueError, match="of acme must be public under profile eu; create one"):
        registry.directory.tenant_for(token)


def test_changes_of_another_process_are_seen(registry: Registry, masters: MasterKeys, clock: Clock, url: str) -> None:
    """Two openings of one database share nothing but the file, as two processes do."""
    beside = open_registry(url, masters, clock=clock)
    first = registry.marking.create("acme")
    api, token = registry.api.create("acme")
    tenant = beside.directory.tenant_for(token)
    assert tenant is not None and [key.id for key in beside.directory.detection_keys(tenant)] == [first.id]
    clock.later(hours=1)
    _, second = registry.marking.rotate("acme")
    assert [key.id for key in beside.directory.detection_keys(tenant)] == [second.id, first.id]
    registry.api.revoke(api.id)
    assert beside.directory.tenant_for(token) is None
    beside.close()


def test_rules_of_a_tenant(registry: Registry) -> None:
    tenant = registry_tenant(registry, "acme")
    assert tenant.rules is None  # type: ignore[attr-defined]
    _, token = registry.api.create("acme", may_opt_out=True)
    rules = MarkRules(detectable_at=1e-3, exempt_below=20, exempt_json=True)
    set_rules(registry.database, "acme", rules)
    found = registry.directory.tenant_for(token)
    assert found is not None and found.rules == rules and found.may_opt_out
    set_rules(registry.database, "acme", None)
    found = registry.directory.tenant_for(token)
    assert found is not None and found.rules is None
    with pytest.raises(ValueError, match="the registry has no tenant 'nobody'"):
        set_rules(registry.database, "nobody", rules)
