"""Every operation, declared once: command, MCP tool, schema and reference page come from here."""
