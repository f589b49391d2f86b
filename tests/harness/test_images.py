"""Real clients read images and PDF files in sessions with a model that reads only text."""

from pathlib import Path

import pytest
from claude_code import claude
from client_sandbox import Sandbox
from codex_runs import codex
from media_files import pdf_file, png_file
from prefix_exactness import ReportRun, assert_exact
from server_setup import QWEN3_CODER, call, server_setup, text, think, turns

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

FAMILY = QWEN3_CODER


def test_claude_code_reads_an_image_and_a_pdf_file(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    image, document = sandbox.work / "shot.png", sandbox.work / "bill.pdf"
    image.write_bytes(png_file(640, 480))
    document.write_bytes(pdf_file(("Invoice 17.", "Total 42.")))
    script = turns(
        FAMILY,
        [think("First the picture."), call("Read", file_path=str(image))],
        [think("Then the bill."), call("Read", file_path=str(document))],
        [think("A command."), call("Bash", command="echo eins", description="Say one")],
        [text("It is a bill.")],
    )
    setup = server_setup(tmp_path / "server", FAMILY)
    with setup.server({"turns": script}) as server:
        run = claude(sandbox, server.url, "What is it?")
    assert run.result == "It is a bill."
    assert run.tools == ["Read", "Read", "Bash"]
    last = setup.generations[-1].text
    assert last.count("[image: image/png, 640x480 pixels, ") == 1
    assert "2 pages]\n[page 1]\nInvoice 17.\n[page 2]\nTotal 42." in last
    report_run(assert_exact(setup.generations, new=1))


def test_codex_views_an_image(sandbox: Sandbox, tmp_path: Path, report_run: ReportRun) -> None:
    """Codex leaves images out, because its catalog states that the model reads only text."""
    image = sandbox.work / "shot.png"
    image.write_bytes(png_file(640, 480))
    script = turns(
        FAMILY,
        [think("The picture."), call("view_image", path=str(image))],
        [think("A command."), call("exec_command", cmd="echo eins")],
        [text("It is a picture.")],
    )
    setup = server_setup(tmp_path / "server", FAMILY)
    with setup.server({"turns": script}) as server:
        run = codex(sandbox, server.url, "What is it?", "-i", str(image), "--")
    assert run.result == "It is a picture."
    last = setup.generations[-1].text
    assert "image content omitted because you do not support image input" in last
    assert "view_image is not allowed because you do not support image inputs" in last
    report_run(assert_exact(setup.generations, new=1))
