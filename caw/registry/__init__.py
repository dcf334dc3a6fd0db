"""Keys, tenants and receipts in a database, for the endpoint and for the operator.

open_registry    the database, by any URL that SQLAlchemy takes
upgrade          databases that earlier versions made
master_key       what secrets are sealed under; it stays outside the database
marking_keys     keys that mark, with their windows: made, rotated, revoked, never deleted
api_keys         bearer tokens, of which the database holds digests
directory        both, as the endpoint asks for them
receipt_log      a row before a text's first byte and one at its end, chained and signed
chain            what is hashed and signed
audit            export of the chain, and its verification without the database
"""

from caw.registry.opening import Registry, open_registry

__all__ = ["Registry", "open_registry"]
