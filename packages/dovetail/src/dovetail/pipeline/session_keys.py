"""Names of conversations and of parts of an engine's cache. Tenants have no name in common."""

from dovetail.pipeline.preparation import PreparedRequest
from dovetail_model import Identity, Request


def session_key(prepared: PreparedRequest) -> str | None:
    """Identify a conversation by its session, else by its first turn, scoped to the tenant."""
    identity, digests = prepared.request.identity, prepared.prompt.history.digests
    if identity.session is None:
        return (prepared.prompt.head.whole + digests[0]).hex() if digests else None
    return named_session_key(identity)


def named_session_key(identity: Identity) -> str | None:
    """Return the session that the client named, if any, scoped to the tenant."""
    return _scope_session(identity.tenant, identity.session)


def parent_session_key(identity: Identity) -> str | None:
    """Return the session that started this one, if the client named it, scoped to the tenant."""
    return _scope_session(identity.tenant, identity.parent)


def cache_salt(request: Request) -> str | None:
    """Return a cache salt per tenant, so that cache hits reveal nothing to other tenants.

    Tenants whose requests have the same `cache_scope` share the cache.
    """
    identity, salt = request.identity, request.hints.cache_salt
    scope = identity.tenant if identity.cache_scope is None else identity.cache_scope
    return _scope_to_tenant(scope, salt or "") if scope else salt


def _scope_session(tenant: str, session: str | None) -> str | None:
    return _scope_to_tenant(tenant, session) if tenant and session is not None else session


def _scope_to_tenant(tenant: str, name: str) -> str:
    """Build a name that no other tenant can produce."""
    return f"{len(tenant)}:{tenant}/{name}"
