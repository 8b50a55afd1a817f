"""MCP server: the tools of Sandlot for clients of the Model Context Protocol, over stdio and streamable HTTP."""
