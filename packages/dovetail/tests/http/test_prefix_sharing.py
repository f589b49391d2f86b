"""`--prefix-sharing`: which tenants share an engine's prefix cache."""

from hashlib import sha256
from typing import Any

import pytest
from http_fixture import NAME, run, serving

from dovetail.access.auth import ApiKeys, PrefixSharing
from dovetail.access.key_file import ApiKey, KeyFileError, parse_keys
from dovetail.http.options import HttpOptions

#: The key of each tenant, which has the same name, and its group.
GROUPS = {"red": "eng", "blue": "eng", "green": "", "eng": "", "sales": "out"}
BODY: dict[str, Any] = {
    "model": NAME,
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Hello there, all of you."}],
}


def _keys() -> ApiKeys:
    return ApiKeys(
        hashed=[
            ApiKey(tenant, sha256(tenant.encode()).digest(), group=group)
            for tenant, group in GROUPS.items()
        ]
    )


@pytest.mark.parametrize(
    ("sharing", "shared"),
    [
        ("tenant", []),
        ("group", [{"red", "blue"}]),
        ("all", [{"red", "blue", "green", "eng", "sales"}]),
    ],
)
def test_tenants_that_share_have_the_same_salt(
    sharing: PrefixSharing, shared: list[set[str]]
) -> None:
    async def scene() -> None:
        async with serving(HttpOptions(keys=_keys(), prefix_sharing=sharing)) as stage:
            for tenant in GROUPS:
                reply = await stage.request("POST", "/v1/messages", BODY, x_api_key=tenant)
                assert reply.status == 200
            salts = [request.cache_salt for request in stage.engine.requests]
        by_salt: dict[str | None, set[str]] = {}
        for tenant, salt in zip(GROUPS, salts, strict=True):
            by_salt.setdefault(salt, set()).add(tenant)
        assert [tenants for tenants in by_salt.values() if len(tenants) > 1] == shared

    run(scene)


def test_client_cannot_choose_the_salt_of_another_tenant() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(keys=_keys(), prefix_sharing="group")) as stage:
            await stage.request("POST", "/v1/messages", BODY, x_api_key="red")
            salt = stage.engine.requests[0].cache_salt
            forged = {**BODY, "nvext": {"cache_salt": salt}}
            await stage.request("POST", "/v1/messages", forged, x_api_key="green")
            assert stage.engine.requests[1].cache_salt != salt

    run(scene)


def test_group_in_the_key_file() -> None:
    digest = "ab" * 32
    lines = f"red:{digest} group=eng requests=5\nblue:{'cd' * 32}\n"
    assert [key.group for key in parse_keys(lines.encode())] == ["eng", ""]
    for wrong in ("group=", "group=a:b", "group=a group=b"):
        with pytest.raises(KeyFileError, match="line 1"):
            list(parse_keys(f"red:{digest} {wrong}\n".encode()))
