"""A server without a registry: one tenant under one key, whoever asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caw.serve.contracts import MarkKey, Tenant


@dataclass(frozen=True)
class SingleTenant:
    """A `KeyDirectory` that takes any API key and none."""

    tenant: Tenant

    def tenant_for(self, bearer: str | None) -> Tenant:
        return self.tenant

    def detection_keys(self, tenant: Tenant | None) -> Sequence[MarkKey]:
        return (self.tenant.key,)
