"""A small MCP server over standard input and output, with one tool: it looks up a note."""

import json
import sys
from typing import Any

TOOL = {
    "name": "lookup",
    "description": "Looks up one note by its title.",
    "inputSchema": {
        "type": "object",
        "properties": {"title": {"type": "string"}},
        "required": ["title"],
    },
}


def respond(message: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a request, or None for a notification."""
    match message.get("method"):
        case "initialize":
            return {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "notes", "version": "1"},
            }
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            title = message["params"]["arguments"]["title"]
            return {"content": [{"type": "text", "text": f"The note on {title}: seventeen."}]}
        case "ping":
            return {}
    return None


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        result = respond(message)
        if "id" in message and result is not None:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
