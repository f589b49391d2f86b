"""The scratch folder of a run is removed, whatever the agent has done to it."""

from pathlib import Path

from dovetail.compare.harness_runs import remove_folder


def test_folder_without_permissions_is_removed(tmp_path: Path) -> None:
    inner = tmp_path / "scratch" / "work" / "inner"
    inner.mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o500)
    (inner / "link").symlink_to(outside)
    (inner / "file").write_text("x")
    inner.chmod(0)
    inner.parent.chmod(0o500)
    remove_folder(tmp_path / "scratch")
    assert not (tmp_path / "scratch").exists()
    assert outside.stat().st_mode & 0o777 == 0o500  # a link is not followed
