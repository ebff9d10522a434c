"""The MCP face: every operation as a tool, over standard input and output."""
