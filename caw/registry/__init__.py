"""Registry: keys, tenants and receipts in a database, for the server and for its operator.

open_registry    the database, by any SQLAlchemy URL
master_key       encrypts secrets; stays outside the database
custodian        a command that derives the keys instead, from a master key that stays outside this process
marking_keys     keys that mark, with validity periods: created, rotated, revoked, never deleted
api_keys         bearer tokens; the database stores only digests
directory        both kinds of key, for the server
receipt_log      one row before a text's first byte and one at its end, chained and signed
chain            the hashed and signed format
audit            export of the chain, and verification without the database
"""

from caw.registry.opening import Registry, open_registry

__all__ = ["Registry", "open_registry"]
