"""Downloads from a real server on this machine: whole, stopped in the middle, wrong, or not there."""

import hashlib
import io
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dordis.apps.learning import sources
from dordis.apps.learning.settings import Settings
from dordis.apps.learning.sources import Remote, fetch, load
from dordis.errors import InputError
from tests.apps.learning import fixtures
from tests.cli.in_process import dordis

CONTENT = bytes(range(256)) * 4000


class Handler(BaseHTTPRequestHandler):
    """Serve what the test put on the server, by ranges if it may."""

    def do_GET(self):
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.ranges else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : self.server.stops_at])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.asked, server.ranges, server.stops_at = {"/data.bin": CONTENT}, [], True, None
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def remote(server, content=CONTENT, name="data.bin"):
    url = f"http://127.0.0.1:{server.server_port}/{name}"
    return Remote(url, len(content), hashlib.sha256(content).hexdigest())


def test_a_file_is_downloaded_once(server, tmp_path):
    path = fetch(remote(server), tmp_path / "new")
    assert path.read_bytes() == CONTENT
    assert fetch(remote(server), tmp_path / "new") == path
    assert server.asked == [None]


@pytest.mark.parametrize("ranges", [True, False])
def test_what_was_stopped_goes_on(server, tmp_path, ranges):
    server.stops_at, server.ranges = 300_000, ranges
    with pytest.raises(InputError, match=r"stopped at 300,000 of 1,024,000 bytes|to go on"):
        fetch(remote(server), tmp_path)
    assert (tmp_path / "data.bin.part").stat().st_size == 300_000
    server.stops_at = None
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.asked[1] == "bytes=300000-"
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin"]


@pytest.mark.parametrize("served", [CONTENT[:-1] + b"x", CONTENT + b"x"])
def test_a_wrong_file_is_not_kept(server, tmp_path, served):
    server.files["/data.bin"] = served
    with pytest.raises(InputError, match="SHA-256"):
        fetch(remote(server), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_changed_later_is_refused(server, tmp_path):
    fetch(remote(server), tmp_path).write_bytes(CONTENT[1:])
    with pytest.raises(InputError, match="SHA-256"):
        fetch(remote(server), tmp_path)


def test_what_is_not_there_is_one_error_that_says_what_to_do(server, tmp_path):
    for wrong in (remote(server, name="none.bin"), replace(remote(server), url="http://127.0.0.1:1/data.bin")):
        with pytest.raises(InputError, match=r"cannot download .*--data-dir"):
            fetch(wrong, tmp_path)


def archive_of(folder):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(folder, folder.name)
    return buffer.getvalue()


def test_a_data_set_is_downloaded_unpacked_and_read(server, tmp_path, monkeypatch):
    fixtures.write_cifar10(tmp_path / "made" / "cifar-10-batches-bin")
    server.files["/c.tar.gz"] = packed = archive_of(tmp_path / "made" / "cifar-10-batches-bin")
    official = sources.DATA_SETS["cifar10"]
    monkeypatch.setitem(sources.DATA_SETS, "cifar10", replace(official, remotes=(remote(server, packed, "c.tar.gz"),)))
    monkeypatch.setenv("DORDIS_DATA", str(tmp_path / "cache"))
    for _ in range(2):
        assert load(Settings(data="cifar10")).x_train.shape == (40, 3072)
    assert server.asked == [None]


def test_a_wrong_checksum_is_one_line_and_exit_code_2(server, tmp_path, monkeypatch):
    server.files["/c.tar.gz"] = b"something else"
    official = sources.DATA_SETS["cifar10"]
    monkeypatch.setitem(
        sources.DATA_SETS, "cifar10", replace(official, remotes=(remote(server, b"what it was", "c.tar.gz"),))
    )
    monkeypatch.setenv("DORDIS_DATA", str(tmp_path / "cache"))
    done = dordis("run", "--preset", "cifar10", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "SHA-256" in done.stderr


def test_official_addresses_have_sizes_and_checksums():
    remotes = [remote for data in sources.DATA_SETS.values() for remote in data.remotes]
    assert len(remotes) >= 10
    for one in remotes:
        assert one.size > 0
        assert len(bytes.fromhex(one.sha256)) == 32
        assert one.url.startswith("http")


def test_downloads_are_kept_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("DORDIS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert sources.cache() == tmp_path / "dordis"
