"""HTTP for all APIs: connections, middleware, authentication, error responses, streaming and request parsing."""
