"""A server of tools over MCP that real clients run as a process of their own."""

import sys
from pathlib import Path

#: A server that counts words. After its first call it offers a second tool, which counts letters.
MCP_SERVER = """
import json, sys


def tool(name):
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return {"name": name, "description": f"{name} of a text.", "inputSchema": schema}


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


tools = [tool("count_words")]
for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params", {})
    if "id" not in message:
        continue
    result = {}
    if method == "initialize":
        result = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "words", "version": "1"},
        }
    elif method == "tools/list":
        result = {"tools": tools}
    elif method == "tools/call":
        text = params["arguments"]["text"]
        counts = {"count_words": len(text.split()), "count_letters": len(text)}
        name = params["name"]
        text = f"{counts[name]} counted by {name}"
        result = {"content": [{"type": "text", "text": text}]}
    send({"id": message["id"], "result": result})
    if method == "tools/call" and len(tools) == 1:
        tools.append(tool("count_letters"))
        send({"method": "notifications/tools/list_changed"})
"""


def write_mcp_server(folder: Path) -> list[str]:
    """Write the program, and return the command that runs it."""
    path = folder / "words.py"
    path.write_text(MCP_SERVER)
    return [sys.executable, str(path)]
