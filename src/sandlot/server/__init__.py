"""The service over HTTP, and the composition root, which alone names concrete drivers and stores."""
