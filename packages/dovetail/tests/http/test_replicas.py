"""`/admin/replicas`: list, add and remove replicas with an admin key."""

from hashlib import sha256
from urllib.parse import quote

from http_fixture import NAME, Stage, StageEngine, run, serving, tiny_model

from dovetail.access.auth import ApiKeys
from dovetail.access.key_file import ApiKey
from dovetail.http.options import HttpOptions
from dovetail.pipeline.registry import TokenModel
from dovetail.routing.membership import ReplicaMembership

PATH = "/admin/replicas"
URL = "http://10.0.0.9:8000"


def _options() -> HttpOptions:
    user = ApiKey("red", sha256(b"user").digest())
    return HttpOptions(keys=ApiKeys(["admin"], hashed=[user]))


def _watch(stage: Stage, *, is_shared: bool = False) -> None:
    """Let replicas be added: engines of this process, since no other server runs here."""
    entry = stage.app.service.find(NAME)
    assert isinstance(entry, TokenModel)
    entry.engine.membership = ReplicaMembership(
        entry.engine, lambda url: StageEngine(tiny_model()), {}, is_shared=is_shared
    )


def test_admin_adds_lists_and_removes_replicas() -> None:
    async def scene() -> None:
        async with serving(_options()) as stage:
            _watch(stage)
            added = await stage.request("POST", PATH, {"url": f"{URL}/v1"}, x_api_key="admin")
            assert added.status == 200
            assert added.json["url"] == URL
            assert added.json["available"] is True
            listed = (await stage.request("GET", PATH, x_api_key="admin")).json["replicas"]
            assert [(one["replica"], one["url"]) for one in listed] == [(0, None), (1, URL)]
            assert listed[1]["model"] == NAME
            query = f"{PATH}?model={quote(NAME)}&url={quote(URL)}"
            removed = await stage.request("DELETE", query, x_api_key="admin")
            assert (removed.status, removed.json["removed"]) == (200, True)
            again = await stage.request("DELETE", query, x_api_key="admin")
            assert again.status == 400
            assert "unknown replica" in again.body.decode()

    run(scene)


def test_other_keys_and_servers_without_keys_are_rejected() -> None:
    async def scene() -> None:
        async with serving(_options()) as stage:
            for method in ("GET", "POST", "DELETE"):
                assert (await stage.request(method, PATH, x_api_key="user")).status == 403
                assert (await stage.request(method, PATH)).status == 401
        async with serving() as stage:
            reply = await stage.request("GET", PATH)
            assert (reply.status, "--api-key" in reply.body.decode()) == (403, True)

    run(scene)


def test_invalid_changes_are_explained() -> None:
    async def scene() -> None:
        async with serving(_options()) as stage:
            fixed = await stage.request("POST", PATH, {"url": URL}, x_api_key="admin")
            assert (fixed.status, "--engine-url" in fixed.body.decode()) == (400, True)
            _watch(stage)
            for body, text in (
                ({"url": "ftp://x"}, "expected an http://"),
                ({"urls": [URL]}, "`url`"),
                ({"url": URL, "model": "other"}, "does not exist"),
            ):
                reply = await stage.request("POST", PATH, body, x_api_key="admin")
                assert reply.status in (400, 404)
                assert text in reply.body.decode()
            missing = await stage.request("DELETE", PATH, x_api_key="admin")
            assert (missing.status, "`url` is required" in missing.body.decode()) == (400, True)
            _watch(stage, is_shared=True)
            shared = await stage.request("POST", PATH, {"url": URL}, x_api_key="admin")
            assert (shared.status, "--engine-url-file" in shared.body.decode()) == (400, True)

    run(scene)
