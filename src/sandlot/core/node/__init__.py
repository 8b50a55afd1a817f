"""What a node has and gives: promises to sandboxes within what its host has, memory for clients within what the service may hold."""
