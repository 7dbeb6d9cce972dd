"""A version is on disk whole or not at all, and only what was written is read back."""

from pathlib import Path

import pytest

from gateway.errors import CheckpointCorrupt
from trainer.checkpoint import Written, prune, verify, verify_state, write_version


def writer(text: str):
    return lambda directory: (directory / "weights").write_text(text)


def write(root: Path, version: int) -> Written:
    return write_version(root, version, writer(f"p{version}"), writer(f"s{version}"))


def test_what_was_written_is_verified_and_read(tmp_path: Path) -> None:
    written = write(tmp_path / "new" / "root", 3)
    assert (verify(written.uri, written.checksum) / "weights").read_text() == "p3"
    assert (verify_state(written.state) / "weights").read_text() == "s3"
    assert Path(written.uri).is_absolute()


def test_two_writes_of_one_version_never_share_a_place(tmp_path: Path) -> None:
    assert write(tmp_path, 3).uri != write(tmp_path, 3).uri


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def full(directory: Path) -> None:
        (directory / "weights").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_version(tmp_path, 3, writer("p"), full)
    assert list(tmp_path.iterdir()) == []


def test_what_is_being_written_ends_before_a_write_has_failed(tmp_path: Path) -> None:
    ended = []

    def full(directory: Path) -> None:
        assert ended == []
        raise OSError(28, "No space left on device")

    def going_on(directory: Path) -> object:
        return lambda: ended.append(directory.parent.exists())

    with pytest.raises(OSError, match="No space"):
        write_version(tmp_path, 3, full, going_on)
    assert ended == [True]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["changed", "missing", "added", "manifest", "gone"])
def test_any_difference_is_found(tmp_path: Path, damage: str) -> None:
    written = write(tmp_path, 3)
    policy = Path(written.uri)
    match damage:
        case "changed":
            (policy / "weights").write_text("p4")
        case "missing":
            (policy / "weights").unlink()
        case "added":
            (policy / "extra").touch()
        case "manifest":
            (policy / "manifest.json").write_text("{}")
        case "gone":
            policy.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointCorrupt):
        verify(written.uri, written.checksum)


def test_a_checkpoint_without_a_checksum_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointCorrupt):
        verify_state(write(tmp_path, 3).state.partition("#")[0])


def test_pruning_keeps_the_newest_and_the_named(tmp_path: Path) -> None:
    versions = {number: write(tmp_path, number) for number in (1, 2, 9, 10, 11)}
    (tmp_path / ".v12-00000000" / "policy").mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    assert prune(tmp_path, named=[versions[1].uri], keep=2) == [2, 9]
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {Path(versions[n].uri).parent.name for n in (1, 10, 11)} | {"notes"}
    assert prune(tmp_path / "nowhere", named=[], keep=2) == []
